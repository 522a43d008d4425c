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
_GIVEN_AWAY = 2
"""So many numbers, or fewer, follow from their sum and the sum of their squares."""


def told_totals(messages: Sequence[Sealed]) -> dict[int | None, Totals]:
    """The statistics without noise among the kept messages, by client; ``None``: their secure sum."""
    inquiry = next((value_of(message, "inquiry", None, Inquiry) for message in messages if message.kind == "inquiry"), None)
    sent = {message.client: message.tensors() for message in messages if message.kind == "statistics"}
    if inquiry is None:
        return {}
    return {client: Totals.of(tensors, inquiry) for client, tensors in sent.items() if NOISY not in tensors}


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
            lines += _statistics(message, inquiries[0], classes)
        elif message.kind == "encoding" and not inquiries:
            encoding = value_of(message, "encoding", None, Encoding)
            lines.append(
                _line(message, "", f"nothing: {len(encoding.columns)} columns are scaled and coded as they are declared")
            )
    return tuple(lines)


def _line(message: Sealed, column: str, says: str, rows: int = 0, cells: int = 0) -> ToldBefore:
    return ToldBefore(client=message.client, column=column, says=says, bytes=message.nbytes, rows=rows, cells=cells)


def _statistics(message: Sealed, inquiry: Inquiry, classes: Sequence[str]) -> Iterator[ToldBefore]:
    """The lines of the statistics of a client, or of their secure sum.

    From sums over one or two numbers these numbers follow. Sums over a single row also tell whether a number is missing, and a
    level that is named.
    """
    tensors = message.tensors()
    if NOISY in tensors:
        yield _line(message, "", f"{tensors[NOISY].numel()} sums with noise, which its epsilon covers")
        return
    totals = Totals.of(tensors, inquiry)
    rows = totals.rows
    yield _line(message, "", f"{rows:,} training samples", rows)
    numbers, channels = totals.moments[: len(inquiry.numbers)], totals.moments[len(inquiry.numbers) :]
    for name, column in zip(inquiry.numbers, numbers, strict=True):
        few = column.count if column.count <= _GIVEN_AWAY else 0
        yield _line(message, name, _moments(column), rows, 1 if rows == 1 else few)
    for number, channel in enumerate(channels):
        yield _line(message, f"channel {number}", _moments(channel))
    for (name, levels), counts in zip(inquiry.levels, totals.levels, strict=True):
        held = [f"{count:,} {level or '(missing)'}" for level, count in zip(levels, counts, strict=False) if count]
        level = int(rows == 1 and not counts[-1])
        yield _line(message, name, _listed([*held, f"{counts[-1]:,} of any other level"]), rows, level)
    if totals.classes:
        named = [f"{count:,}{f' {classes[number]}' if classes else ''}" for number, count in enumerate(totals.classes)]
        yield _line(message, "", f"samples by class: {_listed(named)}", rows)


def _moments(column: Moments) -> str:
    if not column.count:
        return "no number"
    if column.count <= _GIVEN_AWAY:
        numbers = {formats.short(column.mean + sign * column.deviation) for sign in (-1, 1)}
        return f"{column.count} numbers, which are told with that: {', '.join(sorted(numbers))}"
    if column.deviation == 0:
        return f"{column.count:,} numbers, all are {column.mean:g}"
    return f"{column.count:,} numbers, mean {formats.short(column.mean)}, standard deviation {formats.short(column.deviation)}"


def _listed(parts: Sequence[str]) -> str:
    shown = ", ".join(part or "(missing)" for part in parts[:_SHOWN]) or "none"
    return shown if len(parts) <= _SHOWN else f"{shown}, ... ({len(parts)} in all)"
