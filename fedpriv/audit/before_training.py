"""What the clients told of their training samples before round 1, as the kept messages say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.audit import formats
from fedpriv.audit.results.wire import ToldBefore
from fedpriv.data.encoding import Encoding
from fedpriv.data.statistics.exact import Moments
from fedpriv.data.statistics.messages import value_of
from fedpriv.data.statistics.private import NOISY
from fedpriv.data.statistics.totals import Inquiry, Totals
from fedpriv.wire import Sealed

_SHOWN = 20
"""Levels of a column that a line names."""


def told_before(messages: Sequence[Sealed], classes: Sequence[str] = ()) -> tuple[ToldBefore, ...]:
    """A line for each column and kept message, in the order of the messages; none without statistics.

    Args:
        classes: their names by number; none where they are numbers.
    """
    inquiries = [value_of(message, "inquiry", None, Inquiry) for message in messages if message.kind == "inquiry"]
    lines = list[ToldBefore]()
    for message in messages:
        if message.kind == "levels":
            named = value_of(message, "levels", message.client, dict[str, tuple[str, ...]])
            lines += [_line(message, column, f"has the levels {_listed(levels)}") for column, levels in named.items()]
        elif message.kind == "statistics":
            lines += [_line(message, column, says) for column, says in _statistics(message, inquiries[0], classes)]
        elif message.kind == "encoding" and not inquiries:
            encoding = value_of(message, "encoding", None, Encoding)
            lines.append(
                _line(message, "", f"nothing: {len(encoding.columns)} columns are scaled and coded as they are declared")
            )
    return tuple(lines)


def _line(message: Sealed, column: str, says: str) -> ToldBefore:
    return ToldBefore(client=message.client, column=column, says=says, bytes=message.nbytes)


def _statistics(message: Sealed, inquiry: Inquiry, classes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(column, what it says) of the statistics of a client, or of their secure sum."""
    tensors = message.tensors()
    if NOISY in tensors:
        yield "", f"{tensors[NOISY].numel()} sums with noise, which its epsilon covers"
        return
    totals = Totals.of(tensors, inquiry)
    yield "", f"{totals.rows:,} training samples"
    names = [*inquiry.numbers, *(f"channel {number}" for number in range(inquiry.channels))]
    for name, column in zip(names, totals.moments, strict=True):
        yield name, _moments(column)
    for (name, levels), counts in zip(inquiry.levels, totals.levels, strict=True):
        held = [f"{count:,} {level or '(missing)'}" for level, count in zip(levels, counts, strict=False) if count]
        yield name, _listed([*held, f"{counts[-1]:,} of any other level"])
    if totals.classes:
        named = [f"{count:,}{f' {classes[number]}' if classes else ''}" for number, count in enumerate(totals.classes)]
        yield "", f"samples by class: {_listed(named)}"


def _moments(column: Moments) -> str:
    if not column.count:
        return "no number"
    if column.count <= 2:  # which their sum and the sum of their squares give away
        numbers = {formats.short(column.mean + sign * column.deviation) for sign in (-1, 1)}
        return f"{column.count} numbers, which are told with that: {', '.join(sorted(numbers))}"
    if column.deviation == 0:
        return f"{column.count:,} numbers, all are {column.mean:g}"
    return f"{column.count:,} numbers, mean {formats.short(column.mean)}, standard deviation {formats.short(column.deviation)}"


def _listed(parts: Sequence[str]) -> str:
    shown = ", ".join(part or "(missing)" for part in parts[:_SHOWN]) or "none"
    return shown if len(parts) <= _SHOWN else f"{shown}, ... ({len(parts)} in all)"
