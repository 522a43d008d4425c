"""What attacks on images show: how many were recovered, and whether that is more than guesses without the message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedpriv.attacks.scoring.scores import RECOVERED, Rate, counts, threshold_above, wilson
from fedpriv.audit.results import (
    AuditedRun,
    CenterOutcome,
    CountedRate,
    ImageFigures,
    ImageOutcome,
    ImageTarget,
    KnownMembers,
    TargetKind,
)

LIMIT = f"{RECOVERED:g}"
"""The threshold of "recovered", as a key of the figures."""
PUBLIC, FLAT = "nearest public", "own mean colour"
"""Baselines that a recovery is compared with: as many images as these count for may be recovered by chance."""


@dataclass(frozen=True)
class Closer:
    """An attack that recovered more images than guesses would count for, at the threshold ``limit``."""

    outcome: ImageOutcome
    figures: ImageFigures
    limit: str

    @property
    def rate(self) -> Rate:
        """How many it recovered."""
        return self.figures.success[self.limit]


@dataclass(frozen=True)
class BestImages:
    """The attack that recovered most of some targets' images, and how many count."""

    target: ImageTarget
    outcome: ImageOutcome
    counted: CountedRate


def ran(target: ImageTarget) -> Iterator[tuple[ImageOutcome, ImageFigures]]:
    """The attacks that were run, with their figures."""
    return ((one, one.figures) for one in target.outcomes if one.figures is not None)


def counted(figures: ImageFigures) -> CountedRate:
    """The rate of images that count as recovered.

    Of an attacker who knows public images, at the loosest threshold at which it found more than copies of these would count
    for; none where there is no such threshold.
    """
    if figures.copies is None:
        return CountedRate(figures.success[LIMIT], LIMIT)
    limit = threshold_above(_counts(figures.success), figures.copies)
    if limit is None:
        return CountedRate(wilson(0, figures.success[LIMIT].n), LIMIT)
    return CountedRate(figures.success[limit], limit)


def conclusive(target: ImageTarget) -> list[tuple[ImageOutcome, ImageFigures]]:
    """The attacks that recovered images, and those that recovered none and whose failure is evidence; others measure nothing."""
    return [(one, figures) for one, figures in ran(target) if counted(figures).rate.successes or one.status.is_evidence]


def best(target: ImageTarget) -> BestImages | None:
    """Of the conclusive attacks, the one that recovered the largest share; among equals, the one with the least median error.

    Attacks on single images are on different numbers of them.
    """
    some = conclusive(target)
    if not some:
        return None
    outcome, figures = max(some, key=lambda pair: (counted(pair[1]).rate.share, -pair[1].mse_median))
    return BestImages(target, outcome, counted(figures))


def is_known(target: ImageTarget) -> bool:
    """Whether it is known what can be recovered: more was than guesses count for, or the failure of an attack is evidence."""
    return any(one.status.is_evidence for one, _ in ran(target)) or closer(target) is not None


def closer(target: ImageTarget) -> Closer | None:
    """An attack that recovered more images than copies of the nearest public image, or flat ones of the right colour, count for.

    Returns:
        of several, the one at the loosest threshold, and with most images there; ``None``: there is none.
    """
    found = [
        Closer(one, figures, limit)
        for one, figures in ran(target)
        if (limit := threshold_above(_counts(figures.success), guesses(target.baselines_by_count, figures))) is not None
    ]
    return max(found, key=lambda one: (float(one.limit), one.rate.successes), default=None)


def beyond_guesses(figures: ImageFigures, baselines: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether more images were recovered than guesses count for, at some threshold."""
    return threshold_above(_counts(figures.success), guesses(baselines, figures)) is not None


def guesses(baselines: Mapping[str, Mapping[str, int]], figures: ImageFigures) -> Mapping[str, int]:
    """Threshold -> how many images guesses count for: the better of copies and flat images, 0 where there are neither.

    A threshold that one of them lacks is left out.

    Args:
        baselines: name -> threshold -> number of images.
    """
    public = figures.copies if figures.copies is not None else baselines.get(PUBLIC)
    known = [one for one in (public, baselines.get(FLAT)) if one is not None]
    return {
        limit: max((one[limit] for one in known), default=0) for limit in figures.success if all(limit in one for one in known)
    }


def beside_guesses(target: ImageTarget, figures: ImageFigures) -> tuple[int, Closer | None]:
    """What stands beside the images that :func:`counted` gives of an attack.

    Returns:
        how many of them guesses would count for; and, where these are as many as were recovered, what :func:`closer` found at a
        stricter threshold.
    """
    hit = counted(figures)
    copies = guesses(target.baselines_by_count, figures)[hit.limit]
    return copies, closer(target) if hit.rate.successes <= copies else None


def may_be_more(target: ImageTarget) -> str | None:
    """Why more images may be recoverable than were: the failure of no attack is evidence.

    ``None``: one is, or all were recovered, or none was run to any effect.
    """
    most = best(target)
    made = [one for one, _ in ran(target)]
    if most is None or most.counted.rate.share == 1 or any(one.status.is_evidence for one in made):
        return None
    return "; ".join(dict.fromkeys(one.status.why for one in made))


def all_recovered(target: ImageTarget) -> bool:
    """Whether an attack recovered all images."""
    return (most := best(target)) is not None and most.counted.rate.share == 1


def best_of(run: AuditedRun, kind: TargetKind) -> BestImages | None:
    """The attack that recovered most, of all targets of a kind."""
    found = [most for target in run.images if target.kind == kind and (most := best(target)) is not None]
    return max(found, key=lambda one: (one.counted.rate.share, -_figures(one.outcome).mse_median), default=None)


def gives_away(center: CenterOutcome) -> bool:
    """Whether class centres gave images away, more than guesses would count for."""
    return center.counted.rate.successes > 0


def known_members(targets: Iterable[ImageTarget]) -> Iterator[KnownMembers]:
    """The real messages from which images were reconstructed, more than guesses count for: what a copy of a public image is near
    to may well be no member."""
    for target in targets:
        if target.kind == "message" and (found := closer(target)) is not None and found.rate.successes:
            yield KnownMembers(
                round=target.round, sender=target.sender, what="images", attack=found.outcome.attack, rate=found.rate
            )


def _counts(success: Mapping[str, Rate]) -> dict[str, int]:
    """Threshold -> number of images, the loosest first."""
    return counts({limit: success[limit] for limit in sorted(success, key=float, reverse=True)})


def _figures(outcome: ImageOutcome) -> ImageFigures:
    assert outcome.figures is not None
    return outcome.figures
