"""Conclusions on the texts behind a run's messages, in sentences; see :mod:`fedpriv.audit.verdict` for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import binom

from fedpriv.audit.formats import message_of

Found = Mapping[str, Any]
PRECISE = 0.5
LEAST_CHANCE = 0.05
"""Random words count as right at least so often, as they are drawn once, and few of them for short texts."""
BY_CHANCE = 0.01
"""The words that an attack named count as found where random words are right as often with at most this probability."""


def best_reading(read: Found) -> Found | None:
    """The attempt with most exact sentences; among equals, the best ROUGE-L, then the best recall of tokens.

    One whose failure is no evidence counts only if it found a sentence.
    """
    return max([one for one in _mounted(read) if not one.get("no_evidence")], key=_merit, default=None)


def sentences_not_known(read: Found) -> str | None:
    """Why sentences may be recoverable where none was: of the attacks that look for them, the failure of none is evidence.

    ``None``: of one it is, or one was found, or there is no such attack.
    """
    seeking = [one for one in _mounted(read) if one["exact"]]
    if not seeking or any(map(_sentences_count, seeking)):
        return None
    return "; ".join(dict.fromkeys(one["no_evidence"] for one in seeking))


def seeks_sentences(read: Found) -> bool:
    """Whether an attack that looks for sentences was mounted, and not only for words."""
    return any(one["exact"] for one in _mounted(read))


def most_exact(texts: Sequence[Found], kind: str) -> Found | None:
    """The largest rate of sentences found word for word, of attempts whose failure is evidence or that found one.

    Args:
        kind: ``message`` or ``single text``.
    """
    rates = [one["exact"] for read in texts if read["kind"] == kind for one in that_count(read)]
    return max(rates, key=lambda rate: rate["share"], default=None)


def that_count(read: Found) -> list[Found]:
    """The attempts on sentences that found one, and those that found none but whose failure is evidence."""
    return [one for one in _mounted(read) if one["exact"] and _sentences_count(one)]


def _sentences_count(attempt: Found) -> bool:
    """Whether what an attempt on sentences found counts: its failure is evidence, or it found one."""
    return bool(attempt["exact"]["successes"]) or not attempt.get("no_evidence")


def _mounted(read: Found) -> list[Found]:
    return [one for one in read["attempts"] if not one["inapplicable"]]


def naming_words(read: Found) -> Found | None:
    """Of the attempts that named words far better than chance, the one that named most; ``None``: none did.

    At least half of what it named is right, and at least twice the share of random words; where these are right more often than
    not, at least half of what they miss. The same against as many of the most frequent public words. Random words would be right
    as often in at most one of a hundred tries.
    """
    made = [one for one in _mounted(read) if _beyond_chance(one, read["baseline"]["precision"] or 0.0)]
    return max(made, key=lambda one: (one["recall"] or 0.0) * one["precision"], default=None)


def _beyond_chance(one: Found, random: float) -> bool:
    """Whether an attempt named words far better than ``random`` ones, and than frequent ones; see :func:`naming_words`."""
    chance, named = max(random, one.get("by_frequency") or 0.0), one.get("named")  # earlier audits have neither
    if chance >= 1 or (one["precision"] or 0.0) < max(PRECISE, min(2 * chance, (1 + chance) / 2)):
        return False
    return named is None or float(binom.sf(named["successes"] - 1, named["n"], max(random, LEAST_CHANCE))) <= BY_CHANCE


def of_texts(texts: Sequence[Found]) -> list[str]:
    """A sentence for each target."""
    return [of_reading(one, best_reading(one) or naming_words(one)) for one in texts]


def of_reading(read: Found, attempt: Found | None) -> str:
    """The sentence on an attempt on a target; ``None``: on why there is none."""
    return (_message if read["kind"] == "message" else _easiest)(read, attempt)


def _merit(one: Found) -> tuple[float, float, float]:
    exact, recall, precision = one["exact"], one["recall"] or 0.0, one["precision"] or 0.0
    return (exact["share"] if exact else 0.0, one["rouge_l"] or 0.0, recall * precision)


def _message(read: Found, best: Found | None) -> str:
    where = f"{message_of(read)}, {read['texts']} training texts behind it"
    if best is None:
        return f"No attack on texts{_whose(read)} was mounted on {where}: {_reasons(read)}."
    result = f"{best['attacker']} found from {where}: {_named(best)} (random words: {_named(read['baseline'])})"
    return f"{result}; {_sentences(best)}{_open(read)}."


def _easiest(read: Found, best: Found | None) -> str:
    case = f"From clients that hold a single text (simulated by the audit, defences included; round {read['round']})"
    if best is None:
        return f"{case}, no result: no attack on texts{_whose(read)} could be mounted ({_reasons(read)})."
    result = f"{case}, {best['attacker']} found {_named(best)} (random words: {_named(read['baseline'])})"
    return f"{result}; {_sentences(best)}{_open(read)}."


def _open(read: Found) -> str:
    """A clause where sentences may be recoverable all the same."""
    return f"; that no sentence was found is no evidence: {why}" if (why := sentences_not_known(read)) else ""


def _named(found: Found) -> str:
    if found["precision"] is None:
        return "no token"
    return f"{found['recall']:.0%} of the tokens, with a precision of {found['precision']:.0%}"


def _sentences(best: Found) -> str:
    if best["exact"] is None:
        return "it does not find their order"
    exact = best["exact"]
    span = f"95 % interval {exact['low']:.0%} to {exact['high']:.0%}"
    return f"{exact['successes']} of {exact['n']} sentences are right word for word ({span})"


def _whose(read: Found) -> str:
    return " whose failure is evidence" if _mounted(read) else ""


def _reasons(read: Found) -> str:
    """Why no attempt counts, and what the message was found to reveal."""
    reasons = "; ".join(
        dict.fromkeys(one["inapplicable"] or f"{one['attacker']}: {one['no_evidence']}" for one in read["attempts"])
    )
    left = next((one["left_says"] for one in read["attempts"] if one["left_says"]), "")
    return f"{reasons}; {left}" if left else reasons
