"""The results of an experiment's cells, and the cost of the protections."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.errors import FedprivError
from fedpriv.experiments.claims import mean_interval, metric
from fedpriv.experiments.leakage.claims import Answer, Cells, answer, best_attack
from fedpriv.experiments.leakage.result import CellResult, difference
from fedpriv.experiments.leakage.spec import Leakage
from fedpriv.experiments.spec import read
from fedpriv.experiments.stored import stored_results


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
