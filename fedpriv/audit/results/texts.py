"""Results of attacks on texts: scores of sentences and tokens, examples, and what leaks where sentences cannot be recovered."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.results.outcome import Outcome, Target


@dataclass(frozen=True, kw_only=True)
class TextScoreMeans:
    """Scores of texts: means of precision and recall over messages, of ROUGE-L over sentences; ``None``: not measured.

    Attributes:
        exact: rate of sentences recovered word for word; ``None``: the attack finds no order.
        named: rate of the named tokens that are right.
    """

    recall: float | None
    precision: float | None
    multiset_recall: float | None
    multiset_precision: float | None
    rouge_l: float | None
    exact: Rate | None
    labels: Rate | None
    named: Rate | None


@dataclass(frozen=True)
class TextExample:
    """The first few of a message's ``sentences``, and the recovered ones, or the recovered tokens."""

    true: tuple[str, ...]
    recovered: tuple[str, ...]
    sentences: int


@dataclass(frozen=True, kw_only=True)
class TextFigures(TextScoreMeans):
    """The figures of an attack on texts.

    Attributes:
        by_frequency: precision of naming as many of the most frequent public words; ``None``: the attack named no word.
        messages, refused: how many were attacked, and on how many of these it could not be mounted.
        notes: a sentence for each message.
    """

    by_frequency: float | None
    messages: int
    refused: int
    loss_median: float | None
    notes: tuple[str, ...]
    examples: tuple[TextExample, ...]
    cpu_seconds: float


@dataclass(frozen=True)
class PartialLeakage:
    """What messages reveal where sentences cannot be recovered: rates of correct inferences.

    Attributes:
        labels: over all sentences.
        longest, total: the number of tokens of the longest sentence, and of all together; over all messages.
    """

    labels: Rate
    longest: Rate
    total: Rate

    @property
    def sentence(self) -> str:
        """The correct inferences in words."""
        rates = {"labels": self.labels, "longest sentences (in tokens)": self.longest, "total numbers of tokens": self.total}
        parts = [f"{rate.successes} of {rate.n} {name}" for name, rate in rates.items() if rate.successes]
        return f"still inferred correctly: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class TextOutcome(Outcome):
    """An attack on texts.

    Attributes:
        figures: ``None``: it was not run.
        partial_leakage: what else the messages reveal, where it could not be mounted.
    """

    figures: TextFigures | None = None
    partial_leakage: PartialLeakage | None = None


@dataclass(frozen=True, kw_only=True)
class TextTargetResult(Target):
    """Attacked texts; ``baseline``: random words."""

    outcomes: tuple[TextOutcome, ...]
    baseline: TextScoreMeans
