"""Profiling of a round: the categories of time, and the spans that charge time to them.

* ``data``: the training samples of a client's turn are picked; samples are augmented, also for an adaptation before a test.
* ``training``: the clients' turns, from the model they start with to what they hand to the wire; DP-SGD included. With several
  processes: waiting for them, so all of their work (data, defences and sealing too), which is not separated.
* ``defences``: the transforms of what is sent. Client-level DP's noise on the server is part of its mean, see ``aggregation``.
* ``serialisation``: what the server sends and what clients send is put together, made bytes, counted, and made tensors again;
  compressed uploads become weights.
* ``aggregation``: from the uploads to the next model, reading their tensors included.
* ``evaluation``: after a round: test samples, adaptation before the test, predictions, probe.
* ``tracking``: what the run waits for it. MLflow is served by a thread of its own; how long that took is said beside the
  categories, and while it computes, the others take longer.
* ``checkpoint``: what is written into the run's folder, and what is read of it: clients' states, the checkpoint, the line of
  metrics, kept messages.
* ``other``: the rest, such as drawing participants and showing progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

CATEGORIES = ("data", "training", "defences", "serialisation", "aggregation", "evaluation", "tracking", "checkpoint")
OTHER = "other"
START, END = "start", "end"
"""What comes before the first round, and after the last."""

P = ParamSpec("P")
T = TypeVar("T")
_NOTHING = nullcontext()


class Spans:
    """Charges time to categories; this base class does not time anything."""

    def __call__(self, category: str, **about: int) -> AbstractContextManager[None]:
        """A block whose time is charged to a category; ``about`` is shown in the trace.

        The block must not switch to another client's code: clients may run side by side in one thread.
        """
        return _NOTHING

    def beside(self, category: str) -> AbstractContextManager[None]:
        """A block in another thread, whose time is no part of a round's."""
        return _NOTHING

    def each(self, category: str, items: Iterable[T]) -> Iterable[T]:
        """The items; the time that making each takes is charged to a category."""
        return items

    def timed(self, category: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function; the time of its calls is charged to a category."""
        return function

    def begin(self, stretch: int | str) -> None:
        """From here on it is this round, or :data:`END`; between spans."""


UNTIMED = Spans()
