"""The sentences on samples: images, texts and rows that attacks recovered, and images that class centres gave away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.formats import at_most, joined, percent, within
from fedpriv.audit.judge import images as judge_images
from fedpriv.audit.judge import rows as judge_rows
from fedpriv.audit.judge import texts as judge_texts
from fedpriv.audit.judge.images import LIMIT, Recovery
from fedpriv.audit.judge.texts import BestTexts
from fedpriv.audit.results.audit import Part
from fedpriv.audit.results.images import CenterOutcome, ImageTarget
from fedpriv.audit.results.outcome import Target
from fedpriv.audit.results.rows import RowTarget
from fedpriv.audit.results.texts import TextScoreMeans, TextTargetResult

T = TypeVar("T", ImageTarget, RowTarget)


def not_attacked(part: Part, reason: Reason) -> str:
    """The sentence on samples that were not attacked at all."""
    return f"No attack was mounted on the {part}, so what messages reveal of them is not known: {reason}."


def on_images(messages: Sequence[ImageTarget]) -> Iterator[str]:
    """A sentence for each message; messages on which no attack was mounted, for equal reasons, share one sentence."""
    return (images(*alike) for alike in _alike(messages, judge_images.best))


def on_rows(targets: Sequence[RowTarget]) -> Iterator[str]:
    """As :func:`on_images`, for rows; the easiest case among them."""
    return (rows(*alike) for alike in _alike(targets, judge_rows.best))


def _alike(targets: Iterable[T], best: Callable[[T], object]) -> Iterable[list[T]]:
    """Each target in a list of its own, or with those on which no attack was mounted for the same reasons."""
    groups = dict[tuple[str, str] | int, list[T]]()
    for place, target in enumerate(targets):
        groups.setdefault(place if best(target) else (target.kind, _reasons(target)), []).append(target)
    return groups.values()


def _where(targets: Sequence[Target]) -> str:
    """The messages of targets, or the easiest case."""
    first = targets[0]
    if first.kind != "message":
        return f"clients that hold a {first.kind} (simulated by the audit, defences included; round {first.round})"
    return joined([target.sender.message_of(target.round) for target in targets])


def _not_known(no_attack: str, targets: Sequence[ImageTarget] | Sequence[RowTarget]) -> str:
    reveals = "it reveals" if len(targets) == 1 and targets[0].kind == "message" else "they reveal"
    reasons = _reasons(targets[0])
    return f"{no_attack} was mounted on {_where(targets)}, so what {reveals} is not known ({reasons})."


def _reasons(target: ImageTarget | RowTarget) -> str:
    """Why no attack is evidence: each reason with its attackers."""
    result = "none" if isinstance(target, ImageTarget) else "no more than guesses"
    attacks: dict[str, list[str]] = {}
    for outcome in target.outcomes:
        failed = f"recovered {result}, which is no evidence: " if outcome.status.was_run else ""
        attacks.setdefault(f"{failed}{outcome.status.why}", []).append(outcome.attack)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in attacks.items())


def _left_out(target: ImageTarget | RowTarget) -> list[str]:
    """Clauses on the attackers whose failure is no evidence, and on those that were not tried, or not on all samples."""
    outcomes = target.outcomes
    others = [outcome.attack for outcome in outcomes if outcome.status.was_run and not outcome.status.is_evidence]
    untried = [outcome.attack for outcome in outcomes if not outcome.status.was_run]
    cut = [outcome for outcome in target.outcomes if outcome.cut is not None] if isinstance(target, ImageTarget) else []
    return [
        *([f"the failure of {', '.join(others)} is no evidence"] if others else []),
        *(f"{outcome.attack} was not tried on further images ({outcome.cut})" for outcome in cut),
        *([f"not tried: {', '.join(untried)}"] if untried else []),
    ]


def _appended(clauses: Iterable[str]) -> str:
    return "".join(f"; {clause}" for clause in clauses)


def _more(why: str | None) -> str:
    return "" if why is None else f"; it may be more, as a failure is no evidence: {why}"


# Images


def images(target: ImageTarget, *alike: ImageTarget) -> str:
    """The sentence on a message of a run, or on the easiest case.

    Args:
        alike: further messages on which no attack was mounted either, for the same reasons.
    """
    if (best := judge_images.best(target)) is None:
        controlled = " whose controls show that it could succeed" if any(judge_images.ran(target)) else ""
        return _not_known(f"No attack{controlled}", (target, *alike))
    return _message(best) if target.kind == "message" else _easiest(best)


def _message(best: Recovery) -> str:
    target, rate, where = best.target, best.rate, _where([best.target])
    if rate.successes == 0:
        by = ", ".join(outcome.attack for outcome, _ in judge_images.ran(target) if outcome.status.is_evidence)
        return (
            f"None of the {rate.n} training images behind {where} was reconstructed by {by} within their "
            f"budgets (MSE < {LIMIT}; 95 % interval up to {at_most(rate.high)}; each attack passed its positive control)"
            f"{_images_left_out(target)}."
        )
    return (
        f"{rate.successes} of {rate.n} training images were reconstructed from {where} by {best.outcome.attack} "
        f"(MSE < {best.limit}; {within(rate)}{_compared(best)}){_more(judge_images.may_be_more(target))}."
    )


def _easiest(best: Recovery) -> str:
    target, rate, limit = best.target, best.rate, best.limit
    case, stopping = _where([target]), "for the number of images tried, which depends on the results"
    if rate.successes:
        bounds = f"{within(rate)}; the interval is {stopping}"
        if best.figures.public_successes is not None or target.baseline_successes.get(judge_images.FLAT, {}).get(limit):
            bounds += _compared(best)
        of = f"{rate.successes} of {rate.n} (MSE < {limit}; {bounds})"
        return f"From {case}, {best.outcome.attack} reconstructed {of}{_more(judge_images.may_be_more(target))}."
    failures = [
        (outcome.attack, judge_images.recovered(figures).rate)
        for outcome, figures in judge_images.ran(target)
        if outcome.status.is_evidence
    ]
    results = ", ".join(f"0 of {rate.n} by {name} (up to {at_most(rate.high)} is not excluded)" for name, rate in failures)
    return (
        f"From {case}, no image was reconstructed within these budgets (MSE < {LIMIT}): {results}; each attack passed its "
        f"positive control; 95 % intervals, {stopping}{_images_left_out(target)}."
    )


def _images_left_out(target: ImageTarget) -> str:
    """:func:`_left_out`, after clauses on recoveries that do not count."""
    copied = [
        f"{outcome.attack} recovered {figures.success[LIMIT].successes}, which are not counted, as copies of the nearest "
        f"public image would recover {(figures.public_successes or {})[LIMIT]}"
        for outcome, figures in judge_images.ran(target)
        if figures.success[LIMIT].successes and not judge_images.recovered(figures).rate.successes
    ]
    return _appended([*copied, *_left_out(target)])


def _compared(best: Recovery) -> str:
    """What guesses recover; if as many as the attack, also the recovery at a threshold where guesses recover fewer."""
    figures, limit, baselines = best.figures, best.limit, best.target.baseline_successes
    public = figures.public_successes if figures.public_successes is not None else baselines.get(judge_images.PUBLIC)
    of_flat = baselines.get(judge_images.FLAT, {}).get(limit, 0) > (public or {}).get(limit, 0)
    if public is None and not of_flat:
        return ""
    guessed, closer = judge_images.beside_guesses(best.target, figures)
    guesses, short = (
        ("flat images of the right colour", "guesses") if of_flat else ("copies of the nearest public image", "copies")
    )
    text = f"; {guesses} would recover {guessed} of them"
    if closer is None:
        return text
    fewer = judge_images.guesses(baselines, closer.figures)[closer.limit]
    return (
        f"{text}; {closer.rate.successes} by {closer.outcome.attack} with MSE < {closer.limit}, where {short} would recover "
        f"{fewer or 'none'}"
    )


def centers(outcome: CenterOutcome) -> str:
    """The sentence on class centres that gave images away."""
    rate, limit = outcome.recovered.rate, outcome.recovered.limit
    return (
        f"{rate.successes} of {rate.n} class centres in {outcome.sender.message_of(outcome.round)} gave a training image away "
        f"(MSE < {limit}, where guesses would recover {outcome.public_successes[limit] or 'none'})."
    )


# Texts


def texts(target: TextTargetResult, attack: BestTexts | None = None) -> str:
    """The sentence on a message of a run, or on the easiest case.

    Args:
        attack: that the sentence is on; ``None``: the best one, or one that named words, or why there is neither.
    """
    attack = attack or judge_texts.best(target) or judge_texts.naming_words(target)
    whose = " whose failure is evidence" if any(judge_texts.ran(target)) else ""
    where = _where([target])
    if target.kind == "message":
        where += f", {target.samples} training texts behind it"
        if attack is None:
            return f"No attack on texts{whose} was mounted on {where}: {_text_reasons(target)}."
        result = f"{attack.outcome.attack} found from {where}: "
    elif attack is None:
        return f"From {where}, no result: no attack on texts{whose} could be mounted ({_text_reasons(target)})."
    else:
        result = f"From {where}, {attack.outcome.attack} found "
    result += f"{_named(attack.figures)} (random words: {_named(target.baseline)}); {_exact(attack.figures.exact)}"
    why = judge_texts.sentences_not_known(target)
    return f"{result}; that no sentence was found is no evidence: {why}." if why else f"{result}."


def _named(scores: TextScoreMeans) -> str:
    if scores.precision is None:
        return "no token"
    return f"{scores.recall:.0%} of the tokens, with a precision of {scores.precision:.0%}"


def _exact(exact: Rate | None) -> str:
    if exact is None:
        return "it does not find their order"
    return f"{exact.successes} of {exact.n} sentences are right word for word ({within(exact)})"


def _text_reasons(target: TextTargetResult) -> str:
    """Why no attack counts, and what else the message reveals."""
    reasons = [f"{outcome.attack}: " * outcome.status.was_run + outcome.status.why for outcome in target.outcomes]
    partial = [outcome.partial_leakage.sentence for outcome in target.outcomes if outcome.partial_leakage is not None]
    return "; ".join([*dict.fromkeys(reasons), *partial[:1]])


# Rows


def rows(target: RowTarget, *alike: RowTarget) -> str:
    """As :func:`images`, for rows."""
    if (best := judge_rows.best(target)) is None:
        whose = " whose failure is evidence" if any(judge_rows.ran(target)) else ""
        return _not_known(f"No attack on rows{whose}", (target, *alike))
    where, figures, sure = _where([target]), best.figures, judge_rows.recovered(best)
    guess = judge_rows.guessed(target.baselines)
    cells = f"{percent(figures.cells.share)} of the cells ({within(figures.cells)}; guesses: {percent(guess.cells.share)})"
    whole = f"{figures.rows.successes} of {figures.rows.n} rows right in every cell ({within(figures.rows)})"
    if sure.successes < figures.rows.successes:
        whole += f", of which {sure.successes} hardly by chance"
    if judge_rows.beyond_guesses(figures, target.baselines):
        return f"From {where}, {best.outcome.attack} recovered {cells}, and {whole}{_more(judge_rows.may_be_more(target))}."
    by = ", ".join(attack.outcome.attack for attack in judge_rows.ran(target) if attack.outcome.status.is_evidence)
    return (
        f"No row behind {where} was recovered by {by}, beyond guesses: {best.outcome.attack} has {cells} right, and {whole}; "
        f"each passed its positive control{_appended(_left_out(target))}."
    )
