"""Each attack on what a server with secure aggregation sees, beside the same on the uploads behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.judge import images, members, rows, texts
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.sums import SumComparison, Value

Measure = Literal["images", "texts", "rows", "cells", "label sets", "membership"]


def compared(sums: AuditedRun, alone: AuditedRun) -> tuple[SumComparison, ...]:
    """Each attack on the sums beside the same on the single uploads behind them.

    Args:
        sums, alone: the audits of the sums, and of the single uploads.
    """
    rows = []
    for measure, read in _MEASURES.items():
        behind, single = read(sums), read(alone)
        for attack in dict.fromkeys((*behind, *single)):
            rows.append(SumComparison(measure, attack, behind.get(attack), single.get(attack)))
    return tuple(rows)


def _images(run: AuditedRun) -> dict[str, Value]:
    messages = (target for target in run.images if target.kind == "message")
    ran = (outcome for target in messages for outcome in images.ran(target))
    return _pooled((outcome.attack, figures.success[images.LIMIT]) for outcome, figures in ran)


def _texts(run: AuditedRun) -> dict[str, Value]:
    messages = (target for target in run.texts if target.kind == "message")
    ran = (result for target in messages for result in texts.ran(target))
    return _pooled((result.outcome.attack, rate) for result in ran if (rate := result.figures.exact) is not None)


def _rows(run: AuditedRun) -> dict[str, Value]:
    return _pooled((result.outcome.attack, result.figures.rows) for result in _on_rows(run))


def _cells(run: AuditedRun) -> dict[str, Value]:
    return _pooled((result.outcome.attack, result.figures.cells) for result in _on_rows(run))


def _on_rows(run: AuditedRun) -> Iterator[rows.BestRows]:
    return (result for target in run.rows if target.kind == "message" for result in rows.ran(target))


def _labels(run: AuditedRun) -> dict[str, Value]:
    return _pooled((rule.rule, rule.exact) for rule in run.label_rules if rule.exact is not None)


def _membership(run: AuditedRun) -> dict[str, Value]:
    by_round = {f"{result.outcome.attack}, round {result.outcome.round}": result.points for result in members.ran(run.membership)}
    return {name: Value(points.auc.value, points.auc.low, points.auc.high, points.members) for name, points in by_round.items()}


def _pooled(rates: Iterable[tuple[str, Rate]]) -> dict[str, Value]:
    """Success rates by attack, over all messages."""
    totals: dict[str, tuple[int, int]] = {}
    for name, rate in rates:
        successes, n = totals.get(name, (0, 0))
        totals[name] = successes + rate.successes, n + rate.n
    pooled = {name: wilson(successes, n) for name, (successes, n) in totals.items() if n}
    return {name: Value(rate.share, rate.low, rate.high, rate.n) for name, rate in pooled.items()}


_MEASURES: Mapping[Measure, Callable[[AuditedRun], dict[str, Value]]] = {
    "images": _images,
    "texts": _texts,
    "rows": _rows,
    "cells": _cells,
    "label sets": _labels,
    "membership": _membership,
}
