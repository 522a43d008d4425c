"""Time of a round: its clocks, the categories of a profile, and the spans that charge time to these.

* ``data``: picking the training samples of a client's local update, and augmentation, also for an adaptation before a test.
* ``training``: the clients' local updates, from the initial model to the upload before transforms; DP-SGD included. With several
  processes: waiting for them, so all of their work (data, defences and sealing, too).
* ``defences``: the transforms of uploads. Noise of client-level DP on the server belongs to ``aggregation``.
* ``serialisation``: building messages, serialising, counting bytes, and deserialising; decoding compressed uploads.
* ``aggregation``: from the uploads to the next model, including reading their tensors.
* ``evaluation``: after a round: test samples, adaptation before the test, predictions, probe.
* ``tracking``: the run's waiting for MLflow. Its background thread is reported separately; while it computes, other categories
  take longer.
* ``checkpoint``: writing and reading the run's folder: clients' states, the checkpoint, the line of metrics, kept messages.
* ``other``: the rest, such as drawing participants and showing progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, ParamSpec, TypeVar

CATEGORIES = ("data", "training", "defences", "serialisation", "aggregation", "evaluation", "tracking", "checkpoint")
OTHER = "other"
START, END = "start", "end"
"""The stretches before the first round and after the last."""

P = ParamSpec("P")
T = TypeVar("T")
_NOTHING = nullcontext()


class Clocks(NamedTuple):
    """Readings in seconds, of which only differences mean something: the time, and what this process computed."""

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

        The block must not switch to another client's code: clients may run side by side in one thread.
        """
        return _NOTHING

    def beside(self, category: str) -> AbstractContextManager[None]:
        """A block in another thread, whose time is not charged to a round."""
        return _NOTHING

    def each(self, category: str, items: Iterable[T]) -> Iterable[T]:
        """Iterate over items; the time to produce each is charged to a category."""
        return items

    def timed(self, category: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function with the time of its calls charged to a category."""
        return function

    def begin(self, stretch: int | str) -> None:
        """Begin a round, or :data:`END`; called between spans."""


UNTIMED = Spans()
