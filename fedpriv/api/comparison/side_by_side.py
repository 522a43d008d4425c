"""Runs side by side, each of which is read once: their figures, labels, and what they are compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.api.comparison.comparability import labels
from fedpriv.api.comparison.gains import BASELINES, FinishedRun
from fedpriv.api.comparison.stored import StoredRun

if TYPE_CHECKING:
    from fedpriv.scores.catalogue import Score

_SAME = ("dataset", "data_hash", "partition_hash", "seed", "split", "rounds_allowed")
"""The figures in which two runs agree whose clients are compared one by one."""


class Comparison:
    """Runs that are compared.

    Args:
        named: the label of each run; ``None``: as of :func:`~fedpriv.api.comparison.comparability.labels`.
        at_best: as the attribute; ``None``: as the runs are.

    Attributes:
        at_best: whether runs are compared in their best rounds on validation data, and not in their last ones. By default they
            are if one of them has ``train.patience``, and each finished one has a best round.
        rows: the :meth:`~fedpriv.api.comparison.stored.StoredRun.figures` of each.
        labels: the label of each.
    """

    def __init__(self, folders: Sequence[Path], named: Sequence[str] | None = None, at_best: bool | None = None) -> None:
        self.runs = [StoredRun(folder) for folder in folders]
        self.at_best = self._have_best_rounds() if at_best is None else at_best
        self.rows = [run.figures(self.at_best) for run in self.runs]
        self.labels = labels(self.runs, self.rows) if named is None else named

    def _have_best_rounds(self) -> bool:
        if all(run.config.train.patience is None for run in self.runs):
            return False
        return all("best" in run.summary for run in self.runs if run.is_finished)

    @cached_property
    def score(self) -> Score:
        """The score that all runs are ranked by; accuracy if these differ."""
        from fedpriv.scores.catalogue import ACCURACY, score_named

        names = {row["metric"] for row in self.rows}
        return score_named(names.pop()) if len(names) == 1 else ACCURACY

    @cached_property
    def finished(self) -> dict[int, FinishedRun]:
        """The finished runs that were tested, by their place among the runs."""
        return {
            place: FinishedRun(
                label,
                run.config.method.name,
                tuple(row[key] for key in _SAME),
                run.scores(self.at_best)[self.score.name].per_client,
                run.compared_keys,
                _trained(run.compared_keys, run.config.method.name),
            )
            for place, (run, row, label) in enumerate(zip(self.runs, self.rows, self.labels, strict=True))
            if row["status"] == "finished" and self.score.name in row["scores"]
        }


def _trained(config: Mapping[str, str], method: str) -> str:
    """How long a client trains in a round, all phases together: ``5 epochs``; with ``train.local_steps`` in steps."""
    local, steps, given = (config.get(key, "None") for key in ("train.local_epochs", "train.local_steps", "method.epochs"))
    if method not in BASELINES:
        further = int(config.get("method.head_epochs", 0))
    else:
        further = 10 if given == "None" and steps == "None" else 0
        local, steps = (local, steps) if given == "None" else (given, "None")
    epochs = further + (int(local) if steps == "None" else 0)
    amounts = [] if epochs == 0 else [f"{epochs} epoch{'s' * (epochs > 1)}"]
    return " and ".join([*amounts, *([] if steps == "None" else [f"{steps} step{'s' * (steps != '1')}"])])
