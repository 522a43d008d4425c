"""Results by client: what each gains over training alone, and its accuracy by the rounds since its last local update."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.experiments.claims import Results
from fedpriv.experiments.paired import client_differences
from fedpriv.experiments.results import Result

AGES = (0, 5, 10, 20, 40)
"""Where each group of clients begins: rounds since their last local update."""


@dataclass(frozen=True)
class Gains:
    """The accuracy of each client minus that of the same client trained alone.

    Attributes:
        alone: label of the runs in which clients train alone.
        of: label -> differences in [-1, 1], over all clients and the seeds that both have; without runs that have other clients.
    """

    alone: str
    of: Mapping[str, list[float]]


def gains(results: Results) -> Gains | None:
    """The gains of all methods over ``local``; ``None`` where the experiment has no results of it, or of nothing else."""
    methods = {label: {run.config["method"]["name"] for run in by_seed.values()} for label, by_seed in results.items()}
    local = [label for label, names in methods.items() if "local" in names]
    if not local:
        return None
    alone, by_label = local[0], dict[str, list[float]]()
    for label, by_seed in results.items():
        for seed in sorted(by_seed.keys() & results[alone].keys()) if label != alone else ():
            if differences := client_differences(by_seed[seed], results[alone][seed]):
                by_label.setdefault(label, []).extend(differences)
    return Gains(alone, by_label) if by_label else None


def by_age(results: Results) -> dict[str, list[tuple[int, float | None]]]:
    """Label -> for each group of :data:`AGES` the number of clients and their mean accuracy after the last round, of all seeds.

    Without clients that never trained, and results that do not record who trained when.
    """
    by_label = {}
    for label, by_seed in results.items():
        groups: list[list[float]] = [[] for _ in AGES]
        for run in by_seed.values():
            for age, accuracy in _aged(run):
                groups[bisect_right(AGES, age) - 1].append(accuracy)
        if any(groups):
            by_label[label] = [(len(group), statistics.fmean(group) if group else None) for group in groups]
    return by_label


def _aged(run: Result) -> list[tuple[int, float]]:
    """(rounds since the last local update, accuracy after the last round) of each client that trained and was tested."""
    updates, accuracies = (run.summary.get(name, []) for name in ("last_update_per_client", "accuracy_per_client_at_end"))
    pairs = zip(updates, accuracies, strict=False)  # accuracies are missing where there are none
    return [
        (run.summary["rounds"] - update, accuracy) for update, accuracy in pairs if update is not None and accuracy is not None
    ]
