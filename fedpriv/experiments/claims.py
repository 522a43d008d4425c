"""The verdict on a paper's claim: our number compared with the paper's.

The rule, for the differences d of the seeds, with signs such that the claim is d > margin >= 0:

* **reproduced**: at least 3 seeds, a paired 95 % t interval of d above 0, and a mean of at least the margin.
* **not reproduced**: the interval ends below the margin; or every seed falls short of the margin, by more than the seeds differ
  from each other. The second clause applies from 2 seeds on, for which an interval is too wide to be useful. If A and B were
  equal, it would hold by chance for one pair of seeds in ten.
* **inconclusive** otherwise, and always with a single seed.

The bytes of an upload are not random, so they are compared directly, with any number of seeds, all of which must be as claimed
(``bytes_saved`` is random: it depends on the accuracy of both runs). Where the other run is so good that no run could be better
by as much as the claim says, there is nothing to test: *inconclusive*.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedpriv.errors import UsageError
from fedpriv.experiments.paired import PAIRED, REACHES, reach
from fedpriv.experiments.results import Result
from fedpriv.experiments.spec import BEST_BASELINE, Claim

Results = Mapping[str, Mapping[int, Result]]
"""label -> seed -> result; empty for a label without results."""

MIN_SEEDS = 3
_UNBOUNDED = ("test_loss_roughness", "upload_bytes")
"""Metrics that are no shares."""
_COUNTED = ("upload_bytes",)
"""Metrics that are not random."""
_RATIOS = ("speed_up",)
"""Metrics whose means and intervals are those of the logarithms: twice as fast and half as fast are as far from no change."""
_SHORT, _WRONG = "short of it on every seed", "wrong sign on every seed"
REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"


@dataclass(frozen=True)
class Verdict:
    """The verdict in a word, with a remark."""

    word: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.remark})" if self.remark else self.word


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
        differences, wrong = [sign * (value - scaled(bound)) for value in values], _SHORT
    else:
        differences, wrong = list(values), _WRONG
    if claim.metric in _COUNTED and values:
        holds = all(difference > 0 and difference >= claim.margin for difference in differences)
        verdict = Verdict(REPRODUCED if holds else NOT_REPRODUCED, "counted")
    else:
        verdict = decide(differences, claim.margin, wrong)
    return Verdict(verdict.word, f"{verdict.remark}; {claim.stand_in}") if claim.stand_in else verdict


def decide(differences: Sequence[float], margin: float = 0.0, wrong: str = _WRONG) -> Verdict:
    """The rule of the module's docstring.

    Args:
        differences: one per seed, positive where the claim holds.
        margin: the claimed size of the difference, not negative.
        wrong: the remark where all differences are negative.
    """
    count = len(differences)
    seeds = f"{count} seed{'' if count == 1 else 's'}"
    if count < 2:
        return Verdict(INCONCLUSIVE, seeds)
    low, high = mean_interval(differences)
    short = [margin - value for value in differences]
    sign_holds = count >= MIN_SEEDS and low > 0
    if sign_holds and statistics.fmean(differences) >= margin:
        return Verdict(REPRODUCED, seeds)
    word = NOT_REPRODUCED if high < margin or min(short) > max(differences) - min(differences) else INCONCLUSIVE
    if all(value < 0 for value in differences):
        return Verdict(word, f"{seeds}, {wrong}")
    if sign_holds:
        return Verdict(word, f"{seeds}, the sign holds, the size does not")
    return Verdict(word, f"{seeds}, {_SHORT}" if min(short) > 0 else seeds)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the mean of at least two values, such as paired differences (Student's t)."""
    from scipy.stats import t

    mean, count = statistics.fmean(values), len(values)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return mean - half, mean + half


def metric(result: Result, name: str, fraction: float = 1.0) -> float | None:
    """A metric of one run (:data:`fedpriv.experiments.spec.Metric`); ``None`` where it does not apply.

    ``early_accuracy`` is the mean over the evaluations of the first quarter of the rounds; ``test_loss_roughness`` the standard
    deviation of the changes of the global model's test loss (nats) from one evaluation to the next in the second half;
    ``probe`` the accuracy, after the last round, of a linear classifier trained with the share ``fraction`` of the labels.

    Raises:
        UsageError: an accuracy of a self-supervised run, or a probe that the run does not have.
    """
    summary = result.summary
    if name == "probe":
        share = f"{fraction:g}"
        if share not in summary.get("probe", {}):
            raise UsageError(f"run {result.label} has no probe with {share} of the labels (eval.probe, eval.probe_fractions)")
        return float(summary["probe"][share])
    if summary["accuracy"] is None and name != "upload_bytes":
        raise UsageError(f"run {result.label} is self-supervised and has no {name}; use metric probe, with eval.probe")
    if name == "test_loss_roughness":
        losses: list[float | None] = result.curve.get("test_loss") or []
        late = [loss for number, loss in zip(result.curve["round"], losses, strict=False) if number > summary["rounds"] / 2]
        known = [loss for loss in late if loss is not None]
        return statistics.stdev(after - before for before, after in pairwise(known)) if 2 < len(known) == len(late) else None
    if name == "early_accuracy":
        early = [accuracy for number, accuracy in result.tested() if number <= summary["rounds"] / 4]
        return statistics.fmean(early) if early else None
    if name == "upload_bytes":
        return float(summary["bytes_per_upload"])
    protocol = {"accuracy": "last_rounds_client_mean", "global_accuracy": "global_test"}.get(name, name)
    value = summary["protocols"].get(protocol)  # results of earlier versions have no `fresh_head`
    return None if value is None else float(value)
