"""What federation gains over clients that train alone, and loses against training on pooled data, with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.evaluation.intervals import mean_interval
from fedpriv.scores.catalogue import ACCURACY, Score

Baseline = Literal["local", "pooled"]
BASELINES: tuple[Baseline, ...] = ("local", "pooled")
_EPOCHS = "method.epochs"
"""Key of a baseline: for how many epochs a client trains in a round."""
_OWN = ("method.", "objective.", "aggregation.", "train.local_epochs", "train.local_steps")
"""Config keys in which a method and a baseline are meant to differ, or which count together with those of the method."""


@dataclass(frozen=True)
class FinishedRun:
    """What a finished run is compared by.

    Attributes:
        label: of the runs that differ in their seeds alone, as in the table of runs.
        same: what two runs have in common whose clients are compared one by one: data, partition, seed, rounds (of a run that
            ``train.patience`` ended, the rounds it could have run).
        values: the compared score of each client; ``None`` for one that was not tested.
        config: the compared keys.
        trained: how long a client trained in a round, such as ``5 epochs``.
    """

    label: str
    method: str
    same: Hashable
    values: Sequence[float | None]
    config: Mapping[str, str]
    trained: str = ""

    def differences(self, other: FinishedRun) -> list[float]:
        """The score minus that in another run with the same clients, of each client that has one in both."""
        both = zip(self.values, other.values, strict=True)
        return [mine - theirs for mine, theirs in both if mine is not None and theirs is not None]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences of a score.

    Attributes:
        mean: over the clients, and over the runs.
        low, high: its 95 % interval (Student's t): over runs with different seeds or partitions, or over the clients of a single
            one; ``None``: there is only one of these.
        over: what the interval is over.
        count: the number of these.
    """

    mean: float
    low: float | None
    high: float | None
    over: Literal["clients", "runs"]
    count: int

    def interval(self, score: Score) -> str:
        """``95 %: -1.2 to +0.3, over 3 runs``, or that there is none."""
        if self.low is None or self.high is None:
            return f"a single {self.over[:-1]}, so without an interval"
        return f"95 %: {signed(score, self.low)} to {signed(score, self.high)}, over {self.count} {self.over}"


@dataclass(frozen=True)
class Gain:
    """The score of federated runs minus that of a baseline, of the same clients.

    Attributes:
        score: which; of an error, such as the Brier score, less is better.
        label, method: of the federated runs.
        baseline: the method of the baseline.
        baseline_label: the label of its runs.
        paired: the difference.
        unpaired: runs of the two labels that have no partner, and do not count.
        differ: config keys in which the runs differ, besides those of the method; ``method.epochs`` of the baseline among them,
            if a client did not train as long in a round.
        trained: how long it did in the federated run, and in the baseline, such as ``5 epochs``.
    """

    score: Score
    label: str
    method: str
    baseline: Baseline
    baseline_label: str
    paired: Difference
    unpaired: int
    differ: tuple[str, ...]
    trained: tuple[str, str]

    def __str__(self) -> str:
        """A line; of shares, in percentage points."""
        others = [key for key in self.differ if key != _EPOCHS]
        also = ""
        if _EPOCHS in self.differ:
            ours, theirs = self.trained
            also += f"; {self.baseline} trained {theirs} a round, {self.method} {ours} ({_EPOCHS})"
        also += f"; they also differ in {', '.join(others[:3])}{', ...' * (len(others) > 3)}" if others else ""
        verb = "over" if self.baseline == "local" else "against"
        what = " points" if self.score.in_percent else ""
        named = "" if self.score is ACCURACY else f" {self.score.title}"
        named += "" if self.score.higher_is_better else ", of which less is better"
        difference = f"{signed(self.score, self.paired.mean)}{what}{named}"
        left_out = f"; {self.unpaired} run{'s' * (self.unpaired > 1)} without a partner left out" if self.unpaired else ""
        return f"{self.label} {verb} {self.baseline_label}: {difference} ({self.paired.interval(self.score)}{left_out}){also}"


def signed(score: Score, value: float) -> str:
    """A difference of a score with its sign; of shares, in percentage points."""
    if score.of_numbers:
        return f"{'-' if value < 0 else '+'}{score.shown(abs(value))}"
    return f"{100 * value:+.1f}" if score.in_percent else f"{value:+.3f}"


def gains_of(runs: Sequence[FinishedRun], score: Score = ACCURACY) -> Iterator[Gain]:
    """The gains of each label of federated runs over each label of a baseline (below 0: a loss).

    Runs of a label that repeat each other count once.

    Args:
        score: that the runs are compared by.
    """
    by_label: dict[str, dict[Hashable, FinishedRun]] = {}
    for run in runs:
        by_label.setdefault(run.label, {}).setdefault(run.same, run)
    for ours in by_label.values():
        if next(iter(ours.values())).method in BASELINES:
            continue
        for baseline in BASELINES:
            for theirs in by_label.values():
                pairs = [(ours[same], theirs[same]) for same in ours if same in theirs and theirs[same].method == baseline]
                unpaired = len(ours) + len(theirs) - 2 * len(pairs)
                if pairs and (gain := gain_of(pairs, baseline, score, unpaired)) is not None:
                    yield gain


def gain_of(pairs: Sequence[tuple[FinishedRun, FinishedRun]], baseline: Baseline, score: Score, unpaired: int = 0) -> Gain | None:
    """The gain of runs of one label over those of another; ``None``: no client has the score in both.

    Args:
        pairs: a federated run and a run of the baseline each, at least one.
        unpaired: how many runs have no partner.
    """
    if (paired := paired_difference(pairs)) is None:
        return None
    ours, theirs = pairs[0]
    keys = sorted(ours.config.keys() | theirs.config.keys())
    differ = tuple(key for key in keys if ours.config.get(key) != theirs.config.get(key) and not key.startswith(_OWN))
    if ours.trained != theirs.trained:
        differ = (_EPOCHS, *differ)
    trained = (ours.trained, theirs.trained)
    return Gain(score, ours.label, ours.method, baseline, theirs.label, paired, unpaired, differ, trained)


def paired_difference(pairs: Sequence[tuple[FinishedRun, FinishedRun]]) -> Difference | None:
    """The score of the first run of each pair minus that of the second; ``None``: no client has it in both."""
    by_run = [differences for ours, theirs in pairs if (differences := ours.differences(theirs))]
    if not by_run:
        return None
    over: Literal["clients", "runs"] = "clients" if len(by_run) == 1 else "runs"
    values = by_run[0] if over == "clients" else [statistics.fmean(differences) for differences in by_run]
    low, high = mean_interval(values) if len(values) > 1 else (None, None)
    return Difference(statistics.fmean(values), low, high, over, len(values))
