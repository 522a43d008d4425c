"""What an audit's budget cut, from its findings: it counts as not known, also beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedpriv.audit.progress import was_cut
from fedpriv.audit.text.verdict import best_reading
from fedpriv.audit.verdict import best_attempt

Found = Mapping[str, Any]


def target_cut(run: Found, what: str) -> bool:
    """Whether on a message, or on single samples, no attempt counts, and some were cut.

    Args:
        what: ``images`` or ``texts``.
    """
    best = best_attempt if what == "images" else best_reading
    whole = any(best(target) is None and any(_cut(target)) for target in _targets(run, what))
    return whole or was_cut((run.get("not_tried") or {}).get(what))


def samples_cut(run: Found) -> bool:
    """Whether an attack on samples was cut, or was tried on fewer of them."""
    kinds = ("images", "texts")
    return any(target_cut(run, what) or any(any(_cut(target)) for target in _targets(run, what)) for what in kinds)


def classes_cut(run: Found) -> bool:
    """Whether the classifier on messages of simulated clients was cut."""
    return was_cut((run.get("not_tried") or {}).get("label_shadow"))


def _targets(run: Found, what: str) -> list[Found]:
    return list(run.get("attacks" if what == "images" else "texts") or [])


def _cut(target: Found) -> Iterator[bool]:
    for one in target["attempts"]:
        yield was_cut(one.get("inapplicable")) or was_cut(one.get("cut"))
