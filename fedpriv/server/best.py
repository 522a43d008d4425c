"""The best round of a run on validation data, and when a run has waited long enough for a better one.

Both follow from the records of the rounds alone, so a resumed run has the same best round, and ends with the same one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.methods.base import Method
from fedpriv.scores.catalogue import ACCURACY, Score, score_named
from fedpriv.storage.records import Record


class BestRound:
    """Follows the clients' mean of ``eval.metric`` over the rounds.

    Of two rounds with equal scores the earlier one is the better one. An evaluation in which the score is not defined is no
    better than any other.

    Attributes:
        round: the best round so far; ``None``: there is none, or clients are scored on test data, which choose nothing.
        waited: evaluations since then.
    """

    def __init__(self, config: RunConfig) -> None:
        self._score = score_of(config)
        self._patience = config.train.patience
        self._chooses = config.eval.split == "validation"
        self._value: float | None = None
        self.round: int | None = None
        self.waited = 0

    def observe(self, record: Record) -> None:
        """Take the record of the next round into account."""
        if not (self._chooses and record.get("per_client")):
            return
        value = record["metrics"].get(self._score.name, math.nan)
        if math.isnan(value) or not (self._value is None or self._score.merit(value) > self._score.merit(self._value)):
            self.waited += 1
        else:
            self._value, self.round, self.waited = value, record["round"], 0

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the run ends here, as ``train.patience`` says."""
        return self._patience is not None and self.waited >= self._patience


def score_of(config: RunConfig) -> Score:
    """The score that a run is ranked by."""
    return score_named(config.eval.metric or ACCURACY.name)


def best_of(records: Sequence[Record], config: RunConfig) -> int | None:
    """The best round of these records; ``None``: there is none."""
    best = BestRound(config)
    for record in records:
        best.observe(record)
    return best.round


def check_patience(config: RunConfig, method: Method) -> None:
    """Check that the evaluations of a run with ``train.patience`` say which round is better.

    Raises:
        UsageError: clients are not scored, or the models before the last rounds are tested otherwise.
    """
    if config.train.patience is None:
        return
    if not method.objective.labels:
        raise UsageError(
            f"train.patience waits for a better {score_of(config).title}; objective {method.objective.name} has none"
        )
    if method.tested_from > 1:
        raise UsageError(
            f"train.patience: method {method.name} tests its whole protocol from round {method.tested_from} on only, so earlier "
            "rounds do not compare; leave it out"
        )
