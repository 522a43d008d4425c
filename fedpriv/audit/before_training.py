"""What the clients told of their training samples before round 1, as the kept messages say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fedpriv.attacks.rows.sums import three_numbers
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
_FEW = 3
"""Of so many rows or fewer, a column's values are told by their counts or sums, but not whose is which."""


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
    everywhere = _values_of_all(told_totals(messages).values(), inquiries[0]) if inquiries else set[str]()
    lines = list[ToldBefore]()
    for message in messages:
        if message.kind == "levels":
            named = value_of(message, "levels", message.client, dict[str, tuple[str, ...]])
            lines += [_line(message, column, f"has the levels {_listed(levels)}") for column, levels in named.items()]
        elif message.kind == "statistics":
            lines += _statistics(message, inquiries[0], classes, everywhere)
        elif message.kind == "encoding" and not inquiries:
            encoding = value_of(message, "encoding", None, Encoding)
            lines.append(
                _line(message, "", f"nothing: {len(encoding.columns)} columns are scaled and coded as they are declared")
            )
    return tuple(lines)


def _line(message: Sealed, column: str, says: str, rows: int = 0, cells: int = 0, alike: bool = False) -> ToldBefore:
    return ToldBefore(client=message.client, column=column, says=says, bytes=message.nbytes, rows=rows, cells=cells, alike=alike)


def _statistics(message: Sealed, inquiry: Inquiry, classes: Sequence[str], everywhere: set[str]) -> Iterator[ToldBefore]:
    """The lines of the statistics of a client, or of their secure sum.

    A column's cells are told if they all have one value that is not all clients'. Of at most three rows, or of at most three
    numbers among rows without, they are told if they follow from the counts or sums, in some order.

    Args:
        everywhere: the columns with one and the same value in all rows of all clients.
    """
    tensors = message.tensors()
    if NOISY in tensors:
        yield _line(message, "", f"{tensors[NOISY].numel()} sums with noise, which its epsilon covers")
        return
    totals = Totals.of(tensors, inquiry)
    rows, values = totals.rows, _common_values(totals, inquiry)
    yield _line(message, "", f"{rows:,} training samples", rows)
    numbers, channels = totals.moments[: len(inquiry.numbers)], totals.moments[len(inquiry.numbers) :]
    for name, column in zip(inquiry.numbers, numbers, strict=True):
        few, alike = _few_numbers(column), values[name] is not None
        cells = rows if alike and name not in everywhere else 0
        if few is not None:
            cells = rows if rows <= _FEW else column.count
        yield _line(message, name, _moments(column), rows, cells, alike)
    for number, channel in enumerate(channels):
        yield _line(message, f"channel {number}", _moments(channel))
    for (name, levels), counts in zip(inquiry.levels, totals.levels, strict=True):
        held = [f"{count:,} {level or '(missing)'}" for level, count in zip(levels, counts, strict=False) if count]
        alike = values[name] is not None
        cells = rows if alike and name not in everywhere else 0
        if rows <= _FEW:
            cells = rows - counts[-1]
        yield _line(message, name, _listed([*held, f"{counts[-1]:,} of any other level"]), rows, cells, alike)
    if totals.classes:
        named = [f"{count:,}{f' {classes[number]}' if classes else ''}" for number, count in enumerate(totals.classes)]
        yield _line(message, "", f"samples by class: {_listed(named)}", rows)


def _common_values(totals: Totals, inquiry: Inquiry) -> dict[str, float | str | None]:
    """The value that all rows have, by column; ``None``: they differ, or it is missing."""
    values = dict[str, float | str | None]()
    for name, column in zip(inquiry.numbers, totals.moments, strict=False):
        values[name] = column.mean if 0 < column.count == totals.rows and column.deviation == 0 else None
    for (name, levels), counts in zip(inquiry.levels, totals.levels, strict=True):
        held = [level for level, count in zip(levels, counts, strict=False) if 0 < count == totals.rows]
        values[name] = held[0] or None if held else None
    return values


def _values_of_all(every: Iterable[Totals], inquiry: Inquiry) -> set[str]:
    """The columns in which all rows of all clients have the same value, which is no client's secret."""
    first, *others = [_common_values(totals, inquiry) for totals in every if totals.rows] or [{}]
    return {name for name, value in first.items() if value is not None and all(other[name] == value for other in others)}


def _few_numbers(column: Moments) -> tuple[float, ...] | None:
    """The numbers of a column, if they are few and follow from their sums."""
    if column.count < _FEW:
        numbers = {column.mean + sign * column.deviation for sign in (-1, 1)} if column.count else ()
        return tuple(sorted(numbers))
    return three_numbers(*column.sums) if column.count == _FEW else None


def _moments(column: Moments) -> str:
    if not column.count:
        return "no number"
    if (few := _few_numbers(column)) is not None:
        shown = dict.fromkeys(map(formats.short, few))
        return f"{column.count} numbers, which are told with that: {', '.join(shown)}"
    if column.deviation == 0:
        return f"{column.count:,} numbers, all are {column.mean:g}"
    return f"{column.count:,} numbers, mean {formats.short(column.mean)}, standard deviation {formats.short(column.deviation)}"


def _listed(parts: Sequence[str]) -> str:
    shown = ", ".join(part or "(missing)" for part in parts[:_SHOWN]) or "none"
    return shown if len(parts) <= _SHOWN else f"{shown}, ... ({len(parts)} in all)"
