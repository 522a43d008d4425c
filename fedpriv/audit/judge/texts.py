"""What attacks on texts show: sentences recovered word for word, and words named far better than by chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scipy.stats import binom

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.membership import KnownMembers
from fedpriv.audit.results.outcome import TargetKind
from fedpriv.audit.results.texts import TextFigures, TextOutcome, TextScoreMeans, TextTargetResult

PRECISE = 0.5
"""Least share of the named words that must be right."""
LEAST_CHANCE = 0.05
"""Least precision assumed of random words, as they are drawn once, and few of them for short texts."""
BY_CHANCE = 0.01
"""Named words count as recovered if random words do as well with at most this probability."""


@dataclass(frozen=True)
class BestTexts:
    """An attack on a target's texts, with its figures."""

    target: TextTargetResult
    outcome: TextOutcome
    figures: TextFigures


def ran(target: TextTargetResult) -> Iterator[BestTexts]:
    """The attacks that were run."""
    return (BestTexts(target, outcome, outcome.figures) for outcome in target.outcomes if outcome.figures is not None)


def best(target: TextTargetResult) -> BestTexts | None:
    """The attack with most exact sentences; among equals, the best ROUGE-L, then the best recall of tokens.

    An attack whose failure is no evidence counts only if it recovered a sentence: its result is then evidence.
    """
    return max((attack for attack in ran(target) if attack.outcome.status.is_evidence), key=_merit, default=None)


def seeks_sentences(target: TextTargetResult) -> bool:
    """Whether an attack that looks for sentences was run, and not only for words."""
    return any(attack.figures.exact for attack in ran(target))


def conclusive(target: TextTargetResult) -> list[tuple[BestTexts, Rate]]:
    """The attacks that recovered a sentence, or whose failure to is evidence, with the rate of recovered sentences."""
    return [
        (attack, rate)
        for attack in ran(target)
        if (rate := attack.figures.exact) is not None and (rate.successes or attack.outcome.status.is_evidence)
    ]


def sentences_not_known(target: TextTargetResult) -> str | None:
    """Why sentences may be recoverable though none was recovered; ``None``: the failure of an attack that looks for sentences is
    evidence, or a sentence was recovered, or no attack looks for sentences."""
    if not seeks_sentences(target) or conclusive(target):
        return None
    return "; ".join(dict.fromkeys(attack.outcome.status.why for attack in ran(target) if attack.figures.exact))


def most_exact(texts: Sequence[TextTargetResult], kind: TargetKind) -> Rate | None:
    """The largest rate of sentences recovered word for word by a conclusive attack."""
    rates = [rate for target in texts if target.kind == kind for _, rate in conclusive(target)]
    return max(rates, key=lambda rate: rate.share, default=None)


def naming_words(target: TextTargetResult) -> BestTexts | None:
    """The attack that named most words, among those that did so far better than chance; ``None``: none did."""
    attacks = (attack for attack in ran(target) if beyond_chance(attack.figures, target.baseline))
    return max(attacks, key=_recall_of_right_words, default=None)


def best_of(run: AuditedRun, kind: TargetKind) -> BestTexts | None:
    """The attack that recovered most tokens, of all targets of a kind."""
    each = (best(target) or naming_words(target) for target in run.texts if target.kind == kind)
    return max(filter(None, each), key=lambda attack: attack.figures.recall or 0.0, default=None)


def exact_sentences(target: TextTargetResult) -> tuple[BestTexts, Rate] | None:
    """The best attack, with its rate of sentences recovered word for word, if there are any."""
    if (attack := best(target)) is None or not (exact := attack.figures.exact) or not exact.successes:
        return None
    return attack, exact


def known_members(targets: Iterable[TextTargetResult]) -> Iterator[KnownMembers]:
    """The real messages from which sentences were recovered, which are therefore known members."""
    for target in targets:
        if target.kind == "message" and (exact := exact_sentences(target)) is not None:
            attack, rate = exact
            yield KnownMembers(round=target.round, sender=target.sender, what="texts", attack=attack.outcome.attack, rate=rate)


def beyond_chance(figures: TextFigures, baseline: TextScoreMeans) -> bool:
    """Whether an attack named words far better than chance.

    Its precision is at least 0.5 (:data:`PRECISE`), and at least ``min(2 c, (1 + c) / 2)``, where c is the better precision of
    random words and of equally many of the most frequent public words. And, as far as the number of named words is known, random
    words are as good with a probability of at most 1 % (:data:`BY_CHANCE`).

    Args:
        baseline: the scores of random words.
    """
    random = baseline.precision or 0.0
    chance = max(random, figures.by_frequency or 0.0)
    if chance >= 1 or (figures.precision or 0.0) < max(PRECISE, min(2 * chance, (1 + chance) / 2)):
        return False
    named = figures.named
    return named is None or float(binom.sf(named.successes - 1, named.n, max(random, LEAST_CHANCE))) <= BY_CHANCE


def _recall_of_right_words(attack: BestTexts) -> float:
    return (attack.figures.recall or 0.0) * (attack.figures.precision or 0.0)


def _merit(attack: BestTexts) -> tuple[float, float, float]:
    exact = attack.figures.exact
    return (exact.share if exact else 0.0, attack.figures.rouge_l or 0.0, _recall_of_right_words(attack))
