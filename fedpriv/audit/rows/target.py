"""The target of an attack on rows of a table: messages of a run, with the true rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.row_attempts import RowAttempt, Rows
from fedpriv.attacks.lab.same_net import rows_on_same_net
from fedpriv.attacks.lab.trial import Attacker, Mounted, NotTried, Trial, difference_reasons
from fedpriv.attacks.scoring.row_scores import BY_CHANCE, in_order, right_cells, typical_row
from fedpriv.audit.images.target import Doubts, Source, granted, hidden_layers, unexplained
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.rows.figures import by_chance
from fedpriv.errors import UsageError

CONSTANT, OTHERS = "most frequent values", "other rows"
"""Guesses made without a message: the same row each time, whose cells are right as often as those of any; and rows that no client
trained on, matched as those of an attack."""
CANDIDATES = 300
"""Public rows whose cells are tried as the most frequent values."""


@dataclass(frozen=True, kw_only=True)
class Target(Doubts, Rows):
    """The messages to attack, and the truth behind them.

    Attributes:
        title: a description for tables.
        hidden: whether the last layer was not sent.
        statistics: statistics of the messages that are gradients, by name, each a target of its own.
        public: rows that no client trained on ``(m, F)``, for the guesses; empty where there are none.
        count: number of messages.
        seed: draws the guess of other rows.
    """

    title: str
    count: int
    public: Tensor
    hidden: bool = False
    statistics: Mapping[str, Target] = field(default_factory=dict)
    seed: int = 0

    def messages(self, attacker: Attacker[RowAttack]) -> list[list[Observation]]:
        """See :meth:`fedpriv.attacks.lab.trial.Task.messages`."""
        try:
            return super().messages(attacker)
        except UsageError as error:
            raise NotTried(Reason("does not apply", str(error))) from None

    def judge(self, attacker: Attacker[RowAttack], mounted: Mounted[RowReconstruction], trial: Trial) -> RowAttempt:
        """The scores, and :meth:`with_doubts`."""
        attempt = self.with_doubts(super().judge(attacker, mounted, trial), trial)
        return attempt if mounted.reach is None else replace(attempt, reasons=difference_reasons([mounted.reach.text]))

    def failed(self, attempt: RowAttempt) -> bool:
        """See :meth:`fedpriv.audit.images.target.Doubts.failed`."""
        if attempt.scores is None or attempt.sure is None:
            return True
        hits = attempt.scores.hits
        more_rows = attempt.sure.successes > 0 and not any(guess.all() for guess in self.guesses().values())
        more_cells = all(hits.sum() > guess.sum() for guess in self.guesses().values())
        return not more_rows and not (more_cells and by_chance(hits, self.guesses()) <= BY_CHANCE)

    @property
    def constant(self) -> Tensor:
        """The row ``(F,)`` whose cells are right as often as those of any, by public rows; without these, of means and modes."""
        row = typical_row(self.encoding).to(self.rows)
        if len(self.public):
            public = self.public.to(self.rows)
            hits = torch.stack([right_cells(each, public, self.encoding).sum(0) for each in public[:CANDIDATES]])  # (m, K)
            for at, best in zip(self.encoding.entries, hits.argmax(0).tolist(), strict=True):
                row[at] = public[best, at]
        return row

    @property
    def others(self) -> Tensor:
        """See :attr:`Rows.others`: public rows where there are any."""
        return self.public.to(self.rows) if len(self.public) else super().others

    def guesses(self) -> dict[str, Tensor]:
        """Which cells guesses have right ``(n, K)``, by name."""
        drawn = {CONSTANT: self.constant.expand_as(self.rows)}
        if len(self.public):
            generator = torch.Generator().manual_seed(self.seed)
            others = self.public[torch.randint(len(self.public), (len(self.rows),), generator=generator)].to(self.rows)
            drawn[OTHERS], _ = in_order(others, self.rows, self.encoding, self.count)
        return {name: right_cells(rows, self.rows, self.encoding) for name, rows in drawn.items()}

    def first(self, count: int) -> Target:
        """The first messages, each on one row."""
        return replace(
            self,
            title=f"{self.title} (1 to {count})" if count < self.count else self.title,
            count=count,
            rows=self.rows[:count],
            labels=self.labels[:count],
            observe=lambda threat: self.observe(threat)[:count],
        )


def message(record: Record, round: int, client: int) -> Target:
    """A client's real upload in a round."""
    rows, labels = record.rows(client), record.labels(client)
    title = f"round {round}, client {client} of {record.name}: {len(rows)} training rows"
    return of_messages(record, title, [record.message(round, client)], rows, labels)


def of_messages(record: Record, title: str, messages: Sequence[Message], rows: Tensor, labels: Tensor) -> Target:
    """Messages, each of which stands for the same number of the rows ``(n, F)``."""

    def target(what: str, hidden: bool) -> Target:
        return _of_source(Source(record, messages, what), title, rows, labels, hidden)

    hidden, statistics = bool(hidden_layers(record.observation(messages[0], ThreatModel()))), dict[str, Target]()
    for what in record.gradients(messages[0]):
        try:
            its = bool(hidden_layers(record.observation(messages[0], ThreatModel(), what)))
        except UsageError:  # every attack on it will say so
            its = hidden
        statistics[what] = target(what, its)
    return replace(target("", hidden), statistics=statistics)


def _of_source(source: Source, title: str, rows: Tensor, labels: Tensor, hidden: bool) -> Target:
    record, first = source.record, source.messages[0]
    assert record.encoding is not None, "its samples are rows of a table"
    steps = record.steps_behind(first, source.what) if source.what else None
    is_mean = steps is not None and steps.steps > 1  # read as the gradient of one step

    public = record.public_rows()
    labelled = record.server_labels().cpu()[: len(public)] if len(public) else None

    def observe(threat: ThreatModel) -> list[Observation]:
        seen = [source.read(message, threat) for message in source.messages]
        return granted(seen, (None, None) if labelled is None or len(labelled) < len(public) else (public, labelled))

    @cache
    def doubt(one_step: bool) -> str | None:
        return unexplained(source, rows, labels, one_step, is_mean)

    @cache
    def control(attacker: Attacker[RowAttack]) -> Control | None:
        # In place of private layers that were not kept, those that every client began with: any are as good for this.
        weights = source.started(first) or source.started(replace(first, first_update=True))
        if weights is None:
            return None
        return rows_on_same_net(attacker.attack, observe(attacker.threat)[0], weights, record.seed, steps)

    return Target(
        rows, labels, record.encoding, observe, title=title, count=len(source.messages), public=public,
        hidden=hidden, seed=record.seed, doubt=partial(doubt, is_mean), doubt_of_one_step=partial(doubt, True),
        doubts_all=record.declared, on_same_net=control,
    )  # fmt: skip
