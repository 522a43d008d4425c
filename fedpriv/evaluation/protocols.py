"""Evaluation protocols: summaries of the clients' accuracies in one round, and over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpriv.scores.catalogue import ACCURACY, SCORES, Score, Scores

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Confusion: TypeAlias = "NDArray[np.int64] | csr_array"
"""Numbers of samples by true class (row) and predicted class (column) ``(C, C)``; sparse for many classes."""

MOST_CLASSES = 500
"""Largest number of classes for which confusion matrices are dense."""
Records = Sequence[Mapping[str, Any]]
"""The records in ``metrics.jsonl``, in the order of rounds."""


def _known(accuracies: Sequence[float | None]) -> list[float]:
    return sorted(value for value in accuracies if value is not None and not math.isnan(value))


def mean(accuracies: Sequence[float | None]) -> float | None:
    """Mean over the clients that were evaluated; ``None`` if none was."""
    known = _known(accuracies)
    return math.fsum(known) / len(known) if known else None


def worst_tenth(values: Sequence[float | None], score: Score = ACCURACY) -> float | None:
    """Mean over the worst tenth of the evaluated clients (rounded down, but at least one client)."""
    known = _known(values)
    tenth = max(1, len(known) // 10)
    return mean(known[:tenth] if score.higher_is_better else known[-tenth:])


def best(values: Sequence[float | None], score: Score = ACCURACY) -> float | None:
    """The best client's value."""
    known = _known(values)
    return (known[-1] if score.higher_is_better else known[0]) if known else None


def client_summary(values: Sequence[float | None], sizes: Sequence[int], score: Score = ACCURACY) -> dict[str, float]:
    """Summarise a score of the clients in one round.

    Args:
        values: of each client; ``None``: it has no test data, or the score is not defined on them.
        sizes: the clients' numbers of test samples, or of training samples if test samples belong to several clients.

    Returns:
        Of accuracy, ``accuracy`` (unweighted mean over clients), ``accuracy_weighted`` (by these sizes), and for fairness
        ``accuracy_worst_tenth`` (mean of the worst tenth of the clients), ``accuracy_best``, ``accuracy_std``.
    """
    known = [(value, size) for value, size in zip(values, sizes, strict=True) if value is not None]
    column, weights = (np.array(part, dtype=np.float64) for part in zip(*known, strict=True))
    name = score.name
    return {
        name: float(column.mean()),
        f"{name}_weighted": float(np.average(column, weights=weights)),
        f"{name}_worst_tenth": worst_tenth(column.tolist(), score) or 0.0,
        f"{name}_best": best(column.tolist(), score) or 0.0,
        f"{name}_std": float(column.std()),
    }


PerClient = dict[str, list[float | None]]
"""Score -> its value of each client; ``None``: the client was not tested, or the score is not defined on its samples."""


def by_client(
    clients: Sequence[Scores | None], sizes: Sequence[int], usual: Score = ACCURACY
) -> tuple[dict[str, float], PerClient]:
    """The summaries of all scores over the clients, and the scores themselves.

    Args:
        clients: the scores of each; ``None``: it was not tested.
        sizes: as for :func:`client_summary`.
        usual: a score that is there even if no client was tested.

    A score of the user's own has no worst and best clients, as it is not known which of its values are better.
    """
    summaries, columns = dict[str, float](), PerClient()
    for name in measured([usual.name], *(scores for scores in clients if scores is not None)):
        columns[name] = column = [None if scores is None else scores.get(name) for scores in clients]
        if column.count(None) < len(column):
            score = SCORES.get(name, Score(name, name))
            values = client_summary(column, sizes, score)
            summaries |= values if name in SCORES else {key: values[key] for key in (name, f"{name}_weighted", f"{name}_std")}
    return summaries, columns


def measured(*scores: Iterable[str]) -> list[str]:
    """The names of scores that occur: fedpriv's in their order, then the user's own."""
    names = dict.fromkeys(name for each in scores for name in each)
    return [*(name for name in SCORES if name in names), *(name for name in names if name not in SCORES)]


def confusion_of(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Confusion:
    """The confusion matrix of the true and the predicted classes ``(N,)``; its memory is linear in N for many classes."""
    if classes <= MOST_CLASSES:
        return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(labels), np.int64), (labels, predicted)), shape=(classes, classes))


def per_class(confusion: Confusion) -> dict[str, NDArray[np.float64]]:
    """``precision``, ``recall`` and ``f1`` of each class ``(C,)``, shares in [0, 1].

    0 / 0 counts as 0: the precision of a class that is never predicted, the recall of a class without samples.

    Args:
        confusion: as of :func:`confusion_of`.
    """
    right, true, predicted = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    return {
        "precision": right / np.maximum(predicted, 1),
        "recall": right / np.maximum(true, 1),
        "f1": 2 * right / np.maximum(true + predicted, 1),
    }


def global_summary(confusion: Confusion) -> dict[str, float]:
    """Precision, recall and F1 of the global model over its classes, as scikit-learn averages them (``zero_division=0``).

    Args:
        confusion: as for :func:`per_class`.

    Returns:
        ``global_precision_macro``, ``global_recall_macro``, ``global_f1_macro`` (unweighted mean over the classes that occur in
        the labels or in the predictions) and the same as ``..._weighted`` (by the classes' samples; the recall is then the
        accuracy).
    """
    true, occurs = confusion.sum(axis=1), confusion.sum(axis=1) + confusion.sum(axis=0) > 0
    summary = {}
    for name, values in per_class(confusion).items():
        summary[f"global_{name}_macro"] = float(values.sum() / max(1, occurs.sum()))
        summary[f"global_{name}_weighted"] = float(values @ true / max(1, true.sum()))
    return summary


def scored_last(records: Records, last: int) -> list[Mapping[str, Any]]:
    """The records of the last ``last`` rounds in which clients were tested."""
    rounds = max((record["round"] for record in records), default=0)
    return [r for r in records if r["round"] > rounds - last and r.get("per_client")]


def mean_per_client(records: Records, last: int, score: str = "accuracy") -> list[float | None]:
    """Each client's accuracy, or another score, averaged over the evaluated of the last ``last`` rounds."""
    passes = [record["per_client"][score] for record in scored_last(records, last) if record["per_client"].get(score)]
    return [None if None in column else float(np.mean(column)) for column in zip(*passes, strict=True)]


@dataclass(frozen=True)
class ScoreSummary:
    """A score over the last rounds of a run; ``None``: it was not measured, or is not defined.

    Attributes:
        mean: over the clients; ``weighted``: by their sizes.
        worst_tenth, best, std: of each client's mean over the rounds.
        pooled: of all clients' test predictions together; only in simulations.
        on_server: of the server's model on its own test set.
        per_client: of each client.
    """

    mean: float | None
    weighted: float | None
    worst_tenth: float | None
    best: float | None
    std: float | None
    pooled: float | None
    on_server: float | None
    per_client: list[float | None]


def score_summaries(records: Records, last: int) -> dict[str, ScoreSummary]:
    """The scores that the last ``last`` rounds have, by name."""
    summaries = {}
    for name in measured(SCORES, *((record.get("per_client") or {}) for record in records)):
        clients, score = mean_per_client(records, last, name), SCORES.get(name)
        names = {"mean": name, "weighted": f"{name}_weighted", "pooled": f"{name}_pooled", "on_server": f"global_{name}"}
        means = {key: _mean(records, last, metric) for key, metric in names.items()}
        if mean(clients) is not None or means["on_server"] is not None:
            worst, top = (None, None) if score is None else (worst_tenth(clients, score), best(clients, score))
            summaries[name] = ScoreSummary(**means, worst_tenth=worst, best=top, std=_std(clients), per_client=clients)
    return summaries


def _mean(records: Records, last: int, metric: str) -> float | None:
    values = [record["metrics"][metric] for record in scored_last(records, last) if metric in record["metrics"]]
    return float(np.mean(values)) if values else None


def _std(accuracies: Sequence[float | None]) -> float | None:
    known = _known(accuracies)
    return float(np.std(known)) if known else None


PROTOCOLS: dict[str, Callable[[Records, int], float | None]] = {
    # "average local accuracy of all users in the last 10 rounds" (MpFedcon 5.2, FedRep): every client counts the same
    "last_rounds_client_mean": lambda records, last: _mean(records, last, "accuracy"),
    # the same, weighted by the clients' sizes, as the FedRep code prints it
    "last_rounds_weighted": lambda records, last: _mean(records, last, "accuracy_weighted"),
    # the server's model on the server's test set (FedAvg and its descendants)
    "global_test": lambda records, last: _mean(records, last, "global_accuracy"),
    "global_test_final": lambda records, last: _mean(records, 1, "global_accuracy"),
    "global_test_f1": lambda records, last: _mean(records, last, "global_f1_macro"),
    # after `eval.fresh_head` more epochs of each client's head; the last round alone is tested so
    "fresh_head": lambda records, last: _mean(records, 1, "accuracy_fresh_head"),
    # of the models that clients send, as the clients trained them (`eval.before_merge`)
    "before_merge": lambda records, last: _mean(records, last, "accuracy_before_merge"),
    "global_before_merge": lambda records, last: _mean(records, last, "global_accuracy_before_merge"),
    # fairness across clients, of each client's accuracy averaged over the rounds
    "worst_tenth": lambda records, last: worst_tenth(mean_per_client(records, last)),
    "best_client": lambda records, last: best(mean_per_client(records, last)),
    "client_std": lambda records, last: _std(mean_per_client(records, last)),
}
"""Evaluation protocols by name: records and the number of last rounds -> a share in [0, 1]; ``None``: does not apply."""
