"""The results of an experiment's cells, the verdicts on claims about them, and the cost of the protections.

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
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.errors import FedprivError
from fedpriv.evaluation.intervals import mean_interval
from fedpriv.experiments.claims import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, Verdict, metric
from fedpriv.experiments.leakage.result import CellResult, difference
from fedpriv.experiments.leakage.spec import Leakage, LeakClaim
from fedpriv.experiments.spec import read
from fedpriv.experiments.stored import stored_results

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


@dataclass(frozen=True)
class Cost:
    """The effect of a protection on accuracy, from complete runs.

    Attributes:
        accuracy: mean over the seeds, in [0, 1].
        change: its mean difference to the undefended run, seed by seed; ``None`` for that run itself.
        interval: 95 % interval of that difference (Student's t); ``None`` with fewer than two seeds.
    """

    run: str
    seeds: int
    accuracy: float
    change: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class ProtectionRow:
    """One protection: the best attack on it, and its cost; ``None`` where nothing was run."""

    name: str
    cells: tuple[str, ...]
    best: tuple[str, Rate] | None
    cost: Cost | None


@dataclass(frozen=True)
class LeakageComparison:
    """The results of a leakage experiment so far."""

    experiment: Leakage
    cells: Cells
    complaints: Sequence[str]
    protections: Sequence[ProtectionRow]
    answers: Sequence[Answer]

    @classmethod
    def of(cls, experiment: Leakage) -> LeakageComparison:
        """From the results stored beside the YAML."""
        cells, complaints = _stored(experiment)
        costs, more = _costs(experiment)
        protections = [
            ProtectionRow(name, measure.cells, best_attack(measure.cells, cells), costs.get(measure.run or ""))
            for name, measure in experiment.file.protections.items()
        ]
        answers = [answer(claim, cells) for claim in experiment.file.claims]
        return cls(experiment, cells, [*complaints, *more], protections, answers)

    @property
    def missing(self) -> list[str]:
        """Cells without a valid result."""
        return [label for label in self.experiment.cells if label not in self.cells]

    def as_data(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "file": str(self.experiment.path),
            "title": self.experiment.file.title,
            "cells": {label: _figures(result) for label, result in self.cells.items()},
            "protections": [
                {
                    "name": row.name,
                    "best_attack": row.best and {"cell": row.best[0], **asdict(row.best[1])},
                    "cost": row.cost and asdict(row.cost),
                }
                for row in self.protections
            ],
            "claims": [
                {
                    **result.claim.model_dump(mode="json", exclude_none=True),
                    "best": result.best,
                    "rate": result.rate and asdict(result.rate),
                    "difference": result.difference,
                    "interval": result.interval,
                    "tested": all(label in self.cells for label in result.claim.labels),
                    "verdict": result.verdict.word,
                    "remark": result.verdict.remark,
                }
                for result in self.answers
            ],
            "begun": True,
            "total": len(self.experiment.cells),
            "missing": self.missing,
            "complaints": list(self.complaints),
        }


def _stored(experiment: Leakage) -> tuple[dict[str, CellResult], list[str]]:
    """The valid results beside the YAML, and a line on each that is not valid."""
    results, complaints = {}, []
    for label, cell in experiment.cells.items():
        path = experiment.result_file(label)
        if not path.exists():
            continue
        try:
            result = CellResult.load(path)
            other = difference(cell, result)
        except FedprivError as error:
            other = str(error)
        if other is None:
            results[label] = result
        else:
            complaints.append(f"{label} is left out: {other}")
    return results, complaints


def _costs(experiment: Leakage) -> tuple[Mapping[str, Cost], list[str]]:
    """The cost by run of the cost experiment, over the seeds that it and the undefended run have finished."""
    if (names := experiment.file.costs) is None:
        return {}, []
    results, _, complaints = stored_results(read(experiment.path.parent / names.file))
    undefended = results[names.undefended]
    costs = {}
    for run, of_run in results.items():
        seeds = sorted(of_run.keys() & undefended.keys())
        if not seeds:
            continue
        accuracy = {seed: metric(of_run[seed], "accuracy") or 0.0 for seed in seeds}
        changes = [accuracy[seed] - (metric(undefended[seed], "accuracy") or 0.0) for seed in seeds]
        itself = run == names.undefended
        costs[run] = Cost(
            run,
            len(seeds),
            statistics.fmean(accuracy.values()),
            None if itself else statistics.fmean(changes),
            None if itself or len(changes) < 2 else mean_interval(changes),
        )
    return costs, complaints


def _figures(result: CellResult) -> dict[str, Any]:
    recovered, labels = result.recovered(), result.labels()
    return {
        "n": result.n,
        "inapplicable": result.inapplicable,
        "recovered": recovered and asdict(recovered),
        "labels": labels and asdict(labels),
        "mse_median": result.median_mse,
        "cpu_seconds_per_image": result.cpu_per_image,
    }


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
