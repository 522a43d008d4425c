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

    def answer(self, question: Sealed) -> Sealed:
        """The levels of some columns that it may name, or its statistics.

        Raises:
            Refused: the message is no such question.
            UsageError: the question is about columns that it has not, or a number is too large to be summed.
        """
        if question.kind == "columns":
            columns = read_text(question, "columns", None, tuple[str, ...])
            return text_message("levels", self.number, self.rows.levels(columns))
        inquiry = read_text(question, "inquiry", None, Inquiry)
        return seal(Payload(self.rows.totals(inquiry).tensors(), 0, self.number, "statistics"))
