"""What the inference of clients' classes shows: whether it is more than guessing finds, and whether a failure is evidence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from fedpriv.attacks.scoring.guessing import p_of_guessing
from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.results import LabelResult, ShadowLabels

LEVEL = 0.05
"""Significance level of a comparison with guessing."""


def rate_of_rules(successes: int, n: int, rules: int) -> Rate:
    """A rate with the 95 % interval that holds for so many rules at once (Bonferroni), as the best of them is looked at."""
    return wilson(successes, n, NormalDist().inv_cdf(1 - LEVEL / (2 * max(1, rules))))


def by_rule(labels: Sequence[LabelResult]) -> list[LabelResult]:
    """Of the messages whose classes were to be inferred, those that a rule applied to; of the others nothing was measured."""
    return [one for one in labels if one.rule is not None]


def lacking(labels: Sequence[LabelResult]) -> list[LabelResult]:
    """Of :func:`by_rule`, those of clients that lack a class; that one holds every class says nothing of it."""
    return [one for one in by_rule(labels) if one.lacks_a_class]


def rule_finds_classes(labels: Sequence[LabelResult]) -> bool:
    """Whether the sets of classes of clients that lack one were found exactly: mostly, and for more clients than by guessing.

    Args:
        labels: what was inferred from each message, or from all messages of each client together.
    """
    telling = lacking(labels)
    return _mostly_exact(telling) and not _by_guessing(telling)


def rule_open(labels: Sequence[LabelResult]) -> bool:
    """Whether most sets were found exactly, of so few clients that guessing could have found as many."""
    telling = lacking(labels)
    return _mostly_exact(telling) and _by_guessing(telling) and not _enough(telling)


def limit_of_rules(labels: Sequence[LabelResult]) -> str | None:
    """Why it is no evidence that classes were not found in some message of a client that lacks one; ``None``: it is evidence."""
    return next((one.limit for one in labels if one.limit and one.lacks_a_class and not one.exact), None)


def share_by_rule(labels: Sequence[LabelResult]) -> float:
    """The share of the sets that were found exactly; 0 where guessing would find as many."""
    telling = lacking(labels)
    if not telling or (_by_guessing(telling) and _enough(telling)):
        return 0.0
    return sum(one.exact for one in telling) / len(telling)


def _mostly_exact(labels: Sequence[LabelResult]) -> bool:
    return 2 * sum(one.exact for one in labels) > len(labels)


def _by_guessing(labels: Sequence[LabelResult]) -> bool:
    """Whether naming the same set each time could be right for as many clients.

    A client counts as one however many messages it sent, whose set is the same. What a message names is read and not guessed. Of
    several rules the best is looked at, and each of them could be right by chance.
    """
    if any(one.guess is None or (one.exact and one.stated) for one in labels):
        return False
    own = [[one for one in labels if one.sender == sender] for sender in {one.sender for one in labels}]
    return p_of_guessing(sum(map(_mostly_exact, own)), len(own), _guess(labels)) >= _level(labels)


def _enough(labels: Sequence[LabelResult]) -> bool:
    """Whether the clients are so many that perfect answers would be distinguished from guessing."""
    return bool(_guess(labels) ** len({one.sender for one in labels}) < _level(labels))


def _level(labels: Sequence[LabelResult]) -> float:
    """The significance level for the best of the rules that apply."""
    return LEVEL / max((one.rules for one in labels), default=1)


def _guess(labels: Sequence[LabelResult]) -> float:
    return max((one.guess for one in labels if one.guess is not None), default=1.0)


def shadows_find_classes(shadow: ShadowLabels | None) -> bool:
    """Whether simulated clients showed the classes of real ones: most sets exactly, and more than guessing would find."""
    return shadow is not None and beyond_guessing(shadow) and 2 * shadow.report.lacking_exact > shadow.report.lacking


def beyond_guessing(shadow: ShadowLabels) -> bool:
    """Whether simulated clients named more sets of classes exactly than guessing would."""
    return shadow.report.p < LEVEL


def could_find_classes(shadow: ShadowLabels | None) -> bool:
    """Whether it is evidence that simulated clients did not show classes. Where no client lacks one there is nothing to find."""
    return shadow is not None and limit_of_shadows(shadow) is None


def limit_of_shadows(shadow: ShadowLabels) -> str | None:
    """Why simulated clients could not have shown classes; ``None``: they could have.

    A classifier that has only seen few classes at once names too few of a client that holds many, and of a class that all of its
    shadow clients hold, or none, it has learned nothing. With few clients, not even perfect answers differ from guessing.
    """
    without = shadow.report.lacking
    alike = without - shadow.wider - shadow.unlearned
    if without and 2 * alike <= without:
        if shadow.unlearned > shadow.wider:
            return "most clients hold classes that the shadow clients are too few to learn"
        return "most clients hold more classes than the shadow clients"
    if 2 * shadow.later > without:
        return (
            "most clients began with something that they kept from an earlier local update; simulated clients begin with nothing"
        )
    if not without or shadow.report.guess**alike < LEVEL:
        return None
    return "with so few clients, not even perfect answers would be distinguished from guessing"
