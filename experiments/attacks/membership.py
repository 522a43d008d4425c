"""Membership inference by gradient regression, compared with the audit's other attacks, on Fashion-MNIST and CIFAR-10.

Ten clients with 100 images each train a small net for one local epoch a round. Attacked are the messages of three clients in the
last round, as an audit attacks them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import fedpriv
from fedpriv.attacks.scoring.operating_points import OperatingPoints
from fedpriv.audit.membership.inference import REGRESSION, REGRESSIONS, membership
from fedpriv.audit.record.run import RunRecord
from fedpriv.errors import UsageError
from fedpriv.experiments.markdown import table

SHADOWS = 64
RUN: Mapping[str, Any] = {
    "method": "fedavg",
    "data.limit": 1000,
    "data.test_limit": 2000,
    "data.clients": 10,
    "data.partition.name": "iid",
    "train.local_epochs": 1,
    "train.batch_size": 100,
    "train.lr": 0.05,
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
    "train.rounds": 10,
    "eval.every": 10,
    "eval.last": 1,
    "tracking.uri": "none",
}
CIFAR: Mapping[str, Any] = {"data.name": "cifar10", "model.name": "cnn10", "train.rounds": 3, "eval.every": 3}


def gaussian(variance: float) -> dict[str, Any]:
    return {"wire.transforms": [{"name": "gaussian", "variance": variance}]}


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "one step, no defence": {},
    "one step, Gaussian noise 1e-8": gaussian(1e-8),
    "one step, Gaussian noise 1e-7": gaussian(1e-7),
    "one step, two-bit quantisation": {"wire.transforms": [{"name": "quantise", "bits": 2}]},
    "ten local steps": {"train.batch_size": 10},
    "one step of lr 0.01, Gaussian noise 1e-7": {"train.lr": 0.01, **gaussian(1e-7)},
    "five epochs of ten steps": {"train.batch_size": 10, "train.local_epochs": 5},
    "ten local steps, private head": {"method": "fedper", "train.batch_size": 10},
    "CIFAR-10, cnn10, one step, three rounds": CIFAR,
}
"""By name, differences from :data:`RUN` on Fashion-MNIST."""
COMMIT = "0d95b4c7"
"""The last commit before the regression."""


class GroupNormNet(nn.Module):
    """Two convolutions with GroupNorm and GELU, a hidden layer, and the head."""

    def __init__(self, input_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(input_shape[0], 16, 5, stride=2), nn.GroupNorm(4, 16), nn.GELU()),
            *(nn.Conv2d(16, 32, 5, stride=2), nn.GroupNorm(4, 32), nn.GELU()),
            *(nn.Flatten(), nn.Linear(512, 64), nn.GELU()),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def measure(data_dir: str) -> list[dict[str, Any]]:
    """A row for each setting, and the same stored as JSON.

    Args:
        data_dir: the folder with ``fashion_mnist`` and ``cifar10``.

    Raises:
        UsageError: a data set is not there.
    """
    for name in ("fashion_mnist", "cifar10"):
        if not list(Path(data_dir, name).glob("train*.parquet")):
            raise UsageError(f"{data_dir} has no {name}/train.parquet, which this table is measured on")
    return [_measured(name, data_dir) for name in SETTINGS]


def _measured(name: str, data_dir: str) -> dict[str, Any]:
    began, options = time.process_time(), {**RUN, "data.name": "fashion_mnist", "data.dir": data_dir, **SETTINGS[name]}
    if "model.name" not in options:
        options["model"] = GroupNormNet
    with tempfile.TemporaryDirectory() as folder:
        fedpriv.train(run_dir=Path(folder) / "run", **options)
        record = RunRecord(Path(folder) / "run")
        last = record.store.rounds()[-1]
        measured = membership(record, last, record.whole_clients(last), SHADOWS)
    by_regression = {name: points for name, points in measured.attacks.items() if name in (REGRESSION, REGRESSIONS)}
    others = {name: points for name, points in measured.attacks.items() if name not in by_regression}
    best = max(others, key=lambda name: others[name].auc.value)
    return {
        "setting": name,
        "before": {"attack": best, "auc": others[best].auc.value},
        "regression": {name: _figures(points) for name, points in by_regression.items()},
        "not_tried": {name: reason.text for name, reason in measured.not_tried.items() if name in (REGRESSION, REGRESSIONS)},
        "members": others[best].members,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def _figures(points: OperatingPoints) -> dict[str, float | None]:
    at = points.at.get(0.01)
    return {
        "auc": points.auc.value,
        "low": points.auc.low,
        "high": points.auc.high,
        "tpr": None if at is None else at.true_positives.share,
    }


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a markdown section."""
    text = (
        f"Three clients' messages of the last round; the members are all of their samples. Best before: the best of the audit's "
        f"attacks up to commit `{COMMIT}`, with {SHADOWS} shadow models a client, on the same messages. The regression needs "
        "none. Over rounds: with the messages of the first and the middle round. TPR: at a false-positive rate of 1 %."
    )
    head = "setting | best before (AUC) | regression (AUC) | TPR | over rounds (AUC) | TPR"
    return f"## Membership by a regression on gradients\n\n{text}\n\n{table(head, map(_cells, rows))}\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    before = f"{row['before']['auc']:.2f} ({row['before']['attack']})"
    cells = [row["setting"], before]
    for name in (REGRESSION, REGRESSIONS):
        figures = row["regression"].get(name)
        cells += (
            ["–", "–"]
            if figures is None
            else [f"{figures['auc']:.3f}", "–" if figures["tpr"] is None else f"{figures['tpr']:.2f}"]
        )
    return cells
