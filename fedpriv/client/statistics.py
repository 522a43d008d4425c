"""A client's part in the statistics of all training rows, before round 1."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.messages import read_text, text_message
from fedpriv.data.statistics.totals import Inquiry
from fedpriv.wire import Payload, Sealed, seal


@dataclass(frozen=True, eq=False)
class Respondent:
    """A client that is asked for statistics of its training rows (:mod:`fedpriv.data.statistics.messages`)."""

    number: int
    rows: TrainingRows

    def levels(self) -> Sealed:
        """The levels of its columns of categories that may be named."""
        return text_message("levels", self.number, self.rows.levels())

    def answer(self, question: Sealed) -> Sealed:
        """Its statistics.

        Raises:
            Refused: the question is no inquiry, or is about columns that it has not.
            UsageError: a number is too large to be summed.
        """
        inquiry = read_text(question, "inquiry", None, Inquiry)
        return seal(Payload(self.rows.totals(inquiry).tensors(), 0, self.number, "statistics"))
