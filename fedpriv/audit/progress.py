"""What an audit is doing, how long it will take, what it has spent and finished, and when its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from numbers import Real

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.trial import Mount, mount
from fedpriv.audit.finished import Finished
from fedpriv.errors import FedprivError, UsageError

Say = Callable[[str], object]
END = "end"
"""Name of the moment at which an audit ended."""
WARM = 5.0
"""Seconds after which an audit's pace is compared with that of the one before."""


def check_budget(seconds: object) -> None:
    """Raise :class:`UsageError` where a budget from Python is no number of seconds, or none at all."""
    if seconds is not None and not (isinstance(seconds, Real) and float(seconds) > 0):
        raise UsageError(f"budget = {seconds!r}: more than 0 s, a number of seconds")


class BudgetSpent(FedprivError):
    """No further step may begin, as the audit's budget was spent."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(str(reason))


class Progress:
    """Says each step with the seconds so far and those left, and notes its CPU time.

    Args:
        say: gets the lines.
        budget: seconds after which no step begins; ``None``: no limit.
        finished: what an audit that was broken off has finished; ``None``: nothing is kept.
        before: :attr:`moments` of an audit of the same kind; empty: the time left is not known.
    """

    def __init__(
        self, say: Say, budget: float | None = None, finished: Finished | None = None, before: Mapping[str, float] | None = None
    ) -> None:
        self._say, self._budget, self._before = say, budget, before or {}
        self._part, self._step = "", ""
        self._began, self._since = time.monotonic(), time.process_time()
        self.finished = finished
        self.times = dict[str, float]()
        """Step -> its CPU seconds."""
        self.moments = dict[str, float]()
        """Number of a step -> seconds from the beginning of the audit to that of the step."""

    def __call__(self, text: str) -> None:
        """Begin a step."""
        self.note()
        self._step = text
        number, now = f"{self._part}{len(self.moments)}", self.so_far()
        self.moments[number] = now
        self._say(f"[{now:4.0f} s{self._left(number, now)}] {text}")

    def note(self, times: Mapping[str, float] | None = None, moments: Mapping[str, float] | None = None) -> None:
        """End the step that was begun last, and add those of another process."""
        now = time.process_time()
        if self._step:
            self.times[self._step] = self.times.get(self._step, 0.0) + now - self._since
        self._step, self._since = "", now
        for step, seconds in (times or {}).items():
            self.times[step] = self.times.get(step, 0.0) + seconds
        self.moments |= moments or {}

    def elsewhere(self, seconds: float) -> None:
        """Add what other processes spent on the step that was begun last."""
        self.times[self._step] = self.times.get(self._step, 0.0) + seconds

    def again(self, part: str) -> None:
        """Begin a part of the audit that may have a process of its own: the steps before are not its own."""
        self.times, self.moments, self._part, self._step, self._since = {}, {}, f"{part} ", "", time.process_time()

    def so_far(self) -> float:
        """Seconds since the audit began."""
        return time.monotonic() - self._began

    def spent(self) -> Reason | None:
        """Why no further step may begin; ``None``: one may."""
        if self._budget is None or self.so_far() < self._budget:
            return None
        return Reason("budget spent", f"cut: the audit's budget of {self._budget:g} s was spent")

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


def spent(say: Say) -> Reason | None:
    """:meth:`Progress.spent`, where what says the steps is one."""
    return say.spent() if isinstance(say, Progress) else None


def elsewhere(say: Say, seconds: float) -> None:
    """:meth:`Progress.elsewhere`, where what says the steps is one."""
    if isinstance(say, Progress):
        say.elsewhere(seconds)


def mounting(say: Say) -> Mount:
    """How attacks are mounted: where what says the steps knows what is finished, what was mounted before is not mounted again."""
    return say.finished.mount if isinstance(say, Progress) and say.finished is not None else mount
