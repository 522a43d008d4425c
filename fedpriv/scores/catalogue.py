"""Which scores there are: of what task, whether higher is better, and in what range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.errors import UsageError

Scores = Mapping[str, float]
"""Score -> value. A score that is not defined on the samples, such as the ROC AUC where all have one class, is left out."""


@dataclass(frozen=True)
class Score:
    """A number that says how good predictions are.

    Attributes:
        name: its key in records, and its value of ``eval.metric``.
        title: what people call it.
        two_classes: whether it needs exactly two classes; the second one is the positive one.
        higher_is_better: ``False``: it is an error.
        low, high: its range.
        in_percent: whether people read it as a share of the samples.
        of_numbers: whether it is of predicted numbers; else it is of classes.
    """

    name: str
    title: str
    two_classes: bool = False
    higher_is_better: bool = True
    low: float = 0.0
    high: float = 1.0
    in_percent: bool = False
    of_numbers: bool = False

    def merit(self, value: float) -> float:
        """The value with a sign by which more is better."""
        return value if self.higher_is_better else -value

    def shown(self, value: float | None) -> str:
        """A value for people: ``71.3%``, ``0.780`` or, without an upper end, ``48,200``; ``-``: not measured."""
        if value is None:
            return "-"
        if self.high == math.inf:
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}"
        return f"{value:.1%}" if self.in_percent else f"{value:.3f}"


ACCURACY = Score("accuracy", "accuracy", in_percent=True)
BALANCED_ACCURACY = Score("balanced_accuracy", "balanced accuracy", in_percent=True)
RMSE = Score("rmse", "RMSE", higher_is_better=False, high=math.inf, of_numbers=True)
R2 = Score("r2", "R2", low=-math.inf, of_numbers=True)

SCORES: Mapping[str, Score] = {
    score.name: score
    for score in (
        ACCURACY,
        BALANCED_ACCURACY,
        Score("f1_macro", "macro F1"),
        Score("roc_auc", "ROC AUC", two_classes=True),
        Score("average_precision", "average precision", two_classes=True),
        Score("recall", "recall", two_classes=True, in_percent=True),
        Score("brier", "Brier score", two_classes=True, higher_is_better=False),
        Score("calibration_error", "calibration error", two_classes=True, higher_is_better=False),
        RMSE,
        Score("mae", "MAE", higher_is_better=False, high=math.inf, of_numbers=True),
        Score("mse", "MSE", higher_is_better=False, high=math.inf, of_numbers=True),
        R2,
    )
}
"""All scores by name. ``docs/reference/scores.md`` has their definitions."""

SUMMARIES = ("weighted", "worst_tenth", "best", "std", "pooled")
"""Summaries over the clients, which follow a score's name in records; the name alone is the mean over the clients."""


IMBALANCED = 2 / 3
"""Where a class has a larger share of the clients' training labels, runs are ranked by balanced accuracy unless told otherwise:
always that class would already be right in two of three samples."""


def beside(score: Score) -> Score:
    """The score that people read beside the one by which runs are ranked, if it is another one: the accuracy, or R2."""
    return R2 if score.of_numbers else ACCURACY


def score_named(name: str) -> Score:
    """The score of a name, as ``eval.metric`` has it; :class:`UsageError` if there is none."""
    if name not in SCORES:
        raise UsageError(f"eval.metric {name!r} is no score; there are {', '.join(SCORES)}")
    return SCORES[name]


def usual_score(counts: Sequence[int]) -> Score:
    """The score that runs are ranked by if none is named, given how many training labels the clients have of each class."""
    return BALANCED_ACCURACY if max(counts) > IMBALANCED * sum(counts) else ACCURACY
