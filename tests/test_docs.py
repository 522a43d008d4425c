"""What the documents show works as shown."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

import fedpriv
from fedpriv.aggregation import registry as aggregations
from fedpriv.cli import main
from fedpriv.methods import registry
from fedpriv.objectives import registry as objectives
from fedpriv.scores.catalogue import SCORES, SUMMARIES
from fedpriv.server.answers.reported import _RESERVED
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire.coding import Upload

ROOT = Path(__file__).parent.parent


def python_of(name: str, number: int = 0) -> str:
    """The Python block of that number in a document."""
    return str(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)[number])


def commands() -> list[str]:
    """Every ``fedpriv ...`` that stands on an indented line of its own (a backslash joins two), without the comment."""
    documents = [*ROOT.glob("docs/**/*.md"), *(ROOT / folder / "README.md" for folder in (".", "experiments", "mlflow"))]
    lines = [line for document in documents for line in document.read_text().replace("\\\n", " ").splitlines()]
    shown = [line for line in lines if re.match(r"    (.*uv run (--extra \w+ )?)?fedpriv ", line)]
    return sorted({re.sub(r"\s+#.*", "", line).partition("fedpriv ")[2] for line in shown})


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The methods, objectives and aggregations that a document's code registers are forgotten after the test."""
    for kinds in (registry, objectives, aggregations):
        monkeypatch.setattr(kinds, "_known", kinds.all())
    return registry._known


def test_the_method_of_the_page(methods: dict[str, Any], simulate: Callable[..., Simulation]) -> None:
    exec(python_of("docs/your-own-method.md"), {})
    simulation = simulate("lg-fedavg", **{"train.rounds": 2})
    assert {name.split(".")[0] for name in simulation.federation.method.shared_names} == {"projector", "head"}
    assert simulation.progress.total_bytes_up > 0


def test_the_objective_of_the_page(methods: dict[str, Any], simulate: Callable[..., Simulation]) -> None:
    exec(python_of("docs/your-own-method.md", 1), {})
    plain, without, strong = (
        simulate("fedavg", **{"train.rounds": 1, **options})
        for options in (
            {},
            {"objective.name": "small-logits", "objective.weight": 0},
            {"objective.name": "small-logits", "objective.weight": 1},
        )
    )
    assert torch.equal(plain.state.row, without.state.row)
    heads = [
        simulation.federation.resident.space.view(simulation.state.row, "head.weight").norm() for simulation in (plain, strong)
    ]
    assert heads[1] < heads[0]


def test_the_metrics_of_a_round_have_a_line_in_the_table(simulate: Callable[..., Simulation]) -> None:
    """All that the server may write in a record, and all that a run has in it."""
    part = (ROOT / "docs/reference/scores.md").read_text(encoding="utf-8").split("## Metrics of a round")[1].split("\n## ")[0]
    named = {name for line in part.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    scores = {*SCORES, *(f"{score}_{summary}" for score in SCORES for summary in SUMMARIES)}
    of_mlflow = {f"{score}_mean" for score in SCORES} | {
        name for name in _RESERVED if re.match("bytes_total|loss_|privacy_", name)
    }
    assert _RESERVED - scores - of_mlflow - {"round"} <= named
    assert named <= _RESERVED | {"global_accuracy"}
    simulation = simulate("fedavg", **{"train.rounds": 1, "train.lr_schedule": "cosine", "executor.name": "vectorized"})
    metrics = set(simulation.progress.record["metrics"])
    assert {"train_loss", "lr", "bytes_up", "accuracy", "test_loss"} <= metrics
    assert {name for name in metrics - named - scores if not name.startswith("global_")} == set()


def test_which_methods_keep_the_head() -> None:
    page = (ROOT / "docs/your-own-method.md").read_text()
    named = re.search(r"The head stays with the client in (.*?); in (.*?), everything does", page, re.DOTALL)
    assert named
    partial, whole = (set(re.findall(r"`(.+?)`", part)) for part in named.groups())
    shares = {name: method.shared for name, method in registry.all().items() if method.__module__.startswith("fedpriv.")}
    assert partial == {name for name, shared in shares.items() if shared and "head" not in shared}
    assert whole == {name for name, shared in shares.items() if not shared}


def test_the_method_of_contributing(methods: dict[str, Any], simulate: Callable[..., Simulation]) -> None:
    exec(python_of("CONTRIBUTING.md"), {})
    plain, without, with_term = (
        simulate(method, **{"train.rounds": 2, **options})
        for method, options in (("fedavg", {}), ("prox-example", {"method.mu": 0}), ("prox-example", {"method.mu": 1}))
    )
    assert torch.equal(plain.state.row, without.state.row)
    moved = [(simulation.state.row - simulation.federation.initial).norm() for simulation in (plain, with_term)]
    assert moved[1] < 0.98 * moved[0]


def test_server_momentum_of_a_secure_sum(methods: dict[str, Any], simulate: Callable[..., Simulation]) -> None:
    exec(python_of("docs/your-own-method.md", 2), {})
    options = {"train.rounds": 2, "aggregation.name": "fedavgm", "train.participation": 1.0}
    plain, summed = (simulate("fedavg", **options, **{"wire.secure_aggregation": secure}) for secure in (False, True))
    torch.testing.assert_close(summed.state.row, plain.state.row, rtol=0, atol=1e-5)


@pytest.mark.parametrize("where", [{"method.name": "fedavg", "mask": 1}, {"method.name": "fedper"}, {"method.name": "fedavg"}])
def test_server_momentum(methods: dict[str, Any], simulate: Callable[..., Simulation], where: dict[str, Any]) -> None:
    """Server momentum by the book, also where a part of the net stays with the clients or is masked; against a loop by hand."""
    exec(python_of("docs/your-own-method.md", 2), {})
    mask = {"wire.transforms": [{"name": "mask", "last": 1}]} if where.get("mask") else {}
    simulation = simulate(where["method.name"], play=False, **{"train.rounds": 3, "aggregation.name": "fedavgm", **mask})
    method, space = simulation.federation.method, simulation.federation.resident.space
    velocity, sent = torch.zeros(space.size), list[Upload]()
    simulation.taps.append(lambda way, sealed: sent.append(Upload(sealed)) if way == "up" else None)
    for _ in range(3):
        before = simulation.state.row.clone()
        sent.clear()
        simulation.run_round()
        names = set.intersection(*(set(upload.shapes) for upload in sent)) & set(space.names)
        assert names == {name for name in method.shared_names if not mask or not name.startswith("head.")}
        total = sum(upload.sealed.num_examples or 0 for upload in sent)
        for name in names:
            mean = sum((u.sealed.num_examples or 0) / total * u.tensors()[name].double() for u in sent)
            at, old = space[name], space.view(before, name)
            moved = 0.9 * velocity[at.start : at.stop].double() + (mean - old.double()).reshape(-1)
            velocity[at.start : at.stop] = moved.float()
            torch.testing.assert_close(space.view(simulation.state.row, name), old + moved.float().view(old.shape))
        rest = [name for name in space.names if name not in names]
        assert all(torch.equal(space.view(simulation.state.row, n), space.view(before, n)) for n in rest)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("docs/python.md", 10), ("docs/use-the-model.md", 6), ("docs/control-a-run.md", 6)])
def test_the_examples_of_the_documents(name: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        failed, tried = doctest.testfile(str(ROOT / name), module_relative=False, globs={"__name__": "__main__"})
    assert tried > least and not failed


def test_the_readme_counts_methods_and_attacks() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    listed = CliRunner().invoke(main, ["attacks", "--json"]).stdout.splitlines()[-1]
    numbers = (len(registry.all()), len(objectives.all()), len(aggregations.all()), len(json.loads(listed)["attacks"]))
    assert (
        "{} of them (`fedpriv methods`), or any of {} client objectives with any of {} server aggregations".format(*numbers)
        in text
    )
    assert f"attacks** ({numbers[-1]}, `fedpriv attacks`)" in text


@pytest.mark.slow
def test_the_python_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shown, with fewer rounds and a smaller audit."""
    monkeypatch.chdir(tmp_path)
    small = {"rounds": 2, "local_epochs": 1, "clients": 5, "tracking_uri": "none", "data": {"limit": 200}}
    train, audit = fedpriv.train, fedpriv.audit
    quick = {"messages": 1, "label_shadows": 0, "membership_shadows": 0, "singles": 1, "budget": 0.01}
    monkeypatch.setattr(fedpriv, "train", lambda **keys: train(**keys | small))
    monkeypatch.setattr(fedpriv, "audit", lambda run: audit(run, **quick))
    names: dict[str, Any] = {}
    exec(python_of("README.md", 0), names)
    assert names["run"].status == "finished" and names["report"].answer


@pytest.mark.parametrize("line", commands())
def test_commands_in_the_documents_exist(line: str) -> None:
    command: click.Command = main
    words = shlex.split(line.replace("…", ""))
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context("fedpriv", words)  # parses, and runs nothing


def test_files_that_the_documents_name_exist_and_hold_what_they_are_named_for() -> None:
    """Such as `tests/test_docs.py`, and `commands` in `tests/test_docs.py`."""
    named = re.compile(r"(?:`(\w+)` in )?`((?:fedpriv|tests|benchmarks|attacks)/[\w/.-]*\w)`")
    documents = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"]
    found = {pair for document in documents for pair in named.findall(document.read_text(encoding="utf-8"))}
    assert len(found) > 20
    for name, file in found:
        if "NAME" not in file:
            assert (ROOT / file).exists(), file
        assert not name or re.search(rf"^(?:def |class )?{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name
