"""What a run cost, and how good its model is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.scores.catalogue import SCORES, score_named


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run cost: accuracies in [0, 1], bytes and seconds of the whole run; ``None``: not measured.

    Attributes:
        metric: the score that the run is ranked by (``eval.metric``), and ``score`` its value if it is not the accuracy.
        averaged_rounds: scores are means over so many last rounds; ``last_round``: the score that the run is ranked by, in the
            last round alone.
        worst_tenth: accuracy of the worst tenth of the clients; of predicted numbers, the score that the run is ranked by.
        chance: accuracy of the best constant answer; ``at_chance``: the model is no better, within its 95 % interval,
            by the score that it is ranked by.
        probes: results of ``fedpriv probe``.
        against: name of the audited run without defences that is otherwise the same; ``against_at_chance``: whether that run is
            at chance; ``accuracy_difference``, ``score_difference``, ``bytes_up_ratio``: the differences from it, and the ratio.
    """

    accuracy: float | None = None
    worst_tenth: float | None = None
    chance: float | None = None
    at_chance: bool = False
    bytes_up: int
    bytes_down: int | None = None
    seconds: float | None = None
    probes: tuple[ProbeResult, ...] = ()
    against: str | None = None
    against_at_chance: bool | None = None
    accuracy_difference: float | None = None
    bytes_up_ratio: float | None = None
    metric: str = "accuracy"
    score: float | None = None
    score_difference: float | None = None
    averaged_rounds: int = 1
    last_round: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in SCORES:  # an audit may come from elsewhere
            raise ValueError(f"{self.metric!r} is no score")

    @property
    def ranked(self) -> float | None:
        """The score that the run is ranked by."""
        return self.accuracy if self.metric == "accuracy" else self.score

    @property
    def merit(self) -> float:
        """By which runs are ranked, more is better; minus infinity: not measured."""
        return -math.inf if self.ranked is None else score_named(self.metric).merit(self.ranked)


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy of a linear classifier on the run's encoder, trained on a ``fraction`` of the labels of ``dataset``."""

    fraction: float
    dataset: str
    accuracy: float
