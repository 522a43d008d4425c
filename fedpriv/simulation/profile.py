"""The profile of a run: spans (:mod:`fedpriv.spans`) of wall-clock time, each second charged to one category.

A round lasts until the next one begins, its checkpoint included; so it is longer than the ``seconds`` of its record, which end
before the checkpoint. Time in nested spans is charged to the innermost one, so that the categories and ``other`` sum to the
round.

On an accelerator each span waits for the device, so that computations are charged to the span that started them. This slows the
run down.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from fedpriv.files import save_json, write_atomically
from fedpriv.spans import CATEGORIES, OTHER, START, Spans

P = ParamSpec("P")
T = TypeVar("T")
_THREADS = {"run": 1, "beside the run": 2}


class Event(NamedTuple):
    """A finished span, in seconds of the clock."""

    name: str
    began: float
    ended: float
    thread: str
    about: dict[str, int]


@dataclass
class Period:
    """A round, or the time before or after all rounds, with its seconds by category."""

    name: int | str
    began: float
    ended: float
    charged: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*CATEGORIES, OTHER), 0.0))

    def report(self) -> dict[str, Any]:
        """The period as JSON, in seconds."""
        which = {"round": self.name} if isinstance(self.name, int) else {}
        return {**which, "seconds": self.ended - self.began, "categories": dict(self.charged)}

    def as_event(self) -> Event:
        """The period as an event of the trace."""
        return Event(f"round {self.name}" if isinstance(self.name, int) else self.name, self.began, self.ended, "run", {})


class Profile(Spans):
    """Times a run.

    Args:
        synchronise: called before the clock is read; waits for the device.
        clock: returns the time in seconds.
        began: the clock when the run's data began to be loaded; ``None``: now.
    """

    def __init__(
        self,
        synchronise: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
        began: float | None = None,
    ) -> None:
        self._synchronise, self._clock = synchronise, clock
        self._open: list[str] = []
        self._events: list[Event] = []
        self._origin = clock() if began is None else began
        self._periods = [Period(START, self._origin, self._origin)]

    @contextmanager
    def __call__(self, category: str, **about: int) -> Iterator[None]:
        began = self._charge()
        self._open.append(category)
        try:
            yield
        finally:
            ended = self._charge()
            self._open.pop()
            self._events.append(Event(category, began, ended, "run", about))

    @contextmanager
    def beside(self, category: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._events.append(Event(category, began, self._clock(), "beside the run", {}))

    def each(self, category: str, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            with self(category):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def timed(self, category: str, function: Callable[P, T]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self(category):
                return function(*args, **kwargs)

        return call

    def begin(self, period: int | str) -> None:
        if self._periods[-1].name != period:
            now = self._charge()
            self._periods.append(Period(period, now, now))

    def _charge(self) -> float:
        """Charge the time since the last call to the innermost span, and return the time now."""
        self._synchronise()
        now, period = self._clock(), self._periods[-1]
        period.charged[self._open[-1] if self._open else OTHER] += now - period.ended
        period.ended = now
        return now

    def report(self, rounds_done: int) -> dict[str, Any]:
        """Seconds by category, of each round up to ``rounds_done`` and of all of them (``total``).

        ``start`` and ``end``: the time before and after them; ``unfinished``: an interrupted round; ``beside``: work of other
        threads.
        """
        self._charge()
        rounds = [period for period in self._periods if period.name in range(1, rounds_done + 1)]
        total = {name: sum(period.charged[name] for period in rounds) for name in (*CATEGORIES, OTHER)}
        others = [period for period in self._periods if period.name not in range(1, rounds_done + 1)]
        beside: dict[str, float] = {}
        for event in self._events:
            if event.thread != "run":
                beside[event.name] = beside.get(event.name, 0.0) + event.ended - event.began
        return {
            "unit": "seconds",
            "total": {
                "rounds": len(rounds),
                "seconds": sum(period.ended - period.began for period in rounds),
                "categories": total,
            },
            "rounds": [period.report() for period in rounds],
            **{period.name if isinstance(period.name, str) else "unfinished": period.report() for period in others},
            "beside": beside,
        }

    def trace(self) -> dict[str, Any]:
        """The spans and the rounds in the Chrome trace event format: times in microseconds since the run started."""
        self._charge()
        threads: list[dict[str, Any]] = [
            {"name": "thread_name", "cat": "__metadata", "ph": "M", "pid": 1, "tid": tid, "ts": 0, "args": {"name": name}}
            for name, tid in _THREADS.items()
        ]
        rounds = [self._traced(period.as_event(), "round") for period in self._periods]
        spans = [self._traced(event, "span") for event in self._events]
        return {"traceEvents": [*threads, *rounds, *spans], "displayTimeUnit": "ms"}

    def _traced(self, event: Event, kind: str) -> dict[str, Any]:
        began, ended = ((moment - self._origin) * 1e6 for moment in (event.began, event.ended))
        times = {"ts": round(began, 3), "dur": round(ended - began, 3)}
        return {
            "name": event.name, "cat": kind, "ph": "X", **times, "pid": 1, "tid": _THREADS[event.thread], "args": event.about,
        }  # fmt: skip

    def write(self, folder: Path, rounds_done: int) -> dict[str, Any]:
        """Write ``profile.json`` (:meth:`report`, which is returned) and ``trace.json`` (:meth:`trace`) into a folder."""
        report = self.report(rounds_done)
        folder.mkdir(exist_ok=True)
        save_json(folder / "profile.json", report)
        write_atomically(folder / "trace.json", json.dumps(self.trace()).encode())
        return report
