"""How thorough an audit was: which attacks it ran on a run, which of them its budget shortened, and why it ran no others."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.attacks.core.status import Reason, ReasonKind
from fedpriv.audit.judge.known import was_cut
from fedpriv.audit.results.audit import AuditedRun, Coverage, Part
from fedpriv.audit.results.images import ImageOutcome

CLASSES, SHADOWS, CENTERS = "classes by rules", "classes by shadow clients", "class centres"
ATTRIBUTES = "hidden values of columns"
"""Attacks that have no name of their own."""
_SAMPLES: tuple[Part, ...] = ("images", "single images", "texts", "single texts", "rows", "single rows")
_PARTS: dict[Part, str] = {part: f"reconstruction of {part}" for part in _SAMPLES} | {
    "attributes": ATTRIBUTES,
    "classes": CLASSES,
    "class centres": CENTERS,
    "shadow clients": SHADOWS,
    "mean colour": "mean colour",
    "membership": "membership inference",
    "single uploads": "single uploads behind the sums",
}
"""The attacks that go with a part; other parts are no attacks."""


def coverage(run: AuditedRun) -> Coverage:
    """Which attacks were run; an attack was run if it ran on any message, real or simulated."""
    tried, shortened, not_run = dict[str, None](), dict[str, None](), dict[str, dict[ReasonKind, Reason]]()
    for name, was_run, reasons in _attempts(run):
        if was_run:
            tried[name] = None
        for reason in reasons:
            if was_cut(reason):
                shortened[name] = None
        if not was_run and reasons:
            not_run.setdefault(name, {}).setdefault(reasons[0].kind, reasons[0])
    left_out = {
        name: sorted(reasons.values(), key=lambda reason: not was_cut(reason))
        for name, reasons in not_run.items()
        if name not in tried
    }
    return Coverage(
        run=tuple(tried),
        shortened=tuple(name for name in shortened if name in tried),
        not_run={name: reasons[0] for name, reasons in left_out.items()},
        also={name: tuple(others) for name, (_, *others) in left_out.items() if others},
        clients=run.clients,
        not_kept=run.not_kept,
    )


def _attempts(run: AuditedRun) -> Iterator[tuple[str, bool, tuple[Reason, ...]]]:
    """(attack, whether it was run, why it was not or was cut) of every attempt, in the order of the page."""
    for outcome in (outcome for target in (*run.images, *run.texts, *run.rows) for outcome in target.outcomes):
        cut = (outcome.cut,) if isinstance(outcome, ImageOutcome) and outcome.cut is not None else ()
        yield outcome.attack, outcome.status.was_run, (*outcome.status.reasons, *cut)
    for name, results in ((CLASSES, run.labels), (SHADOWS, run.shadow_labels), (CENTERS, run.centers)):
        if results:
            yield name, True, ()
    # Without a statistic, an outcome stands for all attacks of a round.
    rounds = [reason for attack in run.membership if attack.uses is None for reason in attack.status.reasons]
    for attack in run.membership:
        if attack.uses is not None:
            yield attack.attack, attack.status.was_run, (*attack.status.reasons, *filter(was_cut, rounds))
    if rounds and all(attack.uses is None for attack in run.membership):
        yield _PARTS["membership"], False, (rounds[0],)
    for column in run.attributes:
        yield ATTRIBUTES, column.status.was_run, column.status.reasons
    for part, reason in run.not_run.items():
        if part in _PARTS:
            yield _PARTS[part], False, (reason,)
