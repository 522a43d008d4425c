"""Our number beside a claim, and the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedpriv.experiments.claims.metrics import metric
from fedpriv.experiments.claims.rule import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    SHORT,
    WRONG,
    Verdict,
    decide,
    mean_interval,
)
from fedpriv.experiments.paired import PAIRED, REACHES, reach
from fedpriv.experiments.results import Result
from fedpriv.experiments.spec import BEST_BASELINE, Claim

Results = Mapping[str, Mapping[int, Result]]
"""label -> seed -> result; empty for a label without results."""

_UNBOUNDED = ("test_loss_roughness", "upload_bytes")
"""Metrics that are no shares."""
_COUNTED = ("upload_bytes",)
"""Metrics that are not random."""
_RATIOS = ("speed_up",)
"""Metrics whose means and intervals are those of the logarithms: twice as fast and half as fast are as far from no change."""


@dataclass(frozen=True)
class Judgement:
    """A claim and the result of our runs.

    Attributes:
        opponent: the run that ``best_baseline`` stands for.
        baselines: the runs from which it was chosen.
        values: seed -> the metric of ``of``, that of a pair of runs, or the difference A - B.
        mean, interval: of the values; the interval is the paired 95 % t interval (from 2 seeds on; not for ``upload_bytes``). Of
            ratios (``speed_up``) both are computed on the logarithms.
    """

    claim: Claim
    opponent: str | None
    baselines: Sequence[str]
    values: Mapping[int, float]
    mean: float | None
    interval: tuple[float, float] | None
    verdict: Verdict


def judge(claim: Claim, results: Results) -> Judgement:
    """Compute our number and the verdict, over the seeds that all runs of the claim have finished."""
    opponent, baselines = None, _baselines(claim, results)
    concerned = [*(label for label in claim.labels if label != BEST_BASELINE), *baselines]
    seeds = [
        seed for seed in sorted(_union(results, concerned)) if _have([results[label].get(seed) for label in concerned], claim)
    ]
    if BEST_BASELINE in claim.labels and not baselines:
        seeds = []
    if baselines and seeds:
        opponent = max(
            baselines,
            key=lambda label: statistics.fmean(
                metric(results[label][seed], claim.metric, claim.fraction) or 0.0 for seed in seeds
            ),
        )
    values: dict[int, float] = {}
    most: list[float] = []
    short: list[bool] = []
    for seed in seeds:
        sides = [results[opponent if label == BEST_BASELINE and opponent else label][seed] for label in claim.labels]
        most.append(_most(claim, sides))
        if claim.metric in PAIRED:
            values[seed] = PAIRED[claim.metric](*sides) or 0.0
            short.append(claim.metric in REACHES and reach(sides[0], sides[1].summary["accuracy"]) is None)
        else:
            first, *other = (metric(side, claim.metric, claim.fraction) or 0.0 for side in sides)
            values[seed] = first - sum(other)
    scaled, unscaled = (math.log, math.exp) if claim.metric in _RATIOS else (float, float)
    drawn = [scaled(value) for value in values.values()]
    mean = unscaled(statistics.fmean(drawn)) if drawn else None
    interval = None
    if len(drawn) > 1 and claim.metric not in _COUNTED:
        low, high = mean_interval(drawn)
        interval = unscaled(low), unscaled(high)
    verdict = _verdict(claim, drawn, scaled)
    if verdict.word == REPRODUCED and claim.metric in REACHES and claim.above is not None and (never := sum(short)):
        verdict = Verdict(INCONCLUSIVE, f"{verdict.remark}; on {never} the first run never gets there, so its value is a bound")
    if lacking := [seed for seed in sorted(_union(results, concerned)) if seeds and _lacks(results, concerned, seed, claim)]:
        verdict = Verdict(verdict.word, f"{verdict.remark}; no {claim.metric} on seed {', '.join(map(str, lacking))}")
    wanted = claim.margin if claim.above is None else claim.above
    if drawn and wanted > 0 and max(most) <= wanted:
        room = "of the clients could gain" if claim.metric == "clients_better" else "could be gained"
        verdict = Verdict(INCONCLUSIVE, f"cannot be tested: at most {100 * max(most):.2g} % {room}")
    return Judgement(claim, opponent, baselines, values, mean, interval, verdict)


def _baselines(claim: Claim, results: Results) -> list[str]:
    """The runs from which ``best_baseline`` is chosen: all others, but for those whose results do not have the metric."""
    if BEST_BASELINE not in claim.labels:
        return []
    others = {label: list(of_label.values()) for label, of_label in results.items() if label not in claim.labels}
    return [
        label
        for label, runs in others.items()
        if not runs or any(metric(run, claim.metric, claim.fraction) is not None for run in runs)
    ]


def _most(claim: Claim, sides: Sequence[Result]) -> float:
    """The largest value that the claim's number could have, whatever the first run were."""
    if claim.compare is None:
        return math.inf
    other = sides[1]
    if claim.metric == "clients_better":
        return statistics.fmean(accuracy < 1 for accuracy in other.summary["accuracy_per_client"] if accuracy is not None)
    if claim.metric in PAIRED or claim.metric in _UNBOUNDED:
        return math.inf
    return 1 - (metric(other, claim.metric, claim.fraction) or 0.0)


def _union(results: Results, labels: Sequence[str]) -> set[int]:
    return {seed for label in labels for seed in results[label]}


def _lacks(results: Results, labels: Sequence[str], seed: int, claim: Claim) -> bool:
    """Whether all runs of a seed are there, but not what the claim is computed from."""
    sides = [results[label].get(seed) for label in labels]
    return None not in sides and not _have(sides, claim)


def _have(sides: Sequence[Result | None], claim: Claim) -> bool:
    """Whether the runs of a seed have what the claim is computed from."""
    there = [side for side in sides if side is not None]
    if len(there) < len(sides):
        return False
    if claim.metric in PAIRED:
        return PAIRED[claim.metric](*there) is not None
    return all(metric(side, claim.metric, claim.fraction) is not None for side in there)


def _verdict(claim: Claim, values: Sequence[float], scaled: Callable[[float], float]) -> Verdict:
    """Of values on the metric's scale, to which ``scaled`` brings the claim's bound."""
    if claim.equals is not None and values:
        holds = all(abs(value - claim.equals) <= claim.within for value in values)
        return Verdict(REPRODUCED if holds else NOT_REPRODUCED, "counted")
    if claim.of and claim.stand_in:
        return Verdict(INCONCLUSIVE, f"{claim.stand_in}: the level is not comparable")
    bound = claim.below if claim.above is None else claim.above
    if bound is not None:
        sign = -1 if claim.above is None else 1
        differences, wrong = [sign * (value - scaled(bound)) for value in values], SHORT
    else:
        differences, wrong = list(values), WRONG
    if claim.metric in _COUNTED and values:
        holds = all(difference > 0 and difference >= claim.margin for difference in differences)
        verdict = Verdict(REPRODUCED if holds else NOT_REPRODUCED, "counted")
    else:
        verdict = decide(differences, claim.margin, wrong)
    return Verdict(verdict.word, f"{verdict.remark}; {claim.stand_in}") if claim.stand_in else verdict
