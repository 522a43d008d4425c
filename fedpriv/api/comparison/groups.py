"""Runs that differ in their seeds alone, as a line of a table: mean, deviation, and the paired difference from another group."""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedpriv.api.comparison.comparability import contradictions, repeated
from fedpriv.api.comparison.gains import Difference, FinishedRun, paired_difference
from fedpriv.api.comparison.side_by_side import Comparison
from fedpriv.errors import UsageError
from fedpriv.scores.catalogue import Score, beside

if TYPE_CHECKING:
    from pandas import DataFrame

Row = Mapping[str, Any]
"""The :meth:`~fedpriv.api.comparison.stored.StoredRun.figures` of a run."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) over runs; ``None``: too few of them have the value."""

    mean: float | None
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self:
        known = [value for value in values if value is not None]
        return cls(statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True)
class Group:
    """The runs of one label.

    Attributes:
        score: that all runs are ranked by.
        runs: the names of all.
        repeated: of those that repeat another one, and so are not counted.
        unfinished: how many are not counted, as they are not finished.
        contradicted: whether runs with one seed have different results, so that there is no mean.
        rounds: of the shortest of the counted runs; ``None``: none is counted.
        averaged_rounds: over how many last rounds their scores are averaged (``eval.last``); ``None``: none is counted.
        counted, seeds, partitions: how many runs are counted, and how many seeds and partitions these have.
        value: of the score; each run's is the mean over its clients.
        usual: the same of the score that people read beside it (accuracy, or R2).
        worst_tenth, bytes_up, bytes_down: means over the counted runs.
        at_best: whether scores are those of each run's best round on validation data, and of no other round.
        against: the label of the group that differences are from; ``None``: it is the best group.
        pairs: how many of its runs have a partner in that group, with the same seed and clients; ``None``: this is that group.
        difference: the paired difference from that group; ``None``: this is that group, or a run of either has no partner: over
            the other seeds alone the difference may be another one.
    """

    label: str
    score: Score
    runs: tuple[str, ...]
    repeated: tuple[str, ...]
    unfinished: int
    contradicted: bool
    rounds: int | None
    averaged_rounds: int | None
    counted: int
    seeds: int
    partitions: int
    value: Spread
    usual: Spread
    worst_tenth: float | None
    bytes_up: float | None
    bytes_down: float | None
    at_best: bool
    against: str | None = None
    pairs: int | None = None
    difference: Difference | None = None

    @property
    def is_over_all_rounds(self) -> bool:
        """Whether the scores of a run are means over all its rounds, from round 1 on, and so not those that it ends at."""
        return self.rounds is not None and self.averaged_rounds is not None and 1 < self.rounds <= self.averaged_rounds


def groups(runs: Iterable[str | os.PathLike[str]], runs_dir: str | os.PathLike[str] = "runs") -> DataFrame:
    """Runs that differ in their seeds alone, in a table with a row for each such group, in the order of the runs.

    Columns are ``label``, ``score`` (that all runs are ranked by; accuracy, if these differ), ``rounds`` (of the shortest run),
    ``averaged_rounds`` (over how many last rounds a run's scores are averaged, config key ``eval.last``), ``at_best`` (whether
    they are those of its best round on validation data instead, as one of the runs has ``train.patience``), ``runs`` and
    ``seeds`` (how many finished ones are counted), ``mean`` and ``std`` of the score over them, the means of ``worst_tenth``,
    ``bytes_up`` and ``bytes_down``; and ``from_best``, the mean difference from the best group, with its paired 95 % interval
    ``low``, ``high``: over runs with the same seed and clients, or over the clients of a single run (``over``, ``count``). It is
    there only if each run of both groups has a partner in the other one (``pairs``). A share is a number from 0 to 1.

    Args:
        runs: as for :func:`fedpriv.compare`.

    Raises:
        UsageError: one of them is no run.
    """
    import pandas as pd

    from fedpriv.tracking import find_run

    folders = [find_run(os.fspath(run), Path(runs_dir)) for run in runs]
    return pd.DataFrame([as_row(group) for group in groups_between(Comparison(folders))])


def groups_between(compared: Comparison, against: str | None = None) -> list[Group]:
    """The groups of runs, in the order of their first runs.

    Args:
        against: as for :func:`reference_of`.

    Raises:
        UsageError: as :func:`reference_of`.
    """
    rows, named, score = compared.rows, compared.labels, compared.score
    members, by_label = dict[str, list[tuple[Row, bool]]](), dict[str, dict[Hashable, FinishedRun]]()
    for label, row, again in zip(named, rows, repeated(named, rows), strict=True):
        members.setdefault(label, []).append((row, again))
    for run in compared.finished.values():
        by_label.setdefault(run.label, {}).setdefault(run.same, run)
    contradicted = contradictions(named, rows)
    alone = [_group(label, score, of_label, label in contradicted) for label, of_label in members.items()]
    reference = reference_of(alone, against)
    if reference is None:
        return alone
    theirs = by_label.get(reference.label, {})
    chosen = None if against is None else reference.label

    def paired(group: Group) -> Group:
        ours = by_label.get(group.label, {})
        pairs = [(ours[same], theirs[same]) for same in ours if same in theirs and ours[same].differences(theirs[same])]
        whole = len(pairs) == len(ours) == len(theirs)
        return replace(group, pairs=len(pairs), difference=paired_difference(pairs) if whole else None)

    with_pairs = (group if group is reference or group.contradicted else paired(group) for group in alone)
    return [replace(group, against=chosen) for group in with_pairs]


def reference_of(alone: Sequence[Group], against: str | None = None) -> Group | None:
    """The group that differences are from; ``None``: no group has a mean.

    Args:
        against: its label, or a beginning that no other label has; ``None``: the first of those with the best mean score.

    Raises:
        UsageError: no label or several labels begin so, or its runs have no mean.
    """
    if against is not None:
        fitting = [group for group in alone if group.label == against] or [
            group for group in alone if group.label.startswith(against)
        ]
        if len(fitting) != 1:
            why = f"{len(fitting)} labels begin so" if fitting else "there is no such label"
            listed = ", ".join(shlex.quote(group.label) for group in fitting or alone)
            raise UsageError(f"--against {shlex.quote(against)}: {why}; choose one of {listed}")
        if fitting[0].value.mean is None:
            raise UsageError(f"--against {shlex.quote(against)}: its runs have no mean score to compare with")
        return fitting[0]
    known = [(group.score.merit(group.value.mean), group) for group in alone if group.value.mean is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _group(label: str, score: Score, members: Sequence[tuple[Row, bool]], contradicted: bool) -> Group:
    distinct = [row for row, again in members if not again]
    done = [row for row in distinct if row["status"] == "finished"]
    counted = [row for row in done if score.name in row["scores"]]
    used = [] if contradicted else counted
    seeds, partitions = (len({row[key] for row in counted}) for key in ("seed", "partition_hash"))
    worst, up, down = (Spread.of(row[key] for row in used).mean for key in ("worst_tenth", "bytes_up", "bytes_down"))
    return Group(
        label,
        score,
        tuple(row["run"] for row, _ in members),
        tuple(row["run"] for row, again in members if again),
        len(distinct) - len(done),
        contradicted,
        min((row["rounds"] for row in counted), default=None),
        max((row["averaged_rounds"] for row in counted), default=None),
        len(counted),
        seeds,
        partitions,
        Spread.of(row["scores"].get(score.name) for row in used),
        Spread.of(row["scores"].get(beside(score).name) for row in used),
        worst if all(row["metric"] == score.name for row in used) else None,  # else the worst clients are of another score
        up,
        down,
        any(row["best_round"] is not None for row in counted),
    )


def as_row(group: Group) -> dict[str, Any]:
    """A group as a row of a table; numbers that are not known are ``None``."""
    difference = dict.fromkeys(("mean", "low", "high", "over", "count")) if group.difference is None else asdict(group.difference)
    compared = {"from_best": difference.pop("mean")}
    if group.against is not None:
        compared = {"against": group.against, "difference": compared["from_best"]}
    return {
        "label": group.label,
        "score": group.score.name,
        "rounds": group.rounds,
        "averaged_rounds": group.averaged_rounds,
        "at_best": group.at_best,
        "runs": group.counted,
        "seeds": group.seeds,
        "mean": group.value.mean,
        "std": group.value.std,
        "worst_tenth": group.worst_tenth,
        "bytes_up": group.bytes_up,
        "bytes_down": group.bytes_down,
        "pairs": group.pairs,
        **compared,
        **difference,
    }
