"""The results of an experiment client by client: what each gains over training alone, and how accuracy ages after a local
update."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from fedpriv.experiments.claims import Results
from fedpriv.experiments.paired import client_differences
from fedpriv.experiments.results import Result

AGES = (0, 5, 10, 20, 40)
"""Where each group of clients begins, in rounds since their last local update."""


@dataclass(frozen=True)
class Gains:
    """Accuracy of each client less that of the same client trained alone, of the seeds that both runs have.

    Attributes:
        alone: label of the runs in which clients train alone.
        of: label -> differences in [-1, 1], of all clients and seeds; without runs that have other clients.
    """

    alone: str
    of: Mapping[str, list[float]]


def gains(results: Results) -> Gains | None:
    """The gains of all methods over ``local``; ``None`` where the experiment has no results of it, or of it alone."""
    of_local = [
        label for label, of_label in results.items() if any(one.config["method"]["name"] == "local" for one in of_label.values())
    ]
    if not of_local:
        return None
    alone, found = of_local[0], dict[str, list[float]]()
    for label, of_label in results.items():
        if label == alone:
            continue
        for seed in sorted(of_label.keys() & results[alone].keys()):
            if differences := client_differences(of_label[seed], results[alone][seed]):
                found.setdefault(label, []).extend(differences)
    return Gains(alone, found) if found else None


def by_age(results: Results) -> dict[str, list[tuple[int, float | None]]]:
    """Label -> for each group of :data:`AGES` the number of clients and their mean accuracy after the last round, of all seeds.

    Clients that never trained are left out, and so are results of earlier versions, which do not say who trained when.
    """
    found = {}
    for label, of_label in results.items():
        groups: list[list[float]] = [[] for _ in AGES]
        for run in of_label.values():
            for age, accuracy in _aged(run):
                groups[bisect_right(AGES, age) - 1].append(accuracy)
        if any(groups):
            found[label] = [(len(group), statistics.fmean(group) if group else None) for group in groups]
    return found


def _aged(run: Result) -> list[tuple[int, float]]:
    """(rounds since the last local update, accuracy after the last round) of each client that trained and was tested."""
    updates, accuracies = (run.summary.get(name, []) for name in ("last_update_per_client", "accuracy_per_client_at_end"))
    pairs = zip(updates, accuracies, strict=False)  # accuracies are missing where there are none
    return [
        (run.summary["rounds"] - update, accuracy) for update, accuracy in pairs if update is not None and accuracy is not None
    ]
