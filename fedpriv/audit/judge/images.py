"""What attacks on images show: how many images were recovered, and whether that is more than guesses without the message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedpriv.attacks.scoring.scores import RECOVERED, Rate, counts, threshold_above, wilson
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.images import CenterOutcome, ImageFigures, ImageOutcome, ImageTarget, RecoveryRate
from fedpriv.audit.results.membership import KnownMembers
from fedpriv.audit.results.outcome import TargetKind

LIMIT = f"{RECOVERED:g}"
"""The threshold of "recovered", as a key of the figures."""
PUBLIC, FLAT = "nearest public", "own mean colour"
"""Baselines that a recovery is compared with: an attack that recovers no more may have recovered them by chance."""


@dataclass(frozen=True)
class Recovery:
    """The images of a target that an attack recovered; ``limit``: the threshold of the mean squared error."""

    target: ImageTarget
    outcome: ImageOutcome
    figures: ImageFigures
    rate: Rate
    limit: str


def ran(target: ImageTarget) -> Iterator[tuple[ImageOutcome, ImageFigures]]:
    """The attacks that were run, with their figures."""
    return ((outcome, outcome.figures) for outcome in target.outcomes if outcome.figures is not None)


def recovered(figures: ImageFigures) -> RecoveryRate:
    """The rate of images that count as recovered.

    For an attacker who knows public images: the rate at the loosest threshold at which it exceeds that of the nearest public
    image; 0 where there is no such threshold.
    """
    if figures.public_successes is None:
        return RecoveryRate(figures.success[LIMIT], LIMIT)
    limit = threshold_above(_counts(figures.success), figures.public_successes)
    if limit is None:
        return RecoveryRate(wilson(0, figures.success[LIMIT].n), LIMIT)
    return RecoveryRate(figures.success[limit], limit)


def conclusive(target: ImageTarget) -> list[Recovery]:
    """The attacks that recovered images, or whose failure is evidence; the others measure nothing."""
    return [
        Recovery(target, outcome, figures, counted.rate, counted.limit)
        for outcome, figures in ran(target)
        if (counted := recovered(figures)).rate.successes or outcome.status.is_evidence
    ]


def _merit(recovery: Recovery) -> tuple[float, float]:
    return recovery.rate.share, -recovery.figures.mse_median


def best(target: ImageTarget) -> Recovery | None:
    """The conclusive attack that recovered the largest share; among equals, the one with the least median error.

    Attacks may have been tried on different numbers of single images, so shares are compared.
    """
    return max(conclusive(target), key=_merit, default=None)


def best_of(run: AuditedRun, kind: TargetKind) -> Recovery | None:
    """The attack that recovered most, of all targets of a kind."""
    each = (best(target) for target in run.images if target.kind == kind)
    return max(filter(None, each), key=_merit, default=None)


def is_known(target: ImageTarget) -> bool:
    """Whether it is known what can be recovered: more images were recovered than guesses recover, or an attack's failure is
    evidence."""
    return any(outcome.status.is_evidence for outcome, _ in ran(target)) or beyond_baselines(target) is not None


def beyond_baselines(target: ImageTarget) -> Recovery | None:
    """An attack that recovered more images than the nearest public image or a flat one of the right colour does.

    Returns:
        of several, the one at the loosest threshold, and with most images there; ``None``: there is none.
    """
    recoveries = [
        Recovery(target, outcome, figures, figures.success[limit], limit)
        for outcome, figures in ran(target)
        if (limit := limit_beyond(figures, target.baseline_successes)) is not None
    ]
    return max(recoveries, key=lambda recovery: (float(recovery.limit), recovery.rate.successes), default=None)


def limit_beyond(figures: ImageFigures, baselines: Mapping[str, Mapping[str, int]]) -> str | None:
    """The loosest threshold at which more images were recovered than guesses recover; ``None``: there is none."""
    return threshold_above(_counts(figures.success), guesses(baselines, figures))


def guesses(baselines: Mapping[str, Mapping[str, int]], figures: ImageFigures) -> Mapping[str, int]:
    """Threshold -> how many images guesses recover: the better of public and flat images, 0 where there are neither.

    A threshold that one of them lacks is left out.

    Args:
        baselines: name -> threshold -> number of images.
    """
    public = figures.public_successes if figures.public_successes is not None else baselines.get(PUBLIC)
    known = [successes for successes in (public, baselines.get(FLAT)) if successes is not None]
    return {
        limit: max((successes[limit] for successes in known), default=0)
        for limit in figures.success
        if all(limit in successes for successes in known)
    }


def beside_guesses(target: ImageTarget, figures: ImageFigures) -> tuple[int, Recovery | None]:
    """How many images guesses recover at the threshold of an attack's recoveries (:func:`recovered`).

    Returns:
        this number; and if the attack recovered no more, the recovery at a threshold where some attack beats guesses.
    """
    counted = recovered(figures)
    guessed = guesses(target.baseline_successes, figures)[counted.limit]
    return guessed, beyond_baselines(target) if counted.rate.successes <= guessed else None


def may_be_more(target: ImageTarget) -> str | None:
    """Why more images may be recoverable than were recovered: no attack's failure is evidence.

    ``None``: some attack's failure is evidence, or all images were recovered, or no attack is conclusive.
    """
    statuses = [outcome.status for outcome, _ in ran(target)]
    if best(target) is None or all_recovered(target) or any(status.is_evidence for status in statuses):
        return None
    return "; ".join(dict.fromkeys(status.why for status in statuses))


def all_recovered(target: ImageTarget) -> bool:
    """Whether an attack recovered all images."""
    return (most := best(target)) is not None and most.rate.share == 1


def gives_away(center: CenterOutcome) -> bool:
    """Whether class centres gave images away, more than guesses recover."""
    return center.recovered.rate.successes > 0


def known_members(targets: Iterable[ImageTarget]) -> Iterator[KnownMembers]:
    """The real messages from which more images were recovered than by guesses.

    An image that is recovered only because it is like a public one proves no membership.
    """
    for target in targets:
        if target.kind == "message" and (most := beyond_baselines(target)) is not None and most.rate.successes:
            yield KnownMembers(
                round=target.round, sender=target.sender, what="images", attack=most.outcome.attack, rate=most.rate
            )


def _counts(success: Mapping[str, Rate]) -> dict[str, int]:
    """Threshold -> number of images, the loosest first."""
    return counts({limit: success[limit] for limit in sorted(success, key=float, reverse=True)})
