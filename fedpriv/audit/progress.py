"""What an audit is doing, what it has spent, and when its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Say = Callable[[str], object]


class Progress:
    """Says each step with the seconds so far, and notes its CPU time.

    Args:
        say: gets the lines.
        budget: seconds after which no step begins; ``None``: no limit.
    """

    def __init__(self, say: Say, budget: float | None = None) -> None:
        self._say, self._budget = say, budget
        self._began, self._step, self._since = time.monotonic(), "", time.process_time()
        self.times = dict[str, float]()
        """Step -> its CPU seconds."""

    def __call__(self, text: str) -> None:
        """Begin a step."""
        self.note()
        self._step = text
        self._say(f"[{time.monotonic() - self._began:4.0f} s] {text}")

    def note(self, times: Mapping[str, float] | None = None) -> None:
        """End the step that was begun last, and add those of another process."""
        now = time.process_time()
        if self._step:
            self.times[self._step] = self.times.get(self._step, 0.0) + now - self._since
        self._step, self._since = "", now
        for step, seconds in (times or {}).items():
            self.times[step] = self.times.get(step, 0.0) + seconds

    def again(self) -> None:
        """Start anew in a forked process: the steps before are its parent's."""
        self.times, self._step, self._since = {}, "", time.process_time()

    def spent(self) -> str | None:
        """Why no further step may begin; ``None``: one may."""
        if self._budget is None or time.monotonic() < self._began + self._budget:
            return None
        return f"cut: the audit's budget of {self._budget:g} s was spent"


def spent(say: Say) -> str | None:
    """:meth:`Progress.spent`, where what says the steps is one."""
    return say.spent() if isinstance(say, Progress) else None
