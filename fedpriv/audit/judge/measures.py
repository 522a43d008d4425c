"""A run's leakage in numbers: the measures that conditions are on, why each may be larger, and all metrics for tables of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.judge import attributes, classes, images, members, rows, texts
from fedpriv.audit.judge.known import samples_cut, samples_not_known, statistics_not_known, was_cut
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.outcome import TargetKind

LOW_RATE = 0.001
"""The false-positive rate of ``membership_tpr``."""


@dataclass(frozen=True)
class Measure:
    """A figure of a run's leakage.

    Attributes:
        value: the figure; ``None``: not known.
        left_open: why the leakage may be larger than the figure, so that it does not meet an upper bound; ``None``: nothing
            speaks for a larger leakage.
        is_share: whether it is from 0 to 1.
        unknown: why it may not be known.
    """

    value: Callable[[AuditedRun], float | None]
    left_open: Callable[[AuditedRun], str | None] = lambda run: None
    is_share: bool = True
    unknown: str = "no attack could be mounted"


@dataclass(frozen=True)
class OpenRate:
    """The rate that leaves most open; ``kind``: ``message``, ``single image``, ``single text``, ``single row`` or
    ``class centres``."""

    rate: Rate
    attack: str
    kind: str


def most_recovered(run: AuditedRun) -> Rate | None:
    """The rate, with its interval, of the attack that recovered the largest share of samples; ``None``: not known.

    Of equal shares, it is that of the fewest samples, which leaves the most open: 0 of 6 rather than 0 of 72.
    """
    rates = [most.rate for target in run.images if (most := images.best(target)) is not None]
    exact = [attack.figures.exact for target in run.texts if (attack := texts.best(target)) is not None]
    rates += [rate for rate in exact if rate is not None]
    rates += [rows.recovered(cells) for target in run.rows if (cells := rows.best(target)) is not None]
    # That class centres give nothing away is no evidence: they can only add to what is known.
    rates += [center.recovered.rate for center in run.centers if images.gives_away(center)]
    rates += [wilson(client.rows, client.rows) for client in run.told_rows if client.whole]
    return max(rates, key=lambda rate: (rate.share, rate.high), default=None)


def most_open(run: AuditedRun) -> OpenRate | None:
    """The rate of the conclusive attack whose interval reaches highest; ``None``: none is conclusive."""
    rates = [
        OpenRate(recovery.rate, recovery.outcome.attack, target.kind)
        for target in run.images
        for recovery in images.conclusive(target)
    ]
    exact = ((target, attack, rate) for target in run.texts for attack, rate in texts.conclusive(target))
    rates += [OpenRate(rate, attack.outcome.attack, target.kind) for target, attack, rate in exact]
    rates += [
        OpenRate(rows.recovered(attack), attack.outcome.attack, target.kind)
        for target in run.rows
        for attack in rows.conclusive(target)
    ]
    centers = filter(images.gives_away, run.centers)
    rates += [OpenRate(center.recovered.rate, "inversion", "class centres") for center in centers]
    return max(rates, key=lambda open_rate: open_rate.rate.high, default=None)


def known_recovered(run: AuditedRun) -> float | None:
    """The measure ``recovered``; ``None`` also where nothing was recovered, but an attack that might have was not mounted."""
    value = recovered(run)
    return None if value == 0 and _samples_open(run) is not None else value


def recovered(run: AuditedRun) -> float | None:
    """The largest share of the samples behind a message, or of single samples or class centres, that an attack recovered."""
    return None if (rate := most_recovered(run)) is None else rate.share


def words(run: AuditedRun) -> float | None:
    """The largest share of the tokens of texts that an attack named, far better than chance."""
    named = [attack.figures.recall or 0.0 for target in run.texts if (attack := texts.naming_words(target)) is not None]
    return max(named, default=0.0 if any(map(texts.best, run.texts)) else None)


def cells(run: AuditedRun) -> float | None:
    """The largest share of the cells of rows that an attack recovered, beyond what guesses have right, or that a client's
    statistics of before round 1 tell; 0 where none did."""
    shares = [
        attack.figures.cells.share if rows.beyond_guesses(attack.figures, target.baselines) else 0.0
        for target in run.rows
        for attack in rows.conclusive(target)
    ]
    return max([*shares, *(client.share for client in run.told_rows)], default=None)


def membership_auc(run: AuditedRun) -> float | None:
    """The largest area of a membership attack, or 1 minus that of an attack that significantly orders members last."""
    return None if (most := members.largest_area(run.membership)) is None else most[0]


def membership_tpr(run: AuditedRun) -> float | None:
    """The largest share of members that an attack identifies at a false-positive rate of :data:`LOW_RATE`, by the threshold that
    the non-members give (Carlini et al. 2022)."""
    points = [attack.points.at.get(LOW_RATE) for attack in members.ran(run.membership)]
    return max((point.true_positives.share for point in points if point is not None), default=None)


def epsilon(run: AuditedRun) -> float:
    """The accountant's epsilon, infinite without differential privacy and where canaries contradict it."""
    if run.epsilon is None or (epsilon_excess(run) or 0.0) > 0:
        return math.inf
    return run.epsilon.upper


def epsilon_measured(run: AuditedRun) -> float | None:
    """The largest lower bound of epsilon from the run's canaries."""
    return None if run.epsilon is None or run.epsilon.canaries is None else run.epsilon.canaries.best.epsilon


def epsilon_excess(run: AuditedRun) -> float | None:
    """By how much :func:`epsilon_measured` exceeds the accountant's epsilon; above 0, the two contradict each other."""
    lower = epsilon_measured(run)
    return None if lower is None or run.epsilon is None else lower - run.epsilon.upper


def labels(run: AuditedRun) -> float | None:
    """The largest share of messages, or of clients, whose set of classes was found exactly, of those that lack a class; 0 where
    guessing would find as many."""
    shares = [classes.share_by_rule(results) for results in (run.labels, run.labels_over_rounds) if classes.by_rule(results)]
    if (shadow := run.shadow_labels) is not None:
        if classes.beyond_guessing(shadow):
            shares.append(shadow.report.lacking_exact / shadow.report.lacking)
        elif classes.could_find_classes(shadow):
            shares.append(0.0)
    return max(shares, default=None)


def _samples_open(run: AuditedRun) -> str | None:
    if samples_cut(run):
        return "attacks on samples were cut by the audit's budget"
    reasons = [images.may_be_more(part) for target in run.images for part in target.parts()]
    reasons += [texts.sentences_not_known(part) for target in run.texts for part in target.parts()]
    reasons += [rows.may_be_more(part) for target in run.rows for part in target.parts()]
    if why := next(filter(None, reasons), None):
        return f"a failure is no evidence: {why}"
    missing = list(samples_not_known(run))
    return f"no attack whose failure is evidence shows whether {' or '.join(missing)}" if missing else None


def _words_open(run: AuditedRun) -> str | None:
    if samples_cut(run):
        return "attacks on texts were cut by the audit's budget"
    unread = [part for target in run.texts if texts.best(part := target.part(None)) is None]
    named = [texts.naming_words(part) for part in unread]
    if missing := [attack for attack in named if attack is None or not attack.outcome.status.is_evidence]:
        return f"no attack whose failure is evidence was mounted on {len(missing)} of the texts' messages"
    statistics = [what for what, samples in statistics_not_known(run) if samples == "texts"]
    return f"no attack whose failure is evidence was mounted on {', '.join(statistics)}" if statistics else None


def _cells_open(run: AuditedRun) -> str | None:
    return _samples_open(run) if run.rows else None


def _members_open(run: AuditedRun) -> str | None:
    if rounds := members.not_attacked(run.membership):
        return f"no membership attack was mounted on messages of round {', '.join(map(str, rounds))}"
    return members.FEW if members.too_few(run.membership) else run.membership_limit


def _labels_open(run: AuditedRun) -> str | None:
    if (reason := run.not_run.get("classes")) is not None:
        return str(reason)
    if was_cut(run.not_run.get("shadow clients")):
        return "inference of classes was cut by the audit's budget"
    if why := classes.limit_of_rules(run.labels):
        return why
    if run.shadow_labels is None and any(result.lacks_a_class for result in run.labels):
        return "no classifier was trained on messages of shadow clients, and that a rule fails is no evidence"
    return None if run.shadow_labels is None else classes.limit_of_shadows(run.shadow_labels)


def _tpr_open(run: AuditedRun) -> str | None:
    if (why := _members_open(run)) is not None:
        return why
    if membership_tpr(run) is None:
        needed = f"{round(1 / LOW_RATE):,} non-members, and no attack had as many"
        return f"a false-positive rate of {100 * LOW_RATE:g} % needs {needed}"
    return None


_CANARIES = "the run has no canaries (fedpriv train --canaries)"
MEASURES: Mapping[str, Measure] = {
    "recovered": Measure(recovered, _samples_open),
    "words": Measure(words, _words_open),
    "cells": Measure(cells, _cells_open),
    "attribute_advantage": Measure(attributes.advantage, attributes.not_known),
    "membership_auc": Measure(membership_auc, _members_open),
    "membership_tpr": Measure(membership_tpr, _tpr_open),
    "epsilon": Measure(epsilon, is_share=False),
    "epsilon_measured": Measure(epsilon_measured, is_share=False, unknown=_CANARIES),
    "epsilon_excess": Measure(epsilon_excess, is_share=False, unknown=_CANARIES),
    "labels": Measure(labels, _labels_open),
}
"""By name; conditions, frontiers and MLflow read them from here."""


def metrics(run: AuditedRun) -> dict[str, float]:
    """By name: recovery rates by kind of target, rates of right classes, and every measure, without those that are not known."""
    values: dict[str, float | None] = {}
    for kind in get_args(TargetKind):
        place = kind.replace(" ", "_")
        if (most := images.best_of(run, kind)) is not None:
            values[f"recovered_from_{place}"] = most.rate.share
        if (attack := texts.best_of(run, kind)) is not None:
            exact = texts.most_exact(run.texts, kind)
            values[f"token_recall_from_{place}"] = attack.figures.recall
            values[f"token_precision_from_{place}"] = attack.figures.precision
            values[f"exact_texts_from_{place}"] = None if exact is None else exact.share
        if (best := rows.best_of(run, kind)) is not None:
            values[f"recovered_from_{place}"] = rows.recovered(best).share
            values[f"cells_from_{place}"] = best.figures.cells.share
    # That class centres gave no image away is no evidence.
    centers = [center.recovered.rate.share for center in run.centers if images.gives_away(center)]
    values["recovered_from_centers"] = max(centers, default=None)
    values["labels_exact"] = _mean([result.exact for result in classes.by_rule(run.labels)])
    values["label_counts"] = _mean([result.count_accuracy for result in run.labels if result.count_accuracy is not None])
    values["labels_exact_by_shadows"] = None if run.shadow_labels is None else run.shadow_labels.report.exact
    values |= {name: measure.value(run) for name, measure in MEASURES.items()}
    return {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
