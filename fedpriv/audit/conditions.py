"""Conditions on what an audit found, for pipelines: ``recovered>0.05,membership_auc>0.6,epsilon>8``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.audit.answer import samples_not_known, statistics_not_known
from fedpriv.audit.membership.classes import (
    beyond_guessing,
    by_rule,
    classes_open,
    could_find_classes,
    lacks_a_class,
    share_by_rule,
    steps_open,
)
from fedpriv.audit.membership.verdict import not_attacked, reversed_attack, too_few
from fedpriv.audit.text.verdict import best_reading, naming_words, sentences_not_known
from fedpriv.audit.text.verdict import that_count as sentences_that_count
from fedpriv.audit.verdict import (
    best_attempt,
    classes_cut,
    counted,
    gives_away,
    may_be_more,
    part_of,
    parts_of,
    samples_cut,
    that_count,
)
from fedpriv.errors import UnknownName, UsageError

Found = Mapping[str, Any]

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([0-9.eE+-]+|inf)\s*")


def most_recovered(run: Found) -> Found | None:
    """The rate, with its interval, of the attack that recovered the largest share of samples; ``None``: it is not known.

    Of equal shares, it is that of the fewest samples, which leaves the most open: 0 of 6 rather than 0 of 72.
    """
    made = [counted(best) for attack in run["attacks"] if (best := best_attempt(attack)) is not None]
    made += [best["exact"] for read in run.get("texts") or [] if (best := best_reading(read)) is not None and best["exact"]]
    # What class centres do not give away is no evidence, so they can only add to what is known.
    made += [one["recovered"] for one in run.get("centers") or [] if gives_away(one)]
    return max(made, key=lambda rate: (rate["share"], rate["high"]), default=None)


def most_open(run: Found) -> Found | None:
    """The rate that leaves most open: of all attacks that count, the one whose interval reaches highest; ``None``: none counts.

    Returns:
        the rate, with the ``attacker`` and the ``kind`` of what was attacked: ``message``, ``single image``, ``single text`` or
        ``class centres``.
    """
    rates = [
        {**counted(one), "attacker": one["attacker"], "kind": attack["kind"]}
        for attack in run["attacks"]
        for one in that_count(attack)
    ]
    rates += [
        {**one["exact"], "attacker": one["attacker"], "kind": read["kind"]}
        for read in run.get("texts") or []
        for one in sentences_that_count(read)
    ]
    rates += [
        {**one["recovered"], "attacker": "inversion", "kind": "class centres"}
        for one in run.get("centers") or []
        if gives_away(one)
    ]
    return max(rates, key=lambda rate: rate["high"], default=None)


def membership_open(run: Found) -> float | None:
    """The largest AUC that membership attacks leave open, by the intervals that hold for all at once; ``None``: none is known.

    Of an attack that surely gives members the lower scores it is one less the lower end.
    """
    known = [one for one in run["membership"] if one["auc"] is not None]
    bounds = [float(one["together"]["high"] if "together" in one else one["auc_high"]) for one in known]
    if (turned := reversed_attack(run["membership"])) is not None:
        bounds.append(1 - float(turned["together"]["low"]))
    return max(bounds, default=None)


def _recovered(run: Found) -> float | None:
    return None if (rate := most_recovered(run)) is None else float(rate["share"])


def _words(run: Found) -> float | None:
    reads = run.get("texts") or []
    named = [one["recall"] or 0.0 for read in reads if (one := naming_words(read)) is not None]
    return max(named, default=0.0 if any(map(best_reading, reads)) else None)


def _words_open(run: Found) -> str | None:
    if samples_cut(run):
        return "attacks on texts were cut by the audit's budget"
    reads = [one for one in map(_of_model, run.get("texts") or []) if best_reading(one) is None and _more_words(one)]
    if reads:
        return f"no attack whose failure is evidence was mounted on {len(reads)} of the texts' messages"
    open_still = [what for what, samples in statistics_not_known(run) if samples == "texts"]
    return f"no attack whose failure is evidence was mounted on {', '.join(open_still)}" if open_still else None


def _of_model(read: Found) -> Found:
    return part_of(read, None)


def _more_words(read: Found) -> bool:
    """Whether words may be missing, none of the attacks on a target being evidence of what it did not name."""
    named = naming_words(read)
    return named is None or bool(named.get("no_evidence"))


def _membership(run: Found) -> float | None:
    known = [float(one["auc"]) for one in run["membership"] if one["auc"] is not None]
    if (turned := reversed_attack(run["membership"])) is not None:
        known.append(1 - float(turned["auc"]))
    return max(known, default=None)


def _epsilon(run: Found) -> float | None:
    if not run["epsilon"] or (_excess(run) or 0.0) > 0:  # a claim that is contradicted is none
        return math.inf
    return float(run["epsilon"]["upper"])


def _measured(run: Found) -> float | None:
    found = (run["epsilon"] or {}).get("canaries")
    return found["lower"] if found else None


def _excess(run: Found) -> float | None:
    lower = _measured(run)
    return None if lower is None else lower - run["epsilon"]["upper"]


def _labels(run: Found) -> float | None:
    shares = [share_by_rule(found) for found in (run["labels"], run.get("labels_over_rounds") or []) if by_rule(found)]
    shadow = run.get("label_shadow")
    if shadow is not None and (could_find_classes(shadow) or beyond_guessing(shadow)):
        shares.append(shadow["lacking_exact"] / shadow["lacking"] if beyond_guessing(shadow) else 0.0)
    return max(shares, default=None)


MEASURES: Mapping[str, Callable[[Found], float | None]] = {
    "recovered": _recovered,
    "words": _words,
    "membership_auc": _membership,
    "epsilon": _epsilon,
    "epsilon_measured": _measured,
    "epsilon_excess": _excess,
    "labels": _labels,
}
"""By name, from the findings of a run: the largest share of the samples behind a message, or of single samples or class centres,
that an attack recovered; the largest share of the tokens of texts that an attack named, far better than chance; the largest area
of a membership attack, or one less the area of an attack that surely orders members last; the accountant's epsilon, infinite
without differential privacy and where canaries contradict it; the largest lower bound of epsilon from the run's canaries; by how
much it exceeds the accountant's (above 0: they contradict); the largest share of messages, or of clients, whose set of classes
was found exactly, of those that lack a class, 0 where guessing would find as many. ``None``: it is not known."""
_SHARES = ("recovered", "words", "membership_auc", "labels")
"""Measures from 0 to 1."""
_FEW = "with so few members and others not even a perfect attack would be distinguished from guessing"


def _samples_open(run: Found) -> str | None:
    if samples_cut(run):
        return "attacks on samples were cut by the audit's budget"
    parts = [part for target in run["attacks"] for part in parts_of(target)]
    reads = [part for read in run.get("texts") or [] for part in parts_of(read)]
    open_still = [*map(may_be_more, parts), *map(sentences_not_known, reads)]
    if why := next(filter(None, open_still), None):
        return f"a failure is no evidence: {why}"
    missing = list(samples_not_known(run))
    return f"no attack whose failure is evidence shows whether {' or '.join(missing)}" if missing else None


def _classes_open(run: Found) -> str | None:
    if classes_cut(run):
        return "inference of classes was cut by the audit's budget"
    if why := steps_open(run["labels"]):
        return why
    shadow = run.get("label_shadow")
    if not shadow and any(map(lacks_a_class, run["labels"])):
        return "no classifier was trained on messages of shadow clients, and that a rule fails is no evidence"
    return classes_open(shadow) if shadow else None


def _members_open(run: Found) -> str | None:
    if rounds := not_attacked(run):
        return f"no membership attack was mounted on messages of round {', '.join(map(str, rounds))}"
    return _FEW if too_few(run["membership"]) else run.get("membership_open")


_UNSETTLED: Mapping[str, Callable[[Found], str | None]] = {
    "recovered": _samples_open,
    "words": _words_open,
    "membership_auc": _members_open,
    "labels": _classes_open,
}
"""Why a measure may be larger than what was found; ``None``: it is not. Then a value below a bound is not known to be."""
_WHY = dict.fromkeys(("epsilon_measured", "epsilon_excess"), "the run has no canaries (fedpriv train --canaries)")
"""Why a measure is not known, other than for want of an attack."""


@dataclass(frozen=True)
class Condition:
    """A measure compared with a bound."""

    measure: str
    compare: str
    bound: float

    def __str__(self) -> str:
        return f"{self.measure}{self.compare}{self.bound:g}"

    def value(self, run: Found) -> float | None:
        """Its measure in a run's findings; ``None``: not known."""
        return MEASURES[self.measure](run)

    def allows(self, value: float) -> bool:
        """Whether it is true of a value of its measure."""
        return _OPERATORS[self.compare](value, self.bound)

    def holds(self, run: Found) -> bool:
        """Whether a run's findings meet it as a target: what is not known does not."""
        if self.compare in ("<", "<=") and self._unsettled(run) is not None:
            return False
        return (value := self.value(run)) is not None and self.allows(value)

    def met(self, run: Found) -> str | None:
        """Why a run's findings meet it as an alarm, in a line; ``None``: they do not. What is not known counts as met."""
        value = self.value(run)
        if value is not None and self.allows(value):
            return f"{self.measure} is {value:.3g} ({self})"
        if self.compare in (">", ">=") and (unsettled := self._unsettled(run)) is not None:
            return f"{self.measure} is not known, as {unsettled} ({self})"
        if value is None:
            why = _WHY.get(self.measure, "no attack could be mounted")
            return f"{self.measure} is not known, as {why} ({self})"
        return None

    def _unsettled(self, run: Found) -> str | None:
        if self.measure in _SHARES and self.value(run) == 1:  # nothing is more than all
            return None
        why_open = _UNSETTLED.get(self.measure)
        return None if why_open is None else why_open(run)


def known_recovered(run: Found) -> float | None:
    """The measure ``recovered``; ``None`` also where nothing was recovered, but an attack that might have was not mounted."""
    value = _recovered(run)
    return None if value == 0 and _samples_open(run) is not None else value


def conditions(text: str, option: str = "--fail-if") -> list[Condition]:
    """Read conditions that are parted by commas.

    Args:
        option: which one they are of, for errors.

    Raises:
        UsageError: one has another form, or an unknown measure.
    """
    found = []
    for part in text.split(","):
        match = _FORM.fullmatch(part)
        try:
            bound = float(match[3]) if match else math.nan
        except ValueError:
            bound = math.nan
        if match is None or math.isnan(bound):
            raise UsageError(f"{option} {part.strip()!r}: a measure, one of > >= < <=, and a number, such as recovered>0")
        if match[1] not in MEASURES:
            raise UnknownName(f"measure of {option}", match[1], MEASURES)
        if match[1] in _SHARES and not 0 <= bound <= 1:
            raise UsageError(f"{option} {part.strip()}: {match[1]} is a share from 0 to 1, such as 0.05 for 5 %")
        found.append(Condition(match[1], match[2], bound))
    return found


def first_met(runs: Sequence[Found], wanted: Sequence[Condition]) -> str | None:
    """The first condition that holds of one of the runs, in a line with the run's name; ``None``: none does."""
    return next((f"{run['name']}: {why}" for run in runs for one in wanted if (why := one.met(run)) is not None), None)
