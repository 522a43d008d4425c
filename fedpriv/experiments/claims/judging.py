"""Our number beside a claim, and the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fedpriv.evaluation.intervals import mean_interval
from fedpriv.experiments.claims.metrics import metric
from fedpriv.experiments.claims.rule import (
    BEYOND,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    SHORT,
    Verdict,
    decide,
    decide_against_each,
)
from fedpriv.experiments.paired import PAIRED, REACHES, until_as_good, why_not
from fedpriv.experiments.results import Result
from fedpriv.experiments.spec import BEST_BASELINE, Claim

Results = Mapping[str, Mapping[int, Result]]
"""label -> seed -> result; empty for a label without results."""

_UNBOUNDED = ("test_loss_roughness", "upload_bytes")
"""Metrics that are not shares."""
_COUNTED = ("upload_bytes",)
"""Metrics that are not random."""
_RATIOS = ("speed_up",)
"""Metrics whose means and intervals are those of the logarithms: twice as fast and half as fast are as far from no change."""
_GAINS = {"speed_up": "speed-up", "bytes_saved": "saving"}
"""Names of the metrics of ``REACHES`` in a remark."""


@dataclass(frozen=True)
class Judgement:
    """A claim and the result of our runs.

    Attributes:
        opponent: the run that ``best_baseline`` stands for.
        baselines: the runs from which it was chosen.
        values: seed -> the metric of ``of``, that of a pair of runs, or the difference A - B; with ``best_baseline`` of A and the
            opponent.
        mean, interval: of the values; the interval is the paired 95 % t interval (from 2 seeds on; not for ``upload_bytes``), not
            corrected for the choice of the opponent. Of ratios (``speed_up``) both are computed on the logarithms.
    """

    claim: Claim
    opponent: str | None
    baselines: Sequence[str]
    values: Mapping[int, float]
    mean: float | None
    interval: tuple[float, float] | None
    verdict: Verdict


def judge(claim: Claim, results: Results, diverged: Mapping[str, Collection[int]] = MappingProxyType({})) -> Judgement:
    """Compute our number and the verdict, over the seeds that all runs of the claim have finished.

    Args:
        diverged: label -> seeds of runs that a client's divergence ended; the verdict names those of the claim.
    """
    baselines = _baselines(claim, results)
    concerned = [*(label for label in claim.labels if label != BEST_BASELINE), *baselines]
    finished = sorted(set.intersection(*({*results[label]} for label in concerned)))
    seeds = [seed for seed in finished if _have([results[label][seed] for label in concerned], claim)]
    if none_to_beat := BEST_BASELINE in claim.labels and not baselines:
        seeds = []
    scaled, unscaled = (math.log, math.exp) if claim.metric in _RATIOS else (float, float)
    by_baseline = {label: [_value(claim, _sides(claim, results, seed, label)) for seed in seeds] for label in baselines}
    opponent = min(by_baseline, key=lambda label: statistics.fmean(by_baseline[label])) if baselines and seeds else None
    sides = {seed: _sides(claim, results, seed, opponent) for seed in seeds}
    values = {seed: _value(claim, both) for seed, both in sides.items()}
    drawn = [scaled(value) for value in values.values()]
    mean = unscaled(statistics.fmean(drawn)) if drawn else None
    interval = None
    if len(drawn) > 1 and claim.metric not in _COUNTED:
        low, high = mean_interval(drawn)
        interval = unscaled(low), unscaled(high)
    verdict = _verdict(claim, drawn, scaled, by_baseline, opponent)
    if claim.metric in REACHES:
        verdict = _limit_to_bounds(verdict, claim, [seed for seed in seeds if until_as_good(*sides[seed]) is None])
    if none_to_beat:
        verdict = Verdict(verdict.word, f"{verdict.remark}; no other method has {claim.metric}")
    elif lacking := [seed for seed in finished if seed not in seeds]:
        why = why_not(claim.metric, *_sides(claim, results, lacking[0], None)) if claim.metric in PAIRED else ""
        missing = f"no {claim.metric} on seed {', '.join(map(str, lacking))}{f': {why}' if why else ''}"
        verdict = Verdict(verdict.word, f"{verdict.remark}; {missing}")
    if ended := [f"{label} on seed {', '.join(map(str, sorted(s)))}" for label in concerned if (s := diverged.get(label))]:
        verdict = Verdict(verdict.word, f"{verdict.remark}; diverged: {', '.join(ended)}")
    wanted = claim.margin if claim.above is None else claim.above
    if drawn and claim.below is None and wanted >= 0 and (most := max(_most(claim, both) for both in sides.values())) <= wanted:
        room = "of the clients could gain" if claim.metric == "clients_better" else "could be gained"
        verdict = Verdict(INCONCLUSIVE, f"cannot be tested: at most {100 * most:.2g} % {room}")
    if claim.stand_in and claim.compare:
        verdict = Verdict(verdict.word, f"{verdict.remark}; {claim.stand_in}")
    return Judgement(claim, opponent, baselines, values, mean, interval, verdict)


def _baselines(claim: Claim, results: Results) -> list[str]:
    """The runs from which ``best_baseline`` is chosen, without those whose results lack the metric."""
    return [
        label
        for label in claim.baselines or ()
        if not results[label] or any(_have([run], claim) for run in results[label].values())
    ]


def _sides(claim: Claim, results: Results, seed: int, opponent: str | None) -> list[Result]:
    """The runs of a claim at a seed, with this one for ``best_baseline``."""
    return [results[opponent if label == BEST_BASELINE and opponent else label][seed] for label in claim.labels]


def _value(claim: Claim, sides: Sequence[Result]) -> float:
    if claim.metric in PAIRED:
        return PAIRED[claim.metric](*sides) or 0.0
    first, *other = (metric(side, claim.metric, claim.fraction) or 0.0 for side in sides)
    return first - sum(other)


def _most(claim: Claim, sides: Sequence[Result]) -> float:
    """The largest value that the claim's number could have with any first run."""
    if claim.compare is None:
        return math.inf
    other = sides[1]
    if claim.metric == "clients_better":
        return statistics.fmean(accuracy < 1 for accuracy in other.summary["accuracy_per_client"] if accuracy is not None)
    if claim.metric in PAIRED or claim.metric in _UNBOUNDED:
        return math.inf
    return 1 - (metric(other, claim.metric, claim.fraction) or 0.0)


def _have(sides: Sequence[Result], claim: Claim) -> bool:
    """Whether the runs of a seed have what the claim is computed from."""
    if claim.metric in PAIRED:
        return PAIRED[claim.metric](*sides) is not None
    return all(metric(side, claim.metric, claim.fraction) is not None for side in sides)


def _verdict(
    claim: Claim,
    values: Sequence[float],
    scaled: Callable[[float], float],
    by_baseline: Mapping[str, Sequence[float]],
    opponent: str | None,
) -> Verdict:
    """The verdict by the rule of :mod:`fedpriv.experiments.claims.rule`.

    Args:
        values: on the scale on which they are compared; ``scaled`` brings the claim's bound to it.
        by_baseline: the values against each run that ``opponent`` was chosen from.
    """
    if claim.of and claim.stand_in:
        return Verdict(INCONCLUSIVE, f"{claim.stand_in}: the level is not comparable")
    if claim.metric in _COUNTED and values:
        held = [_holds(claim, value) for of_run in (by_baseline.values() if opponent else [values]) for value in of_run]
        return Verdict(REPRODUCED if all(held) else NOT_REPRODUCED, "counted")
    if opponent is not None:
        return decide_against_each(by_baseline, opponent, claim.margin)
    if claim.above is not None:
        return decide([value - scaled(claim.above) for value in values], wrong=SHORT)
    if claim.below is not None:
        return decide([scaled(claim.below) - value for value in values], wrong=BEYOND)
    return decide(values, claim.margin)


def _holds(claim: Claim, value: float) -> bool:
    """Whether a number that is not random is as claimed."""
    if claim.equals is not None:
        return abs(value - claim.equals) <= claim.within
    if claim.above is not None:
        return value > claim.above
    if claim.below is not None:
        return value < claim.below
    return value > 0 and value >= claim.margin


def _limit_to_bounds(verdict: Verdict, claim: Claim, short: Sequence[int]) -> Verdict:
    """The verdict where the first run never reaches the other's accuracy on the seeds ``short``.

    The values of these are upper bounds: they cannot show that a claim ``above`` holds, or that one ``below`` does not.
    """
    if not short:
        return verdict
    open_to = NOT_REPRODUCED if claim.above is None else REPRODUCED
    where = f"on {len(short)} seed{'s' * (len(short) > 1)} {claim.labels[0]} never reaches it"
    remark = f"{verdict.remark}; {where}; its {_GAINS[claim.metric]} is at most the value shown"
    return Verdict(INCONCLUSIVE if verdict.word == open_to else verdict.word, remark)
