"""Number formats of the audit's pages; a figure that was not measured is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from fedpriv.scores.catalogue import score_named

if TYPE_CHECKING:
    from fedpriv.attacks.scoring.scores import Rate
    from fedpriv.audit.results.cost import Cost
    from fedpriv.audit.results.outcome import Interval
    from fedpriv.audit.results.sums import Value

NOTHING = "–"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"


def scored(cost: Cost, rounds: str = "") -> str:
    """``accuracy 93.7 %``, or the score that the run is ranked by, with the accuracy if there is one; a dash for what was not
    measured.

    Args:
        rounds: :func:`over_rounds`, to stand behind the score.
    """
    alone = cost.metric == "accuracy" or score_named(cost.metric).of_numbers
    return f"{ranked(cost)}{rounds}{'' if alone else f', accuracy {percent(cost.accuracy)}'}"


def ranked(cost: Cost) -> str:
    """``accuracy 93.7 %``, or another score that the run is ranked by."""
    return f"{score_named(cost.metric).title} {of_score(cost, cost.ranked)}"


def over_rounds(cost: Cost) -> str:
    """What :func:`ranked` is a mean of, such as ``(mean of the last 3 rounds; the last round: 79.6 %)``; empty for one round."""
    if cost.averaged_rounds < 2 or cost.ranked is None:
        return ""
    return f" (mean of the last {cost.averaged_rounds} rounds; the last round: {of_score(cost, cost.last_round)})"


def of_score(cost: Cost, value: float | None) -> str:
    """A value of the score that the run is ranked by."""
    score = score_named(cost.metric)
    if score.of_numbers:
        return NOTHING if value is None else score.shown(value)
    return percent(value) if score.in_percent else plain(value, 3)


def changed(cost: Cost) -> str | None:
    """How accuracy, or the score of predicted numbers, differs from that of the undefended run; ``None``: it is not known."""
    if not score_named(cost.metric).of_numbers:
        return f"accuracy {points(cost.accuracy_difference)}"
    if cost.score_difference is None:
        return None
    sign = "−" if cost.score_difference < 0 else "+"
    return f"{score_named(cost.metric).title} {sign}{of_score(cost, abs(cost.score_difference))}"


def points(difference: float | None) -> str:
    """A difference of two shares, signed, in percentage points."""
    return NOTHING if difference is None else f"{100 * difference:+.1f} percentage points".replace("-", "−")


def counted(rate: Rate | None) -> str:
    """``13 of 72``."""
    return NOTHING if rate is None else f"{rate.successes} of {rate.n}"


def interval(measured: Rate | Value | Interval | None) -> str:
    return NOTHING if measured is None else span(measured.low, measured.high)


def span(low: float, high: float) -> str:
    """An interval of shares as ``10.9 to 28.5 %``."""
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def within(rate: Rate) -> str:
    """``95 % interval 10.9 to 28.5 %``."""
    return f"95 % interval {interval(rate)}"


def whole(count: int | None) -> str:
    """A number with separators: ``1,234,567``."""
    return NOTHING if count is None else f"{count:,}"


def size(count: float | None) -> str:
    """Bytes with a unit."""
    return NOTHING if count is None else str(decimal(round(count)))


def power(value: float | None) -> str:
    """An error in scientific notation."""
    return NOTHING if value is None else f"{value:.1e}"


def plain(value: float | None, places: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{places}f}"


def short(value: float | None) -> str:
    """Three significant digits."""
    return NOTHING if value is None else f"{value:.3g}"


def bound(value: float | None) -> str:
    """An upper bound, such as an epsilon, rounded up to three significant digits, so that it is a bound as printed."""
    if value is None or not math.isfinite(value) or value <= 0:
        return short(value)
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.3g}"


def at_most(share: float) -> str:
    """The upper end of an interval of shares in whole percent, rounded up: ``5%``."""
    return f"{math.ceil(100 * share - 1e-9)}%"


def paired(mapping: Mapping[str, Any], between: str = " ") -> list[str]:
    """``name value`` for each entry."""
    return [f"{name}{between}{value}" for name, value in mapping.items()]


def listed(values: Sequence[Any] | None, nothing: str = "none") -> str:
    return ", ".join(map(str, values)) if values else nothing


def joined(names: Sequence[str]) -> str:
    """``a``, ``a and b``, or ``a, b and c``."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
