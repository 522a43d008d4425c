"""Copies the records of a live run in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from fedpriv.errors import FedprivError
from fedpriv.tracking.store import ServerAway
from fedpriv.tracking.trackers import Tracker


class Background:
    """Calls a tracker from a background thread, while the run continues.

    Args:
        tracker: ``None``: there is no tracking.
        warn: called once, with one line, if something cannot be copied. It may be called from the background thread.
        interval: least time between two copies (seconds), so that many short rounds become one request.
        span: context manager around each copy in the background thread, for timing.
    """

    def __init__(
        self,
        tracker: Tracker | None,
        warn: Callable[[str], None],
        *,
        interval: float = 2.0,
        span: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.tracker, self._warn, self._interval, self._span = tracker, warn, interval, span
        self._wake, self._closing, self._warned = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._copied, self._away = False, False

    def notify(self) -> None:
        """Signal new records in the folder. Returns immediately."""
        if self.tracker is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, args=(self.tracker,), name="fedpriv-tracking", daemon=True)
            self._thread.start()
        self._wake.set()

    def finish(self, timeout: float = 60.0) -> bool:
        """Copy the rest, for at most ``timeout`` seconds; to be called once the folder has its final status.

        A server that did not answer the last time gets a sixth of the timeout.

        Returns:
            Whether the copy is complete (``True`` also without tracking).
        """
        if self.tracker is None:
            return True
        self._closing.set()
        self.notify()
        assert self._thread is not None
        self._thread.join(timeout / 6 if self._away else timeout)
        if self._thread.is_alive():
            self._complain(self.tracker, f"tracking ({self.tracker.place}) has not taken everything in time")
            return False
        return self._copied

    def _loop(self, tracker: Tracker) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._closing.is_set()  # read before copying, so that everything written before finish() is copied
            try:
                with self._span():
                    tracker.copy()
                self._copied, self._away = True, False
            except Exception as error:  # a failure of the copy must not stop the run
                self._copied, self._away = False, isinstance(error, ServerAway)
                name = "" if isinstance(error, FedprivError) else f"tracking failed: {type(error).__name__}: "
                self._complain(tracker, f"{name}{error}")
            if last:
                tracker.close()
                return
            self._closing.wait(self._interval)

    def _complain(self, tracker: Tracker, what: str) -> None:
        # The lock is never released, so the warning is given once.
        if self._warned.acquire(blocking=False):
            self._warn(f"{what}; the run continues, records are kept; {tracker.later}")
