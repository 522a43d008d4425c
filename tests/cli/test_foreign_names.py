"""Names that come with data, runs and experiments are printed without control characters, by every command."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fedpriv.cli import main
from fedpriv.cli.terminal import styled, terminal

Fedpriv = Callable[..., Result]
TITLE, RIGHT_TO_LEFT = "\x1b]0;owned\x07\x1b[2J", "\u202e\x9b2J"
CAT, DOG, SITE = f"cat{TITLE}", f"dog{RIGHT_TO_LEFT}", f"north{TITLE}"
RUN = f"run{RIGHT_TO_LEFT}"
BY_SITE = ("--partition", "by_column", "--set", "data.partition.column=site")
TINY = ("--set", "train.local_steps=2", "--set", "tracking.uri=none", "--run-dir", "whole")
COMMANDS: dict[str, tuple[Any, ...]] = {
    "data show": ("data", "show", "--dataset", "t.csv", "--clients", 3, "--output", "partition.png"),
    "data show by client": ("data", "show", "--dataset", "t.csv", *BY_SITE),
    "data show with many classes": ("data", "show", "--dataset", "many.csv", "--clients", 3),
    "train": ("train", "--dataset", "t.csv", *BY_SITE, "--rounds", 1, "--method", "fedavg", *TINY),
    "compare": ("compare", RUN, "whole"),
    "audit": ("audit", RUN, "--label-shadows", 0, "--membership-shadows", 0, "--singles", 1, "--messages", 1, "--budget", 0.01),
    "attack": ("attack", "analytic", "--run", RUN),
    "probe": ("probe", RUN, "--fraction", 0.5),
    "resume": ("resume", RUN),
    "sync": ("sync", RUN, "--tracking-uri", "none"),
    "experiment plan": ("experiment", "plan", "x"),
    "experiment report": ("experiment", "report", "x"),
    "experiment run": ("experiment", "run", "x/one.yaml", "--seed", 9),
    "deploy stop": ("deploy", "stop", "whole"),
    "a column that is not there": ("train", "--dataset", "t.csv", "--set", "data.label=nothing"),
    "a config": ("train", "--config", "foreign.yaml"),
    "a config of a frontier": ("frontier", "--config", "foreign.yaml"),
    "a key": ("config", CAT),
    "a method": ("train", "--method", CAT),
    "a file": ("train", "--dataset", f"{CAT}.csv"),
}
"""A command may refuse what it is given; what it prints then is looked at all the same."""


def raw(text: str) -> str:
    """The characters of a text that a terminal would not print but obey."""
    return "".join(sorted({one for one in text if not one.isprintable() and one not in "\n\t"}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, a run on one of them, and an experiment, all of whose names hold control characters."""
    folder = tmp_path_factory.mktemp("foreign")
    draw = random.Random(0)
    (folder / "foreign.yaml").write_text(yaml.safe_dump({"method": {"name": CAT}}))
    lines = [f"{i % 3 + draw.random()},{draw.random()},{(SITE, 'south')[i % 2]},{(CAT, DOG, 'cow')[i % 3]}" for i in range(120)]
    (folder / "t.csv").write_text("\n".join([f"a,b{TITLE},site,label", *lines]) + "\n", encoding="utf-8")
    many = [f"{i % 20 + draw.random()},{draw.random()},{CAT}-{i % 20}" for i in range(200)]
    (folder / "many.csv").write_text("\n".join(["a,b,label", *many]) + "\n", encoding="utf-8")
    (folder / "x").mkdir()
    spec = {"title": CAT, "base": {"data": {"name": "digits"}}, "runs": {"cat": {"method": {"name": "fedavg"}}}, "seeds": [0]}
    (folder / "x" / "one.yaml").write_text(yaml.safe_dump(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(main, [str(word) for word in COMMANDS["train"]])
    assert done.exit_code == 0, done.output
    shutil.copytree(folder / "whole", folder / RUN)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_a_control_character(world: Path, fedpriv: Fedpriv, empty_folder: Path, command: str) -> None:
    shutil.copytree(world, empty_folder, dirs_exist_ok=True)
    if command == "train":
        shutil.rmtree(empty_folder / "whole")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # matplotlib's on characters that no font has print them as they are
        done = fedpriv(*COMMANDS[command])
    assert done.output and raw(done.output) == "", done.output
    for page in [*empty_folder.rglob("*.md"), *empty_folder.rglob("*.html")]:
        assert raw(page.read_text(encoding="utf-8")) == "", page


@pytest.mark.parametrize("command", ["data show", "data show by client", "data show with many classes"])
def test_names_are_shown_whole_with_their_escapes(world: Path, fedpriv: Fedpriv, empty_folder: Path, command: str) -> None:
    shutil.copytree(world, empty_folder, dirs_exist_ok=True)
    said = " ".join(fedpriv(*COMMANDS[command]).output.split())
    assert r"cat\x1b]0;owned\x07\x1b[2J" in said
    assert (r"dog\u202e\x9b2J" in said) == (command != "data show with many classes")
    assert (r"north\x1b]0;owned\x07\x1b[2J" in said) == (command == "data show by client")


def test_whatever_is_given_to_the_terminal_is_made_printable(capsys: pytest.CaptureFixture[str]) -> None:
    """Also parts that rich makes of its own texts, which no string of ours goes through."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(DOG))
    table.add_column(Text(CAT))
    table.add_row(Text(SITE))
    out = terminal()
    out.print(table, Panel(Text(CAT)), Text(DOG), CAT, styled((CAT, "bold")), soft_wrap=True)
    found = capsys.readouterr().out
    assert raw(found) == "" and found.count(r"\x1b]0;owne") == 5
