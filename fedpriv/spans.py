"""Timing of a round: clocks, the categories of a profile, and spans, whose time is charged to a category.

* ``data``: selecting the training samples of a local update, and augmentation, also for an adaptation before a test.
* ``training``: the clients' local updates, up to the upload before transforms. With several processes: waiting for them, which
  includes their other work.
* ``defences``: the transforms of uploads. Noise of client-level DP on the server belongs to ``aggregation``.
* ``serialisation``: building, sealing, counting and decoding messages.
* ``aggregation``: from the uploads to the next model, reading their tensors included.
* ``evaluation``: after a round: test samples, adaptation before the test, predictions, probe.
* ``tracking``: waiting for MLflow. Its background thread is reported separately; while it computes, other categories take longer.
* ``checkpoint``: reading and writing the run folder: private states, checkpoints, records, kept payloads.
* ``other``: the rest, such as selecting participants and showing progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, ParamSpec, TypeVar

CATEGORIES = ("data", "training", "defences", "serialisation", "aggregation", "evaluation", "tracking", "checkpoint")
OTHER = "other"
START, END = "start", "end"
"""The periods before the first round and after the last."""

P = ParamSpec("P")
T = TypeVar("T")
_NOTHING = nullcontext()


class Clocks(NamedTuple):
    """Wall-clock time and CPU time of this process, in seconds; only differences are meaningful."""

    wall: float
    cpu: float

    @staticmethod
    def now() -> Clocks:
        """The readings now."""
        return Clocks(time.perf_counter(), time.process_time())


class Spans:
    """Charges time to categories; this base class measures nothing."""

    def __call__(self, category: str, **about: int) -> AbstractContextManager[None]:
        """A block whose time is charged to a category; ``about`` is shown in the trace.

        The block must not switch to another client's code, as clients may run concurrently in one thread.
        """
        return _NOTHING

    def beside(self, category: str) -> AbstractContextManager[None]:
        """A block in another thread, whose time is not charged to a round."""
        return _NOTHING

    def each(self, category: str, items: Iterable[T]) -> Iterable[T]:
        """Yield the items; the time to produce each is charged to a category."""
        return items

    def timed(self, category: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function, with the time of its calls charged to a category."""
        return function

    def begin(self, period: int | str) -> None:
        """Begin a round, or :data:`END`; called between spans."""


UNTIMED = Spans()
