"""What the inference of clients' classes shows: whether it is more than guessing finds, and whether a failure is evidence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from fedpriv.attacks.scoring.guessing import p_of_guessing
from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.results.labels import LabelResult, ShadowLabels

LEVEL = 0.05
"""Significance level of a comparison with guessing."""


def rate_of_rules(successes: int, n: int, rules: int) -> Rate:
    """A rate with the 95 % interval that holds for so many rules at once (Bonferroni), as the best of them is shown."""
    return wilson(successes, n, NormalDist().inv_cdf(1 - LEVEL / (2 * max(1, rules))))


def by_rule(labels: Sequence[LabelResult]) -> list[LabelResult]:
    """The messages to which a rule applies; of the others nothing was measured."""
    return [result for result in labels if result.rule is not None]


def lacking(labels: Sequence[LabelResult]) -> list[LabelResult]:
    """Of :func:`by_rule`, those of clients that lack a class; that a client holds every class reveals nothing."""
    return [result for result in by_rule(labels) if result.lacks_a_class]


def nothing_to_infer(labels: Sequence[LabelResult], shadow: ShadowLabels | None = None) -> str | None:
    """Why there is nothing to infer: all classes are behind every attacked message, so that to name all is always right.

    Returns:
        ``None``: some class is missing behind a message, or no message was attacked.
    """
    if any(result.lacks_a_class for result in labels) or (shadow is not None and shadow.report.lacking):
        return None
    if not labels and shadow is None:
        return None
    whose = "sum" if any(result.sender.client is None for result in labels) else "client"
    return f"every {whose} holds all classes: nothing to infer"


def rule_finds_classes(labels: Sequence[LabelResult]) -> bool:
    """Whether most sets of classes of clients that lack a class were found exactly, and more of them than by guessing.

    Args:
        labels: the result for each message, or for all messages of each client together.
    """
    relevant = lacking(labels)
    return _mostly_exact(relevant) and not _by_guessing(relevant)


def rule_open(labels: Sequence[LabelResult]) -> bool:
    """Whether most sets were found exactly, of so few clients that guessing could have found as many."""
    relevant = lacking(labels)
    return _mostly_exact(relevant) and _by_guessing(relevant) and not _enough(relevant)


def limit_of_rules(labels: Sequence[LabelResult]) -> str | None:
    """Why some failure to find the set of a client that lacks a class is no evidence; ``None``: every failure is evidence."""
    return next((result.limit for result in labels if result.limit and result.lacks_a_class and not result.exact), None)


def share_by_rule(labels: Sequence[LabelResult]) -> float:
    """The share of sets that were found exactly; 0 where guessing would find as many."""
    relevant = lacking(labels)
    if not relevant or (_by_guessing(relevant) and _enough(relevant)):
        return 0.0
    return sum(result.exact for result in relevant) / len(relevant)


def _mostly_exact(labels: Sequence[LabelResult]) -> bool:
    return 2 * sum(result.exact for result in labels) > len(labels)


def _by_guessing(labels: Sequence[LabelResult]) -> bool:
    """Whether naming the same set each time could be right for as many clients.

    A client counts once however many messages it sent, as its set is the same. A set that a message states is not guessed. The
    level allows for the choice of the best of several rules, each of which could be right by chance.
    """
    if any(result.guess is None or (result.exact and result.stated) for result in labels):
        return False
    by_sender = [[result for result in labels if result.sender == sender] for sender in {result.sender for result in labels}]
    return p_of_guessing(sum(map(_mostly_exact, by_sender)), len(by_sender), _guess(labels)) >= _level(labels)


def _enough(labels: Sequence[LabelResult]) -> bool:
    """Whether the clients are so many that perfect answers would be distinguished from guessing."""
    return bool(_guess(labels) ** len({result.sender for result in labels}) < _level(labels))


def _level(labels: Sequence[LabelResult]) -> float:
    """The significance level for the best of the rules that apply."""
    return LEVEL / max((result.rules for result in labels), default=1)


def _guess(labels: Sequence[LabelResult]) -> float:
    return max((result.guess for result in labels if result.guess is not None), default=1.0)


def shadows_find_classes(shadow: ShadowLabels | None) -> bool:
    """Whether shadow clients revealed the classes of real ones: most sets exactly, and more than guessing would find."""
    return shadow is not None and beyond_guessing(shadow) and 2 * shadow.report.lacking_exact > shadow.report.lacking


def beyond_guessing(shadow: ShadowLabels) -> bool:
    """Whether shadow clients revealed more sets of classes exactly than guessing would."""
    return shadow.report.p < LEVEL


def could_find_classes(shadow: ShadowLabels | None) -> bool:
    """Whether a failure of the shadow clients is evidence."""
    return shadow is not None and limit_of_shadows(shadow) is None


def limit_of_shadows(shadow: ShadowLabels) -> str | None:
    """Why shadow clients could not have revealed classes; ``None``: they could have.

    A classifier that was trained on clients with few classes predicts too few of a client that holds many; of a class that all of
    its shadow clients hold, or none, it has learned nothing. With few clients, not even perfect answers differ from guessing.
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
