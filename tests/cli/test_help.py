"""``--help`` is instant: it loads no library that takes long."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import asdict

import pytest
from click.testing import CliRunner

import fedpriv
from fedpriv import __main__
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.cli import main

HEAVY = {"torch", "torchvision", "numpy", "mlflow", "datasets", "sklearn", "matplotlib", "pyarrow", "pydantic", "yaml", "rich"}


def test_ctrl_c_while_the_commands_are_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Pressed:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "fedpriv.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fedpriv.cli")
    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130 and capsys.readouterr() == ("", "fedpriv: interrupted\n")


def test_help_of_every_command_loads_nothing_heavy() -> None:
    code = f"""
import sys
from fedpriv.cli import main
for path in ([], ["train"], ["resume"], ["methods"], ["models"], ["data"], ["data", "show"], ["compare"], ["sync"], ["ui"]):
    try:
        main([*path, "--help"])
    except SystemExit as end:
        assert end.code == 0, path
print("loaded:", sorted({HEAVY!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded: []"
    assert done.stderr == ""


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_says_what_it_does_with_an_example(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert "Example: fedpriv" in result.output or command in ("data", "experiment")


def test_the_extent_of_an_audit_has_the_same_defaults_everywhere() -> None:
    """Commands cannot read them from the class, as their help must load nothing heavy."""
    defaults = asdict(AuditOptions())
    for command in ("audit", "frontier"):
        shown = {option.name: option.default for option in main.commands[command].params if option.name in defaults}
        assert {"messages", "label_shadows", "membership_shadows", "singles"} <= shown.keys()
        shown.pop("budget", None)  # none: no default is given
        assert shown == {name: defaults[name] for name in shown}
    for name, parameter in inspect.signature(fedpriv.audit).parameters.items():
        assert name not in defaults or parameter.default == defaults[name]


def test_the_whole_s_help_names_every_command() -> None:
    output = CliRunner().invoke(main, ["-h"]).output
    assert all(command in output for command in main.commands)


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"], prog_name="fedpriv")
    assert result.output.startswith("fedpriv, version ")


def test_it_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "fedpriv", "tarin"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "No such command 'tarin'" in done.stderr
