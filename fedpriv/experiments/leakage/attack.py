"""Runs a cell: observe, attack, score."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.inference.labels import idlg_label
from fedpriv.attacks.lab.attempts import attempt
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.baselines import grey
from fedpriv.attacks.scoring.scores import Scores, mse
from fedpriv.experiments.leakage.result import CellResult
from fedpriv.experiments.leakage.spec import Cell
from fedpriv.experiments.leakage.victim import CellImages, observations
from fedpriv.storage.provenance import git_commit, versions

_POINTS = 60
"""Number of points of a loss curve that are stored."""
_NO_SCORES: dict[str, Any] = {
    "inapplicable": None, "mse": [], "psnr": [], "ssim": [], "labels_right": None, "loss": [], "steps": [],
    "curve": {"step": [], "low": [], "median": [], "high": []}, "cpu_seconds": 0.0,
}  # fmt: skip


def attack_cell(label: str, cell: Cell, victims: CellImages) -> CellResult:
    """Attack every message of the cell; deterministic except for the CPU seconds.

    Raises:
        UsageError: the cell's defence or attack does not fit.
    """
    reports = defaultdict[str, list[float]](list)
    observed = observations(cell, victims, lambda name, value: reports[name].append(value))
    attack = cell.attacker.attack(label)
    if attack is None:
        scores = _label_scores(observed, victims.labels)
    else:
        attacker = Attacker(attack, cell.attacker.threat)
        attempted = attempt(attacker, observed, victims.images, victims.labels, cell.attacker.seed)
        if attempted.reconstruction is None or attempted.scores is None:
            scores = {"inapplicable": str(attempted.inapplicable)}
        else:
            scores = _image_scores(attempted.reconstruction, attempted.scores)
    return CellResult(
        label=label,
        cell=cell.model_dump(mode="json"),
        grey=_numbers(mse(grey(victims.images), victims.images)),
        reported={name: _number(sum(values) / len(values)) for name, values in reports.items()},
        versions=versions(),
        git_commit=git_commit(),
        **_NO_SCORES | scores,
    )


def _label_scores(observed: Sequence[Observation], labels: Tensor) -> dict[str, Any]:
    began = time.process_time()
    try:
        inferred = [idlg_label(observation) for observation in observed]
    except Inapplicable as error:
        return {"inapplicable": str(error)}
    right = sum(label == true for label, true in zip(inferred, labels.tolist(), strict=True))
    return {"labels_right": right, "cpu_seconds": _number(time.process_time() - began)}


def _image_scores(reconstruction: Reconstruction, scores: Scores) -> dict[str, Any]:
    return {
        "mse": _numbers(scores.mse),
        "psnr": _numbers(scores.psnr),
        "ssim": _numbers(scores.ssim),
        "labels_right": scores.labels and scores.labels.successes,
        "loss": _numbers(reconstruction.loss),
        "steps": reconstruction.iterations.tolist(),
        "curve": _curve(reconstruction.curve),
        "cpu_seconds": _number(reconstruction.cpu_seconds),
    }


def _curve(curve: Tensor) -> dict[str, list[Any]]:
    """Quartiles over the messages at up to :data:`_POINTS` of the steps; a message that has stopped keeps its last loss."""
    if not len(curve):
        return dict(_NO_SCORES["curve"])
    whole = curve.clone()
    for step in range(1, len(whole)):
        whole[step] = torch.where(whole[step].isnan(), whole[step - 1], whole[step])
    at = torch.linspace(0, len(whole) - 1, min(_POINTS, len(whole))).round().long()
    low, median, high = torch.nanquantile(whole[at].double(), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=1)
    return {"step": (at + 1).tolist(), "low": _numbers(low), "median": _numbers(median), "high": _numbers(high)}


def _numbers(values: Tensor) -> list[Any]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    """Rounded to 5 significant digits; ``None`` if not finite, which JSON cannot represent."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
