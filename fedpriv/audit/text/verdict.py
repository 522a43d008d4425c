"""Conclusions on the texts behind a run's messages, in sentences; see :mod:`fedpriv.audit.verdict` for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.audit.formats import message_of

Found = Mapping[str, Any]


def best_reading(read: Found) -> Found | None:
    """The attempt with most exact sentences; among equals, the best ROUGE-L, then the best recall of tokens."""
    made = [one for one in read["attempts"] if not one["inapplicable"]]
    return max(made, key=_merit, default=None)


def of_texts(texts: Sequence[Found]) -> list[str]:
    """A sentence for each target."""
    return [(_message if one["kind"] == "message" else _easiest)(one) for one in texts]


def _merit(one: Found) -> tuple[float, float, float]:
    exact, recall, precision = one["exact"], one["recall"] or 0.0, one["precision"] or 0.0
    return (exact["share"] if exact else 0.0, one["rouge_l"] or 0.0, recall * precision)


def _message(read: Found) -> str:
    where = f"{message_of(read)}, {read['texts']} training texts behind it"
    best = best_reading(read)
    if best is None:
        return f"No attack on texts was mounted on {where}: {_reasons(read)}."
    result = f"{best['attacker']} found from {where}: {_named(best)} (random words: {_named(read['baseline'])})"
    return f"{result}; {_sentences(best)}."


def _easiest(read: Found) -> str:
    case = f"From clients that hold a single text (simulated by the audit, defences included; round {read['round']})"
    best = best_reading(read)
    if best is None:
        return f"{case}, no result: no attack on texts could be mounted ({_reasons(read)})."
    return f"{case}, {best['attacker']} found {_named(best)} (random words: {_named(read['baseline'])}); {_sentences(best)}."


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


def _reasons(read: Found) -> str:
    """Why no attack was mounted, and what the message was found to reveal."""
    reasons = "; ".join(dict.fromkeys(one["inapplicable"] for one in read["attempts"]))
    left = next((one["left_says"] for one in read["attempts"] if one["left_says"]), "")
    return f"{reasons}; {left}" if left else reasons
