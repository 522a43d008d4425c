"""The verdict on a claim about cells.

A share of images is compared with a bound by its 95 % Wilson interval: **reproduced** if the interval lies on the claimed side,
**not reproduced** if it lies on the other side, else **inconclusive**. Of several attackers the best counts; those that could
not be mounted are named. A claim that one
error is higher is tested image by image, with errors capped at a grey image's: reproduced if the 95 % interval (Student's t) of
the mean difference lies above 0, not reproduced if it does not reach above 0, else inconclusive; also where no attack did better
than a grey image on any image, as errors that are all capped cannot differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.experiments.claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Verdict, mean_interval
from fedpriv.experiments.leakage.result import CellResult
from fedpriv.experiments.leakage.spec import LeakClaim

Cells = Mapping[str, CellResult]
"""label -> result, for the finished cells."""


@dataclass(frozen=True)
class Answer:
    """A claim and the result of our cells.

    Attributes:
        best: the label of the cell with the best attacker; ``rate``: its share of recovered images.
        difference, interval: of the capped errors, A - B, for a comparison.
    """

    claim: LeakClaim
    verdict: Verdict
    best: str | None = None
    rate: Rate | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None


def best_attack(labels: Sequence[str], cells: Cells) -> tuple[str, Rate] | None:
    """The cell with the largest share of recovered images; the first among equals."""
    rates = [(label, rate) for label in labels if label in cells and (rate := cells[label].recovered())]
    return max(rates, key=lambda pair: pair[1].share) if rates else None


def answer(claim: LeakClaim, cells: Cells) -> Answer:
    """Our number, and the verdict by the rule of this module's docstring."""
    if missing := [label for label in claim.labels if label not in cells]:
        return Answer(claim, Verdict(INCONCLUSIVE, f"{', '.join(missing)} not run"))
    if claim.compare:
        return _compared(claim, cells)
    best = best_attack(claim.cells, cells)
    if best is None:
        return Answer(claim, Verdict(INCONCLUSIVE, "no attack could be mounted"))
    rates = [rate for label in claim.cells if (rate := cells[label].recovered())]
    low, high = max(rate.low for rate in rates), max(rate.high for rate in rates)
    if claim.above is not None:
        word = REPRODUCED if low > claim.above else NOT_REPRODUCED if high < claim.above else INCONCLUSIVE
    else:
        bound = claim.below or 0.0
        word = REPRODUCED if high < bound else NOT_REPRODUCED if low > bound else INCONCLUSIVE
    return Answer(claim, Verdict(word, _not_mounted(claim, cells)), *best)


def _not_mounted(claim: LeakClaim, cells: Cells) -> str:
    """A remark on the cells whose attack does not apply; empty where there is none."""
    labels = [label for label in claim.labels if cells[label].inapplicable]
    return f"{', '.join(labels)} could not be mounted" if labels else ""


def _compared(claim: LeakClaim, cells: Cells) -> Answer:
    assert claim.compare is not None
    first, other = (cells[label] for label in claim.compare)
    n = min(len(first.mse), len(other.mse))  # the images that both attacked
    if first.cell["images"] | {"n": n} != other.cell["images"] | {"n": n}:
        return Answer(claim, Verdict(INCONCLUSIVE, "not the same images"))
    if unmounted := _not_mounted(claim, cells):
        return Answer(claim, Verdict(INCONCLUSIVE, unmounted))
    if n < 2:
        return Answer(claim, Verdict(INCONCLUSIVE, f"{n} images that both attacked"))
    differences = [a - b for a, b in zip(first.capped()[:n], other.capped()[:n], strict=True)]
    if not any(error < grey for cell in (first, other) for error, grey in zip(cell.mse[:n], cell.grey[:n], strict=True)):
        return Answer(claim, Verdict(INCONCLUSIVE, f"on all {n} images both are no better than grey"))
    low, high = mean_interval(differences)
    word = REPRODUCED if low > 0 else NOT_REPRODUCED if high <= 0 else INCONCLUSIVE
    return Answer(claim, Verdict(word, f"{n} images"), difference=statistics.fmean(differences), interval=(low, high))
