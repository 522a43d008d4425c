"""What attacks on texts show: sentences found word for word, and words named far better than by chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scipy.stats import binom

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.results import AuditedRun, KnownMembers, TargetKind, TextFigures, TextOutcome, TextScoreMeans, TextTargetResult

PRECISE = 0.5
"""Share of the named words that must be right at least."""
LEAST_CHANCE = 0.05
"""Random words count as right at least so often, as they are drawn once, and few of them for short texts."""
BY_CHANCE = 0.01
"""The words that an attack named count as found where random words are right as often with at most this probability."""


@dataclass(frozen=True)
class BestTexts:
    """An attack on a target's texts, with its figures."""

    target: TextTargetResult
    outcome: TextOutcome
    figures: TextFigures


def ran(target: TextTargetResult) -> Iterator[BestTexts]:
    """The attacks that were run."""
    return (BestTexts(target, one, one.figures) for one in target.outcomes if one.figures is not None)


def best(target: TextTargetResult) -> BestTexts | None:
    """The attack with most exact sentences; among equals, the best ROUGE-L, then the best recall of tokens.

    One whose failure is no evidence counts only if it found a sentence.
    """
    return max((one for one in ran(target) if one.outcome.status.is_evidence), key=_merit, default=None)


def seeks_sentences(target: TextTargetResult) -> bool:
    """Whether an attack that looks for sentences was run, and not only for words."""
    return any(one.figures.exact for one in ran(target))


def conclusive(target: TextTargetResult) -> list[tuple[BestTexts, Rate]]:
    """The attacks that look for sentences and found one, or whose failure is evidence, with the rate of sentences found."""
    return [
        (one, rate)
        for one in ran(target)
        if (rate := one.figures.exact) is not None and (rate.successes or one.outcome.status.is_evidence)
    ]


def sentences_not_known(target: TextTargetResult) -> str | None:
    """Why sentences may be recoverable where none was: of the attacks that look for them, the failure of none is evidence.

    ``None``: of one it is, or one was found, or there is no such attack.
    """
    if not seeks_sentences(target) or conclusive(target):
        return None
    return "; ".join(dict.fromkeys(one.outcome.status.why for one in ran(target) if one.figures.exact))


def most_exact(texts: Sequence[TextTargetResult], kind: TargetKind) -> Rate | None:
    """The largest rate of sentences found word for word by a conclusive attack."""
    rates = [rate for target in texts if target.kind == kind for _, rate in conclusive(target)]
    return max(rates, key=lambda rate: rate.share, default=None)


def naming_words(target: TextTargetResult) -> BestTexts | None:
    """Of the attacks that named words far better than chance, the one that named most; ``None``: none did."""
    made = [one for one in ran(target) if beyond_chance(one.figures, target.baseline)]
    return max(made, key=lambda one: (one.figures.recall or 0.0) * (one.figures.precision or 0.0), default=None)


def best_of(run: AuditedRun, kind: TargetKind) -> BestTexts | None:
    """The attack that found most tokens, of all targets of a kind."""
    tried = [found for target in run.texts if target.kind == kind and (found := best(target) or naming_words(target))]
    return max(tried, key=lambda one: one.figures.recall or 0.0, default=None)


def known_members(targets: Iterable[TextTargetResult]) -> Iterator[KnownMembers]:
    """The real messages from which sentences were found, which are thereby known members."""
    for target in targets:
        found = best(target) if target.kind == "message" else None
        if found is not None and found.figures.exact is not None and found.figures.exact.successes:
            yield KnownMembers(
                round=target.round, sender=target.sender, what="texts", attack=found.outcome.attack, rate=found.figures.exact
            )


def beyond_chance(one: TextFigures, baseline: TextScoreMeans) -> bool:
    """Whether an attack named words far better than chance.

    At least half of what it named is right, and at least twice the share of random words; where these are right more often than
    not, at least half of what they miss. The same against as many of the most frequent public words. Random words would be right
    as often in at most one of a hundred tries.

    Args:
        baseline: of random words.
    """
    random = baseline.precision or 0.0
    chance = max(random, one.by_frequency or 0.0)
    if chance >= 1 or (one.precision or 0.0) < max(PRECISE, min(2 * chance, (1 + chance) / 2)):
        return False
    return one.named is None or float(binom.sf(one.named.successes - 1, one.named.n, max(random, LEAST_CHANCE))) <= BY_CHANCE


def _merit(one: BestTexts) -> tuple[float, float, float]:
    figures = one.figures
    recall, precision = figures.recall or 0.0, figures.precision or 0.0
    return (figures.exact.share if figures.exact else 0.0, figures.rouge_l or 0.0, recall * precision)
