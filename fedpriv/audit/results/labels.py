"""The classes of clients, as inferred by rules and by a classifier trained on shadow clients."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.attacks.inference.shadow import ShadowReport
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.results.outcome import Interval, Sender


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    """The classes of a client by the best rule, from one message or from all of its messages together.

    Attributes:
        round: ``None``: from all messages together.
        rule: the best rule for sets that applies; ``None``: none does. ``stated``: the classes were read in clear.
        classes: how many the data set has.
        true, inferred: the client's classes.
        count_rule, count_accuracy: the best rule for counts, and the share of samples with the right label by it.
        count_guess: the share of samples with the right label by equal counts of all classes.
        rules: how many rules apply to some message; the best of them is shown.
        guess: the share of clients whose set is that of the best constant guess; ``None``: not known.
        note: why no rule applies.
        limit: why a failure is no evidence; ``None``: it is evidence.
        messages: how many are read together; ``single_exact``: how many of them are exact on their own;
            ``single_count_accuracy``: their mean accuracy of counts.
    """

    round: int | None
    sender: Sender
    rule: str | None
    stated: bool
    classes: int
    true: tuple[int, ...]
    inferred: tuple[int, ...]
    count_rule: str | None
    count_accuracy: float | None
    count_guess: float
    rules: int
    guess: float | None
    note: str | None = None
    limit: str | None = None
    messages: int = 1
    single_exact: int | None = None
    single_count_accuracy: float | None = None

    @property
    def exact(self) -> bool:
        """Whether the set of classes is right."""
        return self.true == self.inferred

    @property
    def lacks_a_class(self) -> bool:
        """Whether the client lacks some class; the set of one that holds every class reveals nothing."""
        return len(self.true) < self.classes


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """A rule for labels, over all messages.

    Attributes:
        rests_on: what it uses and assumes.
        messages: to how many it applies.
        exact: rate of right sets; ``together``: its interval for all rules at once. ``None``: it applies to no message.
        count_accuracy: mean share of samples with the right label; ``None``: it gives no counts.
        best, best_counts: whether it is the best rule for sets, and for counts.
        not_applicable: why it does not apply to some messages.
    """

    rule: str
    rests_on: str
    messages: int
    exact: Rate | None
    together: Interval | None
    count_accuracy: float | None
    best: bool
    best_counts: bool
    not_applicable: str | None


@dataclass(frozen=True)
class ShadowLabels:
    """The classes of clients by a classifier trained on messages of simulated (shadow) clients.

    Attributes:
        wider: how many of the clients that lack a class hold more classes than any shadow client.
        unlearned: how many of the others have a set that the classifier never predicts.
        later: how many kept something from an earlier local update.
    """

    report: ShadowReport
    round: int
    shadows: int
    wider: int
    unlearned: int
    later: int
