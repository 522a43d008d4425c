"""The result of a cell, as data that is committed beside the YAML."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from fedpriv.attacks.scoring.scores import RECOVERED, Rate, wilson
from fedpriv.config import parse
from fedpriv.errors import UsageError
from fedpriv.experiments.leakage.spec import Cell
from fedpriv.experiments.results import Stored


@dataclass(frozen=True)
class CellResult(Stored):
    """The result of a cell.

    Attributes:
        cell: as requested, with defaults filled in.
        inapplicable: why the attack could not be mounted; then there are no scores.
        mse, psnr, ssim: per image, of the reconstructions clipped to [0, 1]; empty for attacks without images.
        grey: per image, the error of a flat grey image.
        labels_right: number of correct labels; ``None`` where the attack infers none.
        loss: the attacker's own, per message.
        steps: outer steps (L-BFGS) and steps (Adam) of all starts, per message.
        curve: quartiles over the messages of the attacker's loss: ``step``, ``low``, ``median``, ``high``.
        reported: by name, the mean of what the transforms reported (signal-to-noise ratios in dB).
        cpu_seconds: of the attack on all messages.
    """

    SOMETHING_ELSE = "is not a result of a cell"

    label: str
    cell: dict[str, Any]
    inapplicable: str | None
    mse: list[float]
    psnr: list[float | None]
    ssim: list[float]
    grey: list[float]
    labels_right: int | None
    loss: list[float | None]
    steps: list[int]
    curve: dict[str, list[Any]]
    reported: dict[str, float | None]
    cpu_seconds: float
    versions: dict[str, str]
    git_commit: str | None

    @property
    def spec(self) -> Cell:
        return parse(Cell, self.cell, f"stored cell {self.label}")

    @property
    def n(self) -> int:
        return len(self.grey)

    def recovered(self, below: float = RECOVERED) -> Rate | None:
        """The rate of images with an error below ``below`` and below a grey image's; ``None`` for attacks without images."""
        pairs = list(zip(self.mse, self.grey, strict=True)) if self.mse else []
        return wilson(sum(error < min(below, flat) for error, flat in pairs), len(pairs)) if pairs else None

    def labels(self) -> Rate | None:
        """The rate of correct labels; ``None`` where the attack infers none."""
        return None if self.labels_right is None else wilson(self.labels_right, self.n)

    def capped(self) -> list[float]:
        """Errors capped at those of a grey image, so that a diverged optimiser does not dominate means."""
        return [min(pair) for pair in zip(self.mse, self.grey, strict=True)]

    @property
    def median_mse(self) -> float | None:
        return statistics.median(self.mse) if self.mse else None

    @property
    def cpu_per_image(self) -> float:
        return self.cpu_seconds / self.n

    def summary(self) -> str:
        """A line on what was recovered."""
        if self.inapplicable:
            return f"not mounted: {self.inapplicable}"
        rate, labels = self.recovered(), self.labels()
        parts = [f"{rate.successes} of {rate.n} images recovered"] if rate else []
        parts += [f"{labels.successes} of {labels.n} labels"] if labels else []
        return f"{', '.join(parts)}, {self.cpu_seconds:.0f} CPU s"


def difference(asked: Cell, stored: CellResult) -> str | None:
    """The first difference between a stored cell and the requested one; ``None``: they are the same."""
    try:
        there = stored.spec.model_dump(mode="json")
    except UsageError as error:
        return f"its cell is of another version ({error})"
    here = asked.model_dump(mode="json")
    for part, values in here.items():
        if values == there[part]:
            continue
        if not isinstance(values, dict):
            return f"{part} is {there[part]} there, {values} in the YAML"
        key = next(key for key in values if values[key] != there[part][key])
        return f"{part}.{key} is {there[part][key]} there, {values[key]} in the YAML"
    return None
