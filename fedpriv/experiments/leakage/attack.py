"""Runs one cell: observe, attack, score."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack, image_attack, image_attacks
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.inference.labels import bias_label, idlg_label
from fedpriv.attacks.lab.attempts import attempt
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.baselines import grey
from fedpriv.attacks.scoring.scores import Scores, mse
from fedpriv.errors import UnknownName, UsageError
from fedpriv.experiments.leakage.cell import LABEL_RULES, AttackerSpec, Cell
from fedpriv.experiments.leakage.result import CellResult
from fedpriv.experiments.leakage.victim import CellImages, mean_of, observations
from fedpriv.storage.provenance import git_commit, versions

_RULES = dict(zip(LABEL_RULES, (idlg_label, bias_label), strict=True))
_POINTS = 60
"""Number of points of a loss curve that are stored."""


def build_attack(spec: AttackerSpec, where: str) -> ImageAttack | None:
    """The attack with its options; ``None`` for a label rule.

    Raises:
        UsageError: there is no such attack, or it has no such option.
    """
    if spec.name in LABEL_RULES:
        if spec.options:
            raise UsageError(f"{where}: {spec.name} has no options")
        return None
    known = image_attacks()
    if spec.name not in known:
        raise UnknownName(f"attacker in {where}", spec.name, [*known, *LABEL_RULES])
    kind: Any = image_attack(spec.name)
    names = [field.name for field in dataclasses.fields(kind)]
    for option in spec.options:
        if option not in names:
            raise UnknownName(f"option of {spec.name} in {where}", option, names)
    attack: ImageAttack = kind(**spec.options)
    return attack


def attack_cell(label: str, cell: Cell, dealt: CellImages) -> CellResult:
    """Attack every message of the cell; deterministic except for the CPU seconds.

    Raises:
        UsageError: the cell's defence or attack does not fit.
    """
    reports: list[tuple[str, float]] = []
    observed = observations(cell, dealt, lambda name, value: reports.append((name, value)))
    attack = build_attack(cell.attacker, label)
    blank: dict[str, Any] = {
        "label": label,
        "cell": cell.model_dump(mode="json"),
        "inapplicable": None,
        "mse": [], "psnr": [], "ssim": [], "labels_right": None, "loss": [], "steps": [],
        "curve": {"step": [], "low": [], "median": [], "high": []},
        "grey": _numbers(mse(grey(dealt.images), dealt.images)),
        "reported": {name: _number(value) for name, value in mean_of(reports).items()},
        "cpu_seconds": 0.0,
        "versions": versions(),
        "git_commit": git_commit(),
    }  # fmt: skip
    if attack is None:
        return CellResult(**blank | _labels(cell, observed, dealt.labels))
    made = attempt(Attacker(attack, cell.attacker.threat), observed, dealt.images, dealt.labels, cell.attacker.seed)
    if made.reconstruction is None or made.scores is None:
        return CellResult(**blank | {"inapplicable": str(made.inapplicable)})
    return CellResult(**blank | _scores(made.reconstruction, made.scores))


def _labels(cell: Cell, observed: Sequence[Observation], labels: Tensor) -> dict[str, Any]:
    if cell.victim.batch > 1:
        raise UsageError(f"{cell.attacker.name} infers the label of one image, but the victim's batch is {cell.victim.batch}")
    began = time.process_time()
    try:
        found = [_RULES[cell.attacker.name](observation) for observation in observed]
    except Inapplicable as error:
        return {"inapplicable": str(error)}
    right = sum(guess == label for guess, label in zip(found, labels.tolist(), strict=True))
    return {"labels_right": right, "cpu_seconds": _number(time.process_time() - began)}


def _scores(found: Reconstruction, scores: Scores) -> dict[str, Any]:
    return {
        "mse": _numbers(scores.mse),
        "psnr": _numbers(scores.psnr),
        "ssim": _numbers(scores.ssim),
        "labels_right": scores.labels and scores.labels.successes,
        "loss": _numbers(found.loss),
        "steps": found.iterations.tolist(),
        "curve": _curve(found.curve),
        "cpu_seconds": _number(found.cpu_seconds),
    }


def _curve(curve: Tensor) -> dict[str, list[Any]]:
    """Quartiles over the messages at up to :data:`_POINTS` of the steps; a message that has stopped keeps its last loss."""
    if not len(curve):
        return {"step": [], "low": [], "median": [], "high": []}
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
