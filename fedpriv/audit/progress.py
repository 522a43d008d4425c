"""The progress of an audit: its current step, the time spent and left, results that are finished, and the budget."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TypeVar

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.control import folder
from fedpriv.attacks.lab.trial import Mount, mount
from fedpriv.audit.finished import Finished
from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import forked_in_order

T = TypeVar("T")
Say = Callable[[str], object]
END = "end"
"""Name of the moment at which an audit ended."""
WARM = 5.0
"""Seconds after which an audit's pace is compared with that of the one before."""


def check_budget(seconds: object) -> None:
    """Raise :class:`UsageError` where a budget from Python is neither ``None`` nor a positive number of seconds."""
    if seconds is not None and not (isinstance(seconds, Real) and float(seconds) > 0):
        raise UsageError(f"budget = {seconds!r}: more than 0 s, a number of seconds")


class BudgetSpent(FedprivError):
    """The audit's budget was spent, so that no further step may begin."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(str(reason))


def unlimited() -> None:
    """In place of :meth:`Progress.in_time` where there is no budget."""


class Progress:
    """Reports each step with the seconds so far and those left, and measures its CPU time.

    Args:
        say: gets the lines.
        budget: seconds after which no step begins; ``None``: no limit.
        finished: what an interrupted audit has finished; ``None``: nothing is kept.
        before: :attr:`moments` of an audit of the same kind; empty: the time left is not known.
    """

    def __init__(
        self, say: Say, budget: float | None = None, finished: Finished | None = None, before: Mapping[str, float] | None = None
    ) -> None:
        self._say, self._budget, self._before = say, budget, before or {}
        self._part, self._part_ended, self._steps, self._step = "", False, 0, ""
        self._began, self._since = time.monotonic(), time.process_time()
        self._parts = [dict[str, float]()]
        self.finished = finished
        self.moments = dict[str, float]()
        """Number of a step -> seconds from the beginning of the audit to that of the step."""

    @property
    def times(self) -> dict[str, float]:
        """Step -> its CPU seconds, of the current part of the audit."""
        return self._parts[-1]

    def __call__(self, text: str) -> None:
        """Begin a step."""
        self._note()
        if self._part_ended:
            self.begin_part("after")
        self._step = text
        number, now = f"{self._part}{self._steps}", self.so_far()
        self._steps += 1
        self.moments[number] = now
        self._say(f"[{now:4.0f} s{self._left(number, now)}] {text}")

    def _note(self) -> None:
        now = time.process_time()
        if self._step:
            self.elsewhere(now - self._since)
        self._step, self._since = "", now

    def elsewhere(self, seconds: float) -> None:
        """Add CPU seconds that other processes spent on the current step."""
        self.times[self._step] = self.times.get(self._step, 0.0) + seconds

    def begin_part(self, name: str) -> None:
        """Begin a part of the audit, which may have a process of its own and reports :attr:`times` of its own."""
        self._note()
        self._parts.append({})
        self._part, self._part_ended, self._steps = f"{name} ", False, 0

    def end_step(self) -> None:
        """End the current step, and the part that it is the last of."""
        self._note()
        self._part_ended = bool(self._part)

    def add_parts(self, times: Mapping[str, float], moments: Mapping[str, float]) -> None:
        """Add the times of finished parts; those that ran in this process are not counted twice."""
        self._note()
        others = [part for part in self._parts if not part.items() <= times.items()]
        self._parts = [_summed([*others, times])]
        self.moments |= moments

    def so_far(self) -> float:
        """Seconds since the audit began."""
        return time.monotonic() - self._began

    def spent(self) -> Reason | None:
        """Return the reason if the budget is spent, else ``None``."""
        if self._budget is None or self.so_far() < self._budget:
            return None
        return Reason("budget spent", f"the audit's budget of {self._budget:g} s was spent")

    def in_time(self) -> None:
        """Raise :class:`BudgetSpent` where no further step may begin."""
        if (cut := self.spent()) is not None:
            raise BudgetSpent(cut)

    def _left(self, number: str, now: float) -> str:
        if number not in self._before or END not in self._before:
            return ""
        then = self._before[number]
        pace = now / then if then > WARM else 1.0
        return f", about {(self._before[END] - then) * pace:.0f} s left"


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    whole = dict[str, float]()
    for part in parts:
        for step, seconds in part.items():
            whole[step] = whole.get(step, 0.0) + seconds
    return whole


def spent(say: Say) -> Reason | None:
    """:meth:`Progress.spent`, where ``say`` is a :class:`Progress`."""
    return say.spent() if isinstance(say, Progress) else None


def beside(calls: Sequence[Callable[[], T]], workers: int, say: Say | None) -> Generator[T]:
    """The results of :func:`fedpriv.processes.forked_in_order`; where ``say`` is a :class:`Progress`, the CPU seconds that other
    processes spent on a result count for the step in which it is taken."""

    def timed(call: Callable[[], T]) -> tuple[T, float]:
        began = time.process_time()
        return call(), time.process_time() - began

    with closing(forked_in_order([partial(timed, call) for call in calls], workers)) as results:
        for result, seconds in results:
            if workers > 1 and len(calls) > 1 and isinstance(say, Progress):
                say.elsewhere(seconds)
            yield result


def mounting(say: Say) -> Mount:
    """How attacks are mounted: where ``say`` knows what is finished, what was mounted before is not mounted again."""
    return say.finished.mount if isinstance(say, Progress) and say.finished is not None else mount


def last_moments(kind: str) -> dict[str, float]:
    """:attr:`Progress.moments` of the last audit of a kind, from the user's cache; empty: none is known."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(step): float(seconds) for step, seconds in json.loads(_path(kind).read_text(encoding="utf-8")).items()}
    return {}


def keep_moments(kind: str, moments: Mapping[str, float]) -> None:
    """Keep the moments of an audit in the user's cache, if it can be written."""
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        _path(kind).write_text(json.dumps(moments), encoding="utf-8")


def _path(kind: str) -> Path:
    return folder() / f"duration-{hashlib.sha256(kind.encode()).hexdigest()[:32]}.json"
