"""Audits of runs and updates on rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn import functional as F

import fedpriv
from fedpriv.attacks.attack import ATTACKS, RowAttack
from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.audit.judge import rows as judge
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.rows.choices import Labelled, choices_of, told_by_others
from fedpriv.errors import UsageError
from tests.simulation.small import play

Runs = Callable[..., Path]
ONE_STEP: dict[str, Any] = {
    "train.rounds": 1, "train.local_epochs": 1, "train.batch_size": 1000, "train.momentum": 0.0, "train.weight_decay": 0.0,
    "train.participation": 1.0, "wire.keep_payloads": "all", "data.clients": 3, "data.partition.name": "iid",
    "model.projection": 8,
}  # fmt: skip
DECLARED: dict[str, Any] = {
    "data.bounds": {
        "mean radius": [5, 30], "mean texture": [5, 40], "mean perimeter": [40, 200], "mean smoothness": [0, 0.3],
        "mean compactness": [0, 0.5],
    },
    "data.levels": {"size": ["small", "middle", "large"]},
}  # fmt: skip
"""What differential privacy wants to know of the columns."""
EXTENT: dict[str, Any] = {"messages": 1, "label_shadows": 0, "membership_shadows": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Trains on 60 tumours: five measurements, one of them missing now and then, and a category of three levels."""
    folder = tmp_path_factory.mktemp("tables")
    frame = load_breast_cancer(as_frame=True).frame.iloc[:60, [0, 1, 2, 4, 5, 30]].rename(columns={"target": "label"})
    frame["size"] = pd.qcut(frame["mean radius"], 3, labels=["small", "middle", "large"]).astype(str)
    frame.loc[::7, "mean texture"] = None
    frame.to_csv(folder / "tumours.csv", index=False)

    def run(name: str, method: str = "fedavg", **changes: Any) -> Path:
        play(folder / name, method, **{**ONE_STEP, "data.name": str(folder / "tumours.csv"), **changes})
        return folder / name

    return run


def audited(folder: Path) -> AuditedRun:
    return fedpriv.audit(folder, **EXTENT).runs[0]


@pytest.mark.slow
def test_an_undefended_first_layer_gives_single_rows_away_and_hidden_values(trained: Runs) -> None:
    run = audited(trained("plain"))
    (single,) = (target for target in run.rows if target.kind == "single row")
    best = judge.best(single)
    assert best is not None and best.figures.cells.share >= 0.9 and judge.whole_rows(best.figures, single.baselines)
    assert single.columns == 6 and set(single.baselines) == {"most frequent values", "other rows"}
    sizes = {"small", "middle", "large"}
    assert any(cell.column == "size" and {cell.true, cell.recovered} < sizes for cell in best.figures.example.cells)
    assert run.concluded.words != "Leakage not known" and run.metrics["recovered_from_single_row"] > 0.9
    assert {outcome.column for outcome in run.attributes} >= {"size", "mean texture"}
    assert max(outcome.figures.right.share for outcome in run.attributes if outcome.figures) > 0.9, "one step is a linear system"
    assert run.metrics["attribute_advantage"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"wire.transforms": [{"name": "gaussian", "variance": 1.0}]},
        {"privacy.level": "sample", "privacy.noise": 5.0, "privacy.clip": 0.1, "privacy.statistics_epsilon": 0, **DECLARED},
        {"wire.secure_aggregation": True},
    ],
    ids=["noise", "DP", "sum"],
)
def test_what_a_defence_hides_is_not_recovered_and_never_called_safe_without_evidence(
    trained: Runs, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    run = audited(trained(request.node.callspec.id.replace(" ", "-"), **changes))
    assert run.rows and not any(
        judge.whole_rows(attack.figures, target.baselines) for target in run.rows for attack in judge.ran(target)
    )
    for target in run.rows:
        for outcome in target.outcomes:
            assert outcome.status.word != "resisted" or not outcome.status.reasons


@pytest.mark.slow
def test_a_masked_first_layer_does_not_protect_rows_of_the_layers_behind(trained: Runs) -> None:
    run = audited(trained("masked-first-layer", **{"wire.transforms": [{"name": "mask", "names": ["encoder.fc1.*"]}]}))
    (single,) = (target for target in run.rows if target.kind == "single row")
    best = judge.best(single)
    assert best is not None and best.outcome.attack == "tableak" and judge.recovered(best).share == 1


@pytest.mark.slow
def test_a_private_head_does_not_protect_rows_of_the_first_layer(trained: Runs) -> None:
    run = audited(trained("private-head", "mpfedcon"))
    single = [target for target in run.rows if target.kind == "single row"]
    assert any((best := judge.best(target)) is not None and best.figures.cells.share >= 0.9 for target in single)


@dataclass(frozen=True)
class Nothing(RowAttack):
    """Finds no row of any message."""

    name: ClassVar[str] = "nothing"
    max_batch: ClassVar[int | None] = None
    optimises: ClassVar[bool] = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
        assert observations[0].encoding is not None
        n, width = sum(seen.num_examples or 1 for seen in observations), observations[0].encoding.width
        raw = torch.full((n, width), torch.nan)
        return RowReconstruction(raw, torch.full((n,), -1), torch.zeros(len(observations)), observations[0].encoding)


@pytest.mark.slow
def test_the_attack_of_a_plugin_is_audited_and_without_a_control_its_failure_is_no_evidence(
    trained: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ATTACKS, "_known", {**ATTACKS.all(), "nothing": Nothing})
    run = audited(trained("plugin"))
    own = [outcome for target in run.rows for outcome in target.outcomes if outcome.attack == "nothing"]
    assert {target.kind for target in run.rows} == {"message", "single row"} and len(own) == len(run.rows)
    assert {outcome.status.word for outcome in own} == {"inconclusive"}
    assert all("no control shows" in outcome.status.why for outcome in own), [outcome.status.why for outcome in own]


@pytest.mark.slow
def test_one_update_on_a_row() -> None:
    columns = [NumberColumn("age", 50.0, 10.0), NumberColumn("dose", 1.0, 0.5, gaps=True), CategoryColumn("sex", ("f", "m"))]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    row, label = torch.tensor([[1.2, 0.0, 1.0, 0.0, 1.0, 0.0]]), torch.tensor([1])
    gradient = list(torch.autograd.grad(F.cross_entropy(net(row), label), list(net.parameters())))
    report = fedpriv.audit_update(net, gradient, (row, label), columns=columns)
    assert report.answer == "Samples were recovered", report.verdict
    (target,) = report.runs[0].rows
    best = judge.best(target)
    assert best is not None
    shown = {cell.column: cell.recovered for cell in best.figures.example.cells}
    assert shown == {"age": "62", "dose": "missing", "sex": "m"}
    with pytest.raises(UsageError, match=r"rows \(n, 6\)"):
        fedpriv.audit_update(net, gradient, (row[:, :4], label), columns=columns)


@pytest.mark.slow
def test_values_of_a_hidden_column(trained: Runs) -> None:
    record = RunRecord(trained("choices"))
    assert record.encoding is not None
    rows, labels = torch.cat([record.rows(client) for client in range(3)]), torch.cat([record.labels(c) for c in range(3)])
    by_name = {choices.column: choices for choices in choices_of(record.encoding, rows)}
    size, texture = by_name["size"], by_name["mean texture"]
    assert len(size.entries) == 3 and bool((size.of(rows) >= 0).all()) and size.completed(rows[:4]).shape == (12, rows.shape[1])
    assert texture.missing and bool((texture.of(rows)[rows[:, texture.at.stop - 1] > 0.5] == len(texture.entries) - 1).all())
    for choices in (size, texture):
        own = choices.completed(rows[:2]).view(2, len(choices.entries), -1)
        assert all(choices.of(each).tolist() == list(range(len(choices.entries))) for each in own), "each value is itself"
    told = told_by_others(size, Labelled(rows, labels), Labelled(rows, labels))
    assert torch.allclose(told.sum(1), torch.ones(len(rows), dtype=torch.double)) and bool(
        (told.argmax(1) == size.of(rows)).double().mean() > 0.8
    )


@pytest.mark.slow
@pytest.mark.usefixtures("hardly_any_steps")
def test_learned_inversion_needs_public_rows_and_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.audit.rows.recovery._enough", lambda result: None)
    torch.manual_seed(0)
    net, rows, labels = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(12, 2), torch.arange(12) % 2
    gradient = list(torch.autograd.grad(F.cross_entropy(net(rows[:1]), labels[:1]), list(net.parameters())))
    columns = (NumberColumn("a"), NumberColumn("b"))

    def outcome(public: tuple[torch.Tensor, torch.Tensor] | None) -> Any:
        (run,) = fedpriv.audit_update(net, gradient, (rows[:1], labels[:1]), columns=columns, public=public).runs
        return next(outcome for outcome in run.rows[0].outcomes if outcome.attack == "learned-rows")

    without = outcome(None)
    assert without.figures is None and "it needs public rows of the same table" in str(without.status.reasons[0])
    assert outcome((rows[1:], labels[1:])).figures is not None
