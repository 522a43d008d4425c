"""How a run is scored: one pass over all clients' local test sets, and the papers' protocols over the passes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Records = Sequence[Mapping[str, Any]]
"""Lines of ``metrics.jsonl``, in order of rounds."""


def client_summary(accuracies: Sequence[float | None], sizes: Sequence[int]) -> dict[str, float]:
    """What one pass says about the clients; accuracies are shares in [0, 1], ``None`` for a client without test data.

    Args:
        sizes: number of test samples of each client.

    Returns:
        ``accuracy`` (unweighted mean over clients), ``accuracy_weighted`` (by test samples), and how fair it is:
        ``accuracy_worst_tenth`` (mean of the worst tenth of the clients), ``accuracy_best``, ``accuracy_std``.
    """
    scored = [(accuracy, size) for accuracy, size in zip(accuracies, sizes, strict=True) if accuracy is not None]
    values, weights = (np.array(column, dtype=np.float64) for column in zip(*scored, strict=True))
    tenth = max(1, len(values) // 10)
    return {
        "accuracy": float(values.mean()),
        "accuracy_weighted": float(np.average(values, weights=weights)),
        "accuracy_worst_tenth": float(np.sort(values)[:tenth].mean()),
        "accuracy_best": float(values.max()),
        "accuracy_std": float(values.std()),
    }


def scored_last(records: Records, last: int) -> list[Mapping[str, Any]]:
    """The records of the last ``last`` rounds that were evaluated."""
    rounds = max((record["round"] for record in records), default=0)
    return [r for r in records if r["round"] > rounds - last and r.get("per_client", {}).get("accuracy")]


def mean_per_client(records: Records, last: int) -> list[float | None]:
    """Each client's accuracy, averaged over the evaluated of the last ``last`` rounds."""
    passes = [record["per_client"]["accuracy"] for record in scored_last(records, last)]
    return [None if None in column else float(np.mean(column)) for column in zip(*passes, strict=True)]


def _mean(records: Records, last: int, metric: str) -> float | None:
    values = [record["metrics"][metric] for record in scored_last(records, last) if metric in record["metrics"]]
    return float(np.mean(values)) if values else None


PROTOCOLS: dict[str, Callable[[Records, int], float | None]] = {
    # "average local accuracy of all users in the last 10 rounds" (MpFedcon 5.2, FedRep): every client counts the same
    "last_rounds_client_mean": lambda records, last: _mean(records, last, "accuracy"),
    # the same, weighted by test samples, as the FedRep code prints it
    "last_rounds_weighted": lambda records, last: _mean(records, last, "accuracy_weighted"),
    # the server's model on the server's test set (FedAvg and its descendants)
    "global_test": lambda records, last: _mean(records, last, "global_accuracy"),
    "global_test_final": lambda records, last: _mean(records, 1, "global_accuracy"),
    # fairness across clients
    "worst_tenth": lambda records, last: _mean(records, last, "accuracy_worst_tenth"),
    "best_client": lambda records, last: _mean(records, last, "accuracy_best"),
    "client_std": lambda records, last: _mean(records, last, "accuracy_std"),
}
"""Evaluation protocols by name: records and the number of last rounds -> a share in [0, 1]; ``None``: does not apply."""
