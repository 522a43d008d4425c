"""Each attack on what a server with secure aggregation sees, beside the same on the uploads behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.judge import images, members, texts
from fedpriv.audit.results import AuditedRun, SumComparison, Value

Measure = Literal["images", "texts", "label sets", "membership"]


def compared(sums: AuditedRun, alone: AuditedRun) -> tuple[SumComparison, ...]:
    """Each attack on the sums beside the same on the single uploads behind them.

    Args:
        sums: what was found of the sums; ``alone``: of the single uploads.
    """
    rows = []
    for measure, read in _MEASURES.items():
        behind, single = read(sums), read(alone)
        for attack in dict.fromkeys((*behind, *single)):
            rows.append(SumComparison(measure, attack, behind.get(attack), single.get(attack)))
    return tuple(rows)


def _images(run: AuditedRun) -> dict[str, Value]:
    messages = (target for target in run.images if target.kind == "message")
    return _pooled((one.attack, figures.success[images.LIMIT]) for target in messages for one, figures in images.ran(target))


def _texts(run: AuditedRun) -> dict[str, Value]:
    messages = (target for target in run.texts if target.kind == "message")
    made = (one for target in messages for one in texts.ran(target))
    return _pooled((one.outcome.attack, rate) for one in made if (rate := one.figures.exact) is not None)


def _labels(run: AuditedRun) -> dict[str, Value]:
    return _pooled((one.rule, one.exact) for one in run.label_rules if one.exact is not None)


def _membership(run: AuditedRun) -> dict[str, Value]:
    made = {f"{one.outcome.attack}, round {one.outcome.round}": one.points for one in members.ran(run.membership)}
    return {name: Value(one.auc.value, one.auc.low, one.auc.high, one.members) for name, one in made.items()}


def _pooled(rates: Iterable[tuple[str, Rate]]) -> dict[str, Value]:
    """By attack, over the messages."""
    totals: dict[str, tuple[int, int]] = {}
    for name, rate in rates:
        found, of = totals.get(name, (0, 0))
        totals[name] = found + rate.successes, of + rate.n
    pooled = {name: wilson(found, of) for name, (found, of) in totals.items() if of}
    return {name: Value(one.share, one.low, one.high, one.n) for name, one in pooled.items()}


_MEASURES: Mapping[Measure, Callable[[AuditedRun], dict[str, Value]]] = {
    "images": _images,
    "texts": _texts,
    "label sets": _labels,
    "membership": _membership,
}
