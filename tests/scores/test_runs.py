"""The scores of a run: which it is ranked by, what its record and summary have, and scores of the user's own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import fedpriv
from fedpriv.errors import UsageError
from fedpriv.files import load_json
from fedpriv.scores.catalogue import SUMMARIES, usual_score
from fedpriv.scores.tasks import Classes
from fedpriv.simulation.setup import build
from tests.deploy.apart import play_apart
from tests.simulation.small import config, play, simulation

FOUR: dict[str, Any] = {"data.partition.name": "iid", "data.clients": 4, "train.participation": 1.0, "train.rounds": 2}
FOUR |= {"train.lr": 0.2}


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """Four clients of a table of 400 rows, of which one in ten is positive."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(draw.normal(size=(400, 3)), columns=["a", "b", "c"])
    rows["label"] = np.where(rows["a"] + 0.5 * draw.normal(size=400) > 1.5, "yes", "no")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    return {**FOUR, "data.name": str(tmp_path / "rows.csv"), "data.label": "label"}


def test_always_one_class_is_not_what_a_run_is_ranked_by() -> None:
    assert (
        usual_score([92, 8]).name == "balanced_accuracy" and usual_score([2, 1]).name == usual_score([1] * 10).name == "accuracy"
    )


def test_a_run_of_imbalanced_classes_says_so(table: dict[str, Any]) -> None:
    federation = build(config("fedavg", **table))
    assert federation.config.eval.metric == "balanced_accuracy"
    assert any("of the training labels are 'no'" in note and "balanced accuracy" in note for note in federation.prepared.notes)
    chosen = build(config("fedavg", **table, **{"eval.metric": "roc_auc"}))
    assert chosen.config.eval.metric == "roc_auc" and not any("labels are" in note for note in chosen.prepared.notes)
    assert chosen.config.fingerprint() == federation.config.fingerprint(), "it changes no number"


@pytest.mark.parametrize(
    ("metric", "why"), [("auc", "is no score; there are accuracy, "), ("roc_auc", "needs two classes, .* 10")]
)
def test_a_score_that_there_is_not_is_refused(metric: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"eval.metric '?{metric}'? {why}"):
        build(config("fedavg", **FOUR, **{"eval.metric": metric}))


def test_records_and_summary_have_all_of_them(tmp_path: Path, table: dict[str, Any]) -> None:
    run = play(tmp_path / "run", "fedavg", **table)
    record, summary = run.folder.records()[-1], load_json(run.folder.path / "summary.json")
    assert summary["metric"] == "balanced_accuracy" and list(summary["scores"]) == [score.name for score in Classes(2).scores]
    for name, score in summary["scores"].items():
        metrics = {name, f"global_{name}", *(f"{name}_{key}" for key in SUMMARIES)}
        assert metrics <= record["metrics"].keys() and len(record["per_client"][name]) == 4
        of_rounds = [line["metrics"][name] for line in run.folder.records()[1:]]
        assert score["mean"] == pytest.approx(np.mean(of_rounds)) and len(score["per_client"]) == 4
    assert summary["scores"]["brier"]["worst_tenth"] == max(summary["scores"]["brier"]["per_client"])
    assert summary["scores"]["accuracy"]["mean"] == summary["accuracy"]


def test_a_client_and_all_together_have_sklearn_s_curves(tmp_path: Path, table: dict[str, Any]) -> None:
    """From the net's outputs on the clients' own samples."""
    run = simulation(tmp_path / "run", "fedavg", **table)
    run.start()
    record, federation = run.run_round(), run.federation
    federation.resident.row.copy_(run.state.row)
    probabilities, labels = [], []
    for client in range(4):
        split = federation.data.split("test", client)
        logits = federation.resident.forward(split.inputs, False).logits.double()
        probabilities.append(torch.softmax(logits, 1)[:, 1].detach().numpy())
        labels.append(split.labels.numpy())
        expected = roc_auc_score(labels[-1], probabilities[-1])
        assert record["per_client"]["roc_auc"][client] == pytest.approx(expected)
    pooled = average_precision_score(np.concatenate(labels), np.concatenate(probabilities))
    assert record["metrics"]["average_precision_pooled"] == pytest.approx(pooled)


def test_a_deployed_client_reports_what_a_simulated_one_has(tmp_path: Path, table: dict[str, Any]) -> None:
    """By the same function, to the bit; on images, as tables are not deployed."""
    images = {"data.limit": 200, **FOUR}
    records = [play(tmp_path / "here", "fedavg", **images).folder.records()[-1]]
    records.append(fedpriv.load(play_apart(tmp_path / "apart", "fedavg", **images)).records[-1])
    assert records[0]["per_client"] == records[1]["per_client"]
    assert records[0]["per_client"].keys() == {score.name for score in Classes(10).scores}


def negative_entropy(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    return float((probabilities * probabilities.log()).sum(1).mean()) if len(labels) else 0.0


def test_scores_of_the_user_s_own_are_measured_like_accuracy(tmp_path: Path, table: dict[str, Any]) -> None:
    metrics = {"own_accuracy": lambda p, y: float((p.argmax(1) == y).double().mean()), "entropy": negative_entropy}
    quiet = {"executor.name": "sequential", "tracking.uri": "none", "run_dir": str(tmp_path / "run"), "method.name": "fedavg"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fedpriv.train(metrics=metrics, **{**table, **quiet})
    record = run.records[-1]
    assert record["per_client"]["own_accuracy"] == record["per_client"]["accuracy"]
    for name in ("{}", "{}_weighted", "{}_std", "{}_pooled", "global_{}"):
        assert record["metrics"][name.format("own_accuracy")] == pytest.approx(record["metrics"][name.format("accuracy")])
    assert run.scores["own_accuracy"].mean == run.accuracy and run.scores["own_accuracy"].best is None
    assert run.scores["entropy"].mean is not None and run.metric == "balanced_accuracy"
    row = fedpriv.compare([run]).iloc[0]
    assert (row.metric, row.score) == ("balanced_accuracy", run.scores["balanced_accuracy"].mean)
    assert row.roc_auc == run.scores["roc_auc"].mean and row.own_accuracy == row.accuracy


@pytest.mark.parametrize("name", ["accuracy", "roc auc", "a/b", ""])
def test_a_name_that_is_taken_or_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="metrics: "):
        fedpriv.train(metrics={name: negative_entropy}, run_dir=str(tmp_path / "run"), tracking_uri="none")
    assert not (tmp_path / "run").exists()
