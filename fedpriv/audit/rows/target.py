"""The target of an attack on rows of a table: messages of a run, with the true rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack
from fedpriv.attacks.lab.row_attempts import RowAttempt, Rows
from fedpriv.attacks.lab.same_net import rows_on_same_net
from fedpriv.attacks.scoring.row_scores import BY_CHANCE, in_order, right_cells, typical_row
from fedpriv.audit.doubts import Doubts, Source, with_statistics, with_truth
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.rows.figures import by_chance

CONSTANT, OTHERS = "most frequent values", "other rows"
"""Guesses made without a message: one row for all, whose cells are right as often as possible; and rows that no client trained
on, matched to the true ones as an attack's rows are."""
CANDIDATES = 300
"""Public rows whose cells are tried as the most frequent values."""


@dataclass(frozen=True, kw_only=True)
class Target(Doubts[RowAttack, RowAttempt], Rows):
    """The messages to attack, and the truth behind them.

    Attributes:
        hidden: whether the last layer was not sent.
        public: rows that no client trained on ``(m, F)``, for the guesses; empty where there are none.
        count: number of messages.
        seed: draws the guess of other rows.
    """

    count: int
    public: Tensor
    hidden: bool = False
    seed: int = 0

    def failed(self, attempt: RowAttempt) -> bool:
        if attempt.scores is None or attempt.sure is None:
            return True
        hits = attempt.scores.hits
        more_rows = attempt.sure.successes > 0 and not any(guess.all() for guess in self.guesses().values())
        more_cells = all(hits.sum() > guess.sum() for guess in self.guesses().values())
        return not more_rows and not (more_cells and by_chance(hits, self.guesses()) <= BY_CHANCE)

    @property
    def constant(self) -> Tensor:
        """The row ``(F,)`` whose cells are most often right in public rows; without these, of means and most frequent levels."""
        row = typical_row(self.encoding).to(self.rows)
        if len(self.public):
            public = self.public.to(self.rows)
            hits = torch.stack([right_cells(each, public, self.encoding).sum(0) for each in public[:CANDIDATES]])  # (m, K)
            for at, best in zip(self.encoding.entries, hits.argmax(0).tolist(), strict=True):
                row[at] = public[best, at]
        return row

    @property
    def others(self) -> Tensor:
        """Public rows where there are any; else those of :class:`Rows`."""
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

    assert record.encoding is not None, "its samples are rows of a table"
    encoding, public = record.encoding, record.public_rows()
    own_labels = record.server_labels().cpu()[: len(public)] if len(public) else None
    reference = (None, None) if own_labels is None or len(own_labels) < len(public) else (public, own_labels)

    def target(source: Source, hidden: int) -> Target:
        bare = Target(
            rows, labels, encoding, source.observe, title=title, count=len(messages), public=public, hidden=bool(hidden),
            seed=record.seed,
        )  # fmt: skip
        return with_truth(bare, source, rows, labels, rows_on_same_net)

    return with_statistics(Source(record, messages, reference), target)
