"""What the inference of clients' classes found: whether it is more than guessing would find, and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from fedpriv.attacks.api.label_rules import STATED
from fedpriv.attacks.scoring.guessing import p_of_guessing
from fedpriv.attacks.scoring.scores import Rate, wilson

Found = Mapping[str, Any]
LEVEL = 0.05
"""Significance level of a comparison with guessing."""

NO_RULE = "no rule applies"


def of_all_rules(successes: int, n: int, rules: int) -> Rate:
    """A rate with the 95 % interval that holds for so many rules at once (Bonferroni), as the best of them is looked at."""
    return wilson(successes, n, NormalDist().inv_cdf(1 - LEVEL / (2 * max(1, rules))))


def by_rule(labels: Sequence[Found]) -> list[Found]:
    """Of the messages whose classes were to be inferred, those that a rule applied to; of the others nothing was measured."""
    return [one for one in labels if one["how"] != NO_RULE]


def of_lacking(labels: Sequence[Found]) -> list[Found]:
    """Of :func:`by_rule`, those of clients that lack a class; that one holds every class says nothing of it."""
    return [one for one in by_rule(labels) if lacks_a_class(one)]


def lacks_a_class(one: Found) -> bool:
    """Whether the client of a message whose classes were to be inferred does not hold every class."""
    return bool(len(one["true"]) < one.get("of", 0))


def rule_finds_classes(labels: Sequence[Found]) -> bool:
    """Whether the sets of classes of clients that lack one were found exactly: mostly, and for more clients than by guessing.

    Args:
        labels: what was inferred from each message, or from all messages of each client together.
    """
    telling = of_lacking(labels)
    return _mostly_exact(telling) and not _by_guessing(telling)


def rule_open(labels: Sequence[Found]) -> bool:
    """Whether most sets were found exactly, of so few clients that guessing could have found as many."""
    telling = of_lacking(labels)
    return _mostly_exact(telling) and _by_guessing(telling) and not _enough(telling)


def steps_open(labels: Sequence[Found]) -> str | None:
    """Why it is no evidence that classes were not found in some message of a client that lacks one; ``None``: it is evidence."""
    return next((one["open"] for one in labels if one.get("open") and lacks_a_class(one) and not one["exact"]), None)


def share_by_rule(labels: Sequence[Found]) -> float:
    """The share of the sets that were found exactly; 0 where guessing would find as many."""
    telling = of_lacking(labels)
    if not telling or (_by_guessing(telling) and _enough(telling)):
        return 0.0
    return sum(bool(one["exact"]) for one in telling) / len(telling)


def _mostly_exact(labels: Sequence[Found]) -> bool:
    return 2 * sum(bool(one["exact"]) for one in labels) > len(labels)


def _by_guessing(labels: Sequence[Found]) -> bool:
    """Whether naming the same set each time could be right for as many clients.

    A client counts as one however many messages it sent, whose set is the same. What a message names is read and not guessed. Of
    several rules the best is looked at, and each of them could be right by chance. Audits of earlier versions had no such
    comparison; there every exact set counts.
    """
    if any(one.get("guess") is None or (one["exact"] and STATED in one["how"]) for one in labels):
        return False
    own = [[one for one in labels if one["client"] == client] for client in {one["client"] for one in labels}]
    return p_of_guessing(sum(map(_mostly_exact, own)), len(own), _guess(labels)) >= _level(labels)


def _enough(labels: Sequence[Found]) -> bool:
    """Whether the clients are so many that perfect answers would be distinguished from guessing."""
    return bool(_guess(labels) ** len({one["client"] for one in labels}) < _level(labels))


def _level(labels: Sequence[Found]) -> float:
    """The significance level for the best of the rules that apply; audits of earlier versions had one for each message."""
    return LEVEL / max((one.get("rules", 1) for one in labels), default=1)


def _guess(labels: Sequence[Found]) -> float:
    return max((one["guess"] for one in labels), default=1.0)


def of_labels(messages: Sequence[Found]) -> list[str]:
    """The sentence on the classes of clients; none without messages."""
    if not messages:
        return []
    exact = sum(one["exact"] for one in messages)
    ways = sorted({one["how"] for one in messages})
    if ways == [NO_RULE]:
        return [f"No rule applies that infers a client's classes from these {len(messages)} messages."]
    whose = "a client's classes" if isinstance(messages[0]["client"], int) else "the classes behind a sum"
    tried = max(one.get("rules", 1) for one in messages)
    rate = of_all_rules(exact, len(messages), tried)
    found = f"The set of {whose} was found exactly from {exact} of {len(messages)} messages"
    best = f"the best of {tried} rules, 95 % interval for all of them" if tried > 1 else "95 % interval"
    details = f"{'; '.join(ways)}; {best} {rate.low:.0%} to {rate.high:.0%}"
    guesses = [one["guess"] for one in of_lacking(messages) if one.get("guess") is not None]
    constant = "always guessing the most common set would be right for"
    chance = f"; {constant} {max(guesses):.0%} of the clients that lack one" if guesses else ""
    return [f"{found} ({details}){chance}.", *_of_counts(messages)]


def _of_counts(messages: Sequence[Found]) -> list[str]:
    """The sentence on the counts of a client's samples by class; none where no rule shows them."""
    counted = [one for one in messages if one.get("counts_how")]  # audits of earlier versions do not say by what
    if not counted:
        return []
    right, by_guess = (sum(one[name] for one in counted) / len(counted) for name in ("count_accuracy", "count_guess"))
    ways = "; ".join(sorted({one["counts_how"] for one in counted}))
    return [
        f"Labels of single samples, as counts by class, were right for {right:.0%} of the samples ({ways}; mean of "
        f"{len(counted)} messages); equal counts of all classes would be right for {by_guess:.0%}."
    ]


def finds_classes(shadow: Found | None) -> bool:
    """Whether simulated clients showed the classes of real ones: most sets exactly, and more than guessing would find.

    Args:
        shadow: ``label_shadow`` of a run's findings. Without a comparison with guessing (earlier versions), it shows nothing.
    """
    return shadow is not None and beyond_guessing(shadow) and bool(2 * shadow["lacking_exact"] > shadow["lacking"])


def beyond_guessing(shadow: Found) -> bool:
    """Whether simulated clients named more sets of classes exactly than guessing would; not so by audits of earlier versions."""
    return "p" in shadow and bool(shadow["p"] < LEVEL)


def could_find_classes(shadow: Found | None) -> bool:
    """Whether it is evidence that simulated clients did not show classes. Where no client lacks one there is nothing to find."""
    return shadow is not None and classes_open(shadow) is None


def classes_open(shadow: Found) -> str | None:
    """Why simulated clients could not have shown classes; ``None``: they could have.

    A classifier that has only seen few classes at once names too few of a client that holds many, and of a class that all of its
    shadow clients hold, or none, it has learned nothing. With few clients, not even perfect answers differ from guessing; nor is
    there a comparison with guessing by audits of earlier versions.
    """
    lacking = shadow["lacking"] if "p" in shadow else 0
    wider, unlearned = shadow.get("wider", 0), shadow.get("unlearned", 0)
    alike = lacking - wider - unlearned
    if lacking and 2 * alike <= lacking:
        if unlearned > wider:
            return "most clients hold classes that the shadow clients are too few to learn"
        return "most clients hold more classes than the shadow clients"
    if 2 * shadow.get("later", 0) > lacking:
        return "most clients began with something that they kept from an earlier turn, and simulated clients begin with nothing"
    if "p" in shadow and (not lacking or shadow["guess"] ** alike < LEVEL):
        return None
    return "with so few clients, not even perfect answers would be distinguished from guessing"


def of_shadows(shadow: Found | None) -> list[str]:
    """The sentence on the classes that simulated clients showed; none where they were not mounted, or no client lacks a class."""
    if shadow is None or not shadow.get("lacking"):
        return []
    found = f"identified exactly the classes of {shadow['lacking_exact']} of {shadow['lacking']} clients that do not hold all"
    return [
        f"A classifier trained on messages of {shadow['shadows']} shadow clients {found} (round {shadow['round']}); "
        f"the most common set is right for {shadow['guess']:.0%} of such clients."
    ]
