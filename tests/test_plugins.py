"""Plug-ins of every kind are found by name, and can neither replace nor break anything."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fedpriv
from fedpriv import aggregation, defenses, methods, objectives, plugins
from fedpriv.attacks.attack import ATTACKS
from fedpriv.attacks.core import by_name
from fedpriv.cli import main
from fedpriv.cli.new_plugin import KINDS
from fedpriv.config import load_config
from fedpriv.data import partition_rules, sources
from fedpriv.errors import FedprivError, UnknownName, UsageError
from fedpriv.models import registry as models
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import trackers
from tests.notes import noted

REGISTRIES = {
    "method": methods.registry,
    "objective": objectives.registry,
    "aggregation": aggregation.registry,
    "transform": defenses.registry,
    "model": models.REGISTRY,
    "data set": sources.REGISTRY,
    "partition": partition_rules.REGISTRY,
    "tracker": trackers.registry,
    "attack": ATTACKS,
}
OBJECTS = {
    "method": "from fedpriv.methods import Method\nclass Thing(Method): 'A thing.'",
    "objective": "from fedpriv.objectives import Objective\nclass Thing(Objective): 'A thing.'",
    "aggregation": "from fedpriv.aggregation import Aggregation\nclass Thing(Aggregation): 'A thing.'",
    "transform": "from fedpriv.defenses.stage import transform\n@transform\nclass Thing:\n def __call__(self, p, c): return p",
    "model": "from fedpriv.models import ModelSpec\nThing = ModelSpec('{name}', None, (1, 8, 8), 10, 'a test')",
    "data set": "from fedpriv.data.dataset import Source\nThing = Source('{name}', 'a test', None)",
    "partition": "from fedpriv.data.partition_rules import NamedPartition\nThing = NamedPartition(lambda task: 0, frozenset())",
    "attack": "from dataclasses import dataclass\nfrom fedpriv.attacks.attack import TextAttack\n"
    "@dataclass(frozen=True)\nclass Thing(TextAttack):\n def run(self, observed, seed=0): ...",
}
OBJECTS["tracker"] = "from fedpriv.tracking import Tracker\nclass Thing(Tracker): 'A thing.'"
OURS = {
    "method": "fedavg",
    "objective": "moon",
    "aggregation": "mean",
    "transform": "mask",
    "model": "cnn10",
    "data set": "digits",
    "partition": "iid",
    "tracker": "mlflow",
    "attack": "dlg",
}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test registers or loads is gone after it."""
    for registry in REGISTRIES.values():
        registry.all()
        for name in ("_known", "_also", "_origins", "_refused", "_asked", "missing"):
            monkeypatch.setattr(registry, name, getattr(registry, name).copy())
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``install("theirs", source, group, "name = theirs:Thing")``: a module, and entry points that name what is in it."""
    monkeypatch.syspath_prepend(tmp_path)
    entry_points: list[EntryPoint] = []
    monkeypatch.setattr(by_name, "installed", lambda group: [point for point in entry_points if point.group == group])

    def make(module: str, source: str, group: str, *points: str) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        entry_points.extend(EntryPoint(*point.split(" = "), group) for point in points)

    return make


def silent(act: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return act()


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_plugin_cannot_take_a_name_of_ours(kind: str, install: Callable[..., None]) -> None:
    registry, name = REGISTRIES[kind], OURS[kind]
    before = registry.all()
    install("their_copy", OBJECTS[kind].format(name=name), registry.group, f"{name} = their_copy:Thing")
    module = registry._origins[name][0]
    assert module.startswith(("fedpriv.", "attacks."))
    clash = f"{name!r}: one of {module}, one of their_copy; the latter is left out"
    with pytest.warns(by_name.PluginWarning, match=clash) as warned:
        assert registry.find(name) is before[name]
    assert len(warned) == 1
    assert silent(registry.all) == before


@pytest.mark.parametrize("kind", REGISTRIES)
def test_an_entry_point_may_name_the_thing_itself(kind: str, install: Callable[..., None]) -> None:
    registry = REGISTRIES[kind]
    before = registry.all()
    install("their_thing", OBJECTS[kind].format(name="theirs"), registry.group, "theirs = their_thing:Thing")
    assert silent(lambda: registry.find("theirs")) is sys.modules["their_thing"].Thing
    assert registry.all().keys() == before.keys() | {"theirs"}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import a_package_that_is_not_there", "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"),
        ("raise RuntimeError('first line\\nsecond')", "RuntimeError: first line"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("Thing = 3", "must be"),
    ],
)
@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_broken_plugin_is_named_and_all_else_works(kind: str, source: str, why: str, install: Callable[..., None]) -> None:
    registry = REGISTRIES[kind]
    before = registry.all()
    install("their_broken", source, registry.group, "broken = their_broken:Thing")
    with pytest.warns(by_name.PluginWarning, match=f"broken.*their_broken.*{why}") as warned:
        assert registry.all() == before
    assert len(warned) == 1
    assert silent(lambda: registry.find(OURS[kind])) is before[OURS[kind]]
    with pytest.raises((UsageError, KeyError), match=f"'broken' is not available.*{why}") as error:
        silent(lambda: registry.find("broken"))
    assert not isinstance(error.value, UnknownName)


def test_of_two_plugins_the_first_stays_and_both_are_named(install: Callable[..., None]) -> None:
    registry = REGISTRIES["method"]
    for module in ("their_b", "their_a"):
        install(module, OBJECTS["method"], registry.group, f"twice = {module}:Thing")
    with pytest.warns(by_name.PluginWarning, match="two methods are named 'twice': one of their_a, one of their_b"):
        assert registry.find("twice").__module__ == "their_a"


def test_a_module_registers_what_it_holds_and_by_other_names_too(install: Callable[..., None]) -> None:
    registry = REGISTRIES["method"]
    source = "from fedpriv.methods import Method, register\n@register('theirs', 'fedavg')\nclass Taken(Method): ..."
    source += "\n@register('other', 'alias')\nclass Other(Method): ..."
    install("their_module", source, registry.group, "module = their_module", "other = their_module:Other")
    with pytest.warns(by_name.PluginWarning, match="two methods are named 'fedavg'") as warned:
        assert registry.find("alias").name == "other"
    assert len(warned) == 1 and "theirs" not in registry.all()


def test_two_of_ours_with_one_name_are_our_error() -> None:
    registry = by_name.Registry[Any]("thing", "things", ["tests.test_plugins"], lambda thing: True, "")
    registry.register("one")(int.__class__("A", (), {"__module__": __name__}))
    with pytest.raises(ValueError, match=f"two things are named 'one': one of {__name__}, one of {__name__}"):
        registry.register("one")(int.__class__("B", (), {"__module__": __name__}))


def write(folder: Path, name: str, method: str) -> Path:
    file = folder / f"{name}.py"
    folder.mkdir(exist_ok=True)
    file.write_text(f"from fedpriv.methods import Method, register\n@register({method!r})\nclass One(Method): 'A file.'")
    return file


def test_a_file_counts_with_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "file_of_mine", "from-a-file")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["train", "--method", "from-a-file", "--plugin", file.name, "--dump-config", "--json"])
    assert done.exit_code == 0, done.output
    config = json.loads(done.stdout.splitlines()[-1])
    assert config["plugins"] == [str(file)]
    assert load_config().fingerprint() == load_config(None, {"plugins": [str(file)]}).fingerprint()


def test_a_run_whose_plugin_is_gone_says_so_and_takes_it_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PayloadStore, "rounds", lambda store: [1])  # else an audit says no more than that there are none,
    monkeypatch.setattr(RunFolder, "summary", lambda folder: {})  # or that the run is not finished
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"method: moved\nplugins: [{tmp_path / 'moved_plugin.py'}]\n")
    for command in ("resume", "audit"):
        done = CliRunner().invoke(main, [command, str(run)])
        assert done.exit_code == 2 and done.stderr.count("\n") <= 2
        assert f"plug-in {tmp_path / 'moved_plugin.py'} (of {run / 'config.yaml'}): there is no such file" in done.stderr
    plugins.load_plugins([write(tmp_path / "elsewhere", "moved_plugin", "moved")])
    assert RunFolder.open(run).config().method.name == "moved"
    assert methods.find_method("moved").title == "A file."


def test_a_frontier_takes_the_plugins_of_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run recorded them; their methods are known before anything is trained, and the runs' processes import them, too."""
    file, asked = write(tmp_path, "frontier_plugin", "in-a-frontier"), list[Any]()
    (tmp_path / "config.yaml").write_text(f"method: in-a-frontier\nplugins: [{file}]\n")
    monkeypatch.setattr("fedpriv.frontier.run.frontier", lambda plan, *where: asked.append(plan) or {"strengths": []})
    CliRunner().invoke(main, ["frontier", "--config", str(tmp_path / "config.yaml"), "--output", str(tmp_path / "out")])
    (plan,) = asked
    assert (plan.methods, plan.points()[0].config.plugins) == (["in-a-frontier"], (file,))


def test_a_run_that_goes_on_with_a_changed_plugin_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "edited_plugin", "edited")
    short: dict[str, Any] = {"data.clients": 2, "model.name": "mlp2", "train.local_epochs": 1, "tracking.uri": "none"}
    with fedpriv.rounds(method="edited", plugins=[file], rounds=2, **short) as rounds:
        next(rounds)
    began = {"edited_plugin": hashlib.sha256(file.read_bytes()).hexdigest()}
    imported = plugins._loaded["edited_plugin"]  # as in another process, in which it was imported anew
    monkeypatch.setitem(plugins._loaded, "edited_plugin", imported._replace(sha256="0" * 64))
    with noted(r"edited_plugin\.py changed since the run began: rounds after 1 are of the new code"):
        facts = fedpriv.resume(rounds.run).folder.facts
    assert facts["plugins"] == began
    assert facts["continued"] == [{"after_round": 1, "plugins": {"edited_plugin": "0" * 64}}]


@pytest.mark.parametrize(
    ("name", "source", "error", "message"),
    [
        ("not-a-module.py", "", UsageError, "not the name of a Python module"),
        ("json.py", "", UsageError, "another module json"),
        ("no_such.py", None, UsageError, "there is no such file"),
        ("broken_file.py", "1/0", FedprivError, "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_a_plugin(
    name: str, source: str | None, error: type[Exception], message: str, tmp_path: Path
) -> None:
    if source is not None:
        (tmp_path / name).write_text(source)
    with pytest.raises(error, match=message):
        plugins.load_plugins([tmp_path / name])


AGGREGATIONS = """
import torch
from fedpriv.aggregation import Merged, register
from fedpriv.aggregation.mean import Mean

@register("nothing-of-mine")
class Nothing(Mean):
    def merge(self, uploads, memory): pass

@register("scalar-of-mine")
class Scalar(Mean):
    def merge(self, uploads, memory): return Merged(uploads.rows.mean())

@register("misspelt-of-mine")
class Misspelt(Mean):
    def merge(self, uploads, memory):
        return Merged(uploads.previus)
"""


def test_a_merge_that_goes_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "merges_of_mine.py").write_text(AGGREGATIONS)
    messages = {
        "nothing-of-mine": "aggregation nothing-of-mine: merge returns a NoneType; it should be a Merged  [plug-in]\n",
        "scalar-of-mine": "merge returns a model of shape (); it should have that of uploads.previous, (",
        "misspelt-of-mine": f"'previus'  [plug-in]\n(in {tmp_path / 'merges_of_mine.py'}, line 17; --debug shows where)\n",
    }
    short = ["train.rounds=1", "train.local_epochs=1", "model.name=mlp2", "tracking.uri=none", "data.clients=2"]
    for name, words in messages.items():
        flags = [flag for key in short for flag in ("--set", key)]
        done = CliRunner().invoke(main, ["train", "--plugin", "merges_of_mine.py", "--aggregation", name, *flags])
        assert done.exit_code == 1 and words in done.stderr


LOSS = """
from fedpriv.objectives import Objective, register

@register("misspelt-loss-of-mine")
class Misspelt(Objective):
    def loss(self, step):
        return step.nothing
"""


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "workers"])
def test_the_line_of_a_loss_that_goes_wrong_is_named(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loss_of_mine.py").write_text(LOSS)
    short = ["objective.name=misspelt-loss-of-mine", "train.rounds=1", "tracking.uri=none", "data.clients=2"]
    run_by = "executor.workers=2" if executor == "workers" else f"executor.name={executor}"
    flags = [flag for key in (*short, run_by) for flag in ("--set", key)]
    done = CliRunner().invoke(main, ["train", "--plugin", "loss_of_mine.py", *flags])
    assert done.exit_code == 1 and "object has no attribute 'nothing'" in done.stderr
    assert f"(in {tmp_path / 'loss_of_mine.py'}, line 7" in done.stderr


def test_a_method_that_shares_nothing_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone_of_mine.py").write_text(
        "from fedpriv.methods import Method, register\n@register('alone-of-mine')\nclass One(Method): shared = frozenset()"
    )
    short = ["train.rounds=2", "train.local_epochs=1", "model.name=mlp2", "tracking.uri=none", "data.clients=2"]
    flags = [flag for key in short for flag in ("--set", key)]
    done = CliRunner().invoke(main, ["train", "--plugin", "alone_of_mine.py", "--method", "alone-of-mine", *flags, "--json"])
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, summary["answers_refused"], summary["bytes_down"]) == (0, 0, 0)


INSTALLED = """
import json, sys
from click.testing import CliRunner
from fedpriv.cli import main

said = ""

def fedpriv(*words):
    global said
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    said += done.stderr
    return json.loads(done.stdout.splitlines()[-1])

small = "--clients 4 --participation 0.5 --rounds 1 --local-epochs 1 --run-dir run".split()
train = "method objective aggregation model dataset partition".split()
small += "--defense my-defense --tracking my-tracker".split()
run = fedpriv("train", *small, *(w for kind in train for w in ("--" + kind, "my-" + kind)))
assert run["rounds"] == 1
assert list(json.loads(open("run/accuracy.json").read())) == ["0", "1"]
attacked = fedpriv("attack", "my-attack", "--n", "1")
assert [one["name"] for one in attacked["controls"]] == ["negative"], attacked
from fedpriv.attacks.lab.attempts import suited
assert "my-attack" in [attacker.name for attacker in suited(0)]
listed = [[{"name": "my-tracker"}], *fedpriv("methods").values(), *fedpriv("data", "list").values()]
listed += [fedpriv(kind)[kind] for kind in ("defenses", "models", "attacks")]
assert said.count("the plug-in 'broken' (not_there of theirs) cannot be imported") == 1, said
print(json.dumps(sorted(row["name"] for rows in listed for row in rows if row["name"].startswith("my-"))))

import pytest  # in the same process, as one takes seconds to import torch
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "lg-fedavg"]))
"""


@pytest.mark.slow
def test_installed_plugins_of_every_kind_are_used_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages as ``fedpriv new-plugin`` writes them, with the metadata that an installer would write, beside a broken one.

    The test that comes with one passes too.
    """
    monkeypatch.chdir(tmp_path)
    site, groups = tmp_path / "site", {"fedpriv.methods": ["broken = not_there"]}
    site.mkdir()
    for kind, (group, _) in KINDS.items():
        result = CliRunner().invoke(main, ["new-plugin", kind])
        assert result.exit_code == 0, result.output
        module = f"my_{kind}"
        readme = (tmp_path / f"my-{kind}" / "README.md").read_text(encoding="utf-8")
        assert f"{'An' if kind in ('objective', 'aggregation', 'attack') else 'A'} {kind} for fedpriv." in readme
        (site / f"{module}.py").write_text((tmp_path / f"my-{kind}" / f"{module}.py").read_text())
        groups.setdefault(group, []).append(f"my-{kind} = {module}")
    info = site / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join("\n".join([f"[{group}]", *points]) for group, points in groups.items()))
    assert CliRunner().invoke(main, ["new-plugin", "method", "lg-fedavg"]).exit_code == 0
    path = os.pathsep.join([str(site), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == sorted(f"my-{kind}" for kind in KINDS)
    assert "1 passed" in done.stdout


def test_a_new_plugin_is_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["new-plugin", "method", "lg-fedavg"]).exit_code == 0
    assert '[project.entry-points."fedpriv.methods"]\n"lg-fedavg" = "lg_fedavg"' in Path("lg-fedavg/pyproject.toml").read_text()
    again = CliRunner().invoke(main, ["new-plugin", "method", "lg-fedavg"])
    assert again.exit_code == 2 and "exists already" in again.stderr
