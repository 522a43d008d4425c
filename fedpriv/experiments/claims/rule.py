"""The verdict on a paper's claim: our number compared with the paper's.

The rule, for the differences d of the seeds, with signs such that the claim is d > margin >= 0:

* **reproduced**: at least 3 seeds, a paired 95 % t interval of d above 0, and a mean of at least the margin.
* **not reproduced**: the interval ends below the margin; or every seed falls short of the margin, by more than the seeds differ
  from each other; or d is exactly 0 on every seed. The second clause applies from 2 seeds on, for which an interval is too wide
  to be useful. If A and B were equal but for chance, it would hold for one pair of seeds in ten.
* **inconclusive** otherwise, and always with a single seed.

Against the best of k others, the claim is about each of them, since who is best is not known from a few seeds: *reproduced* only
if it is so against each; *not reproduced* if Simes' test (Biometrika 73, 1986) rejects, at 2.5 %, that it holds against all: if
for some i the i-th smallest of the k one-sided p-values is at most i * 0.025 / k. So one that is far ahead shows it, or several
that are somewhat ahead. The clause for two seeds is left out, which would hold by chance for one of several far more often.

The bytes of an upload are not random, so they are compared directly, with any number of seeds, all of which must be as claimed
(``bytes_saved`` is random: it depends on the accuracy of both runs). Where the other run is so good that no run could be better
by as much as the claim says, there is nothing to test: *inconclusive*. A value that is only a bound, since the first run never
reaches the other's accuracy, decides only what it bounds: it shows that a claim falls short, not that it holds, or the reverse.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.evaluation.intervals import LEVEL, mean_interval

MIN_SEEDS = 3
SHORT, WRONG, BEYOND = "short of it on every seed", "wrong sign on every seed", "above the bound on every seed"
SAME, EXACTLY = "a difference of 0 on every seed", "exactly the bound on every seed"
REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"


@dataclass(frozen=True)
class Verdict:
    """The verdict in a word, with a remark."""

    word: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.remark})" if self.remark else self.word


def decide(differences: Sequence[float], margin: float = 0.0, wrong: str = WRONG) -> Verdict:
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
    if not any(differences):
        return Verdict(NOT_REPRODUCED, f"{seeds}, {SAME if wrong == WRONG else EXACTLY}")
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
    return Verdict(word, f"{seeds}, {SHORT}" if min(short) > 0 else seeds)


def decide_against_each(differences: Mapping[str, Sequence[float]], best: str, margin: float = 0.0) -> Verdict:
    """The rule for a claim against the best of several others.

    Args:
        differences: other run -> one difference per seed, positive where the claim holds; of each the same seeds.
        best: the other run that is shown.
        margin: the claimed size of the difference, not negative.
    """
    alone = {label: decide(values, margin) for label, values in differences.items()}
    shown = alone[best]
    if all(verdict.word == REPRODUCED for verdict in alone.values()):
        return shown
    if failed := _rejected({label: _p_of_falling_short(values, margin) for label, values in differences.items()}):
        also = "" if best in failed else f"; short of it against {', '.join(failed)}"
        return Verdict(NOT_REPRODUCED, f"{shown.remark}{also}")
    if shown.word == REPRODUCED:
        unshown = ", ".join(label for label, verdict in alone.items() if verdict.word != REPRODUCED)
        return Verdict(INCONCLUSIVE, f"{shown.remark}; not shown against {unshown}")
    return Verdict(INCONCLUSIVE, shown.remark)


def _rejected(p_values: Mapping[str, float]) -> list[str]:
    """The others by which Simes' test rejects that a claim holds against all; empty: it does not."""
    ordered = sorted(p_values, key=lambda label: p_values[label])
    share = (1 - LEVEL) / 2 / len(ordered)
    enough = [count for count, label in enumerate(ordered, 1) if p_values[label] <= count * share]
    return ordered[: max(enough, default=0)]


def _p_of_falling_short(values: Sequence[float], margin: float) -> float:
    """One-sided p-value of the values (Student's t), where their true mean were the margin; 1 for a single one."""
    from scipy.stats import t

    if len(values) < 2:
        return 1.0
    distance, spread = statistics.fmean(values) - margin, statistics.stdev(values) / math.sqrt(len(values))
    return float(t.cdf(distance / spread, len(values) - 1)) if spread else float(distance >= 0 and any(values))
