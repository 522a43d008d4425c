"""Copies a live run to MLflow in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fedpriv.errors import FedprivError, UsageError
from fedpriv.outside.addresses import keep_secrets
from fedpriv.tracking.access import permitted_store
from fedpriv.tracking.mirror import sync
from fedpriv.tracking.store import ServerAway, quiet_mlflow


class Tracker:
    """Sends a run's records to MLflow from a background thread, while the run continues.

    Args:
        run_dir: the run's folder.
        uri: MLflow tracking URI, or ``"none"`` for no tracking at all.
        experiment: MLflow experiment name.
        warn: called once, with one line, if something cannot be sent. It may be called from the background thread.
        interval: least time between two sends (seconds), so that many short rounds become one request.
        span: context manager around each send in the background thread, for timing.
    """

    def __init__(
        self,
        run_dir: Path,
        uri: str,
        experiment: str,
        warn: Callable[[str], None],
        *,
        interval: float = 2.0,
        span: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._run_dir, self._uri, self._experiment = run_dir, keep_secrets(uri), experiment
        self._warn, self._interval = warn, interval
        self._span = span
        self._wake, self._closing, self._warned = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._sent, self._away = False, False
        if uri != "none":
            # Not in the thread, as changing the environment while other threads read it is not safe.
            quiet_mlflow()

    def notify(self) -> None:
        """Signal new records in the folder. Returns immediately."""
        if self._uri == "none":
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="fedpriv-tracking", daemon=True)
            self._thread.start()
        self._wake.set()

    def finish(self, timeout: float = 60.0) -> bool:
        """Send the rest, for at most ``timeout`` seconds; to be called once the folder has its final status.

        A server that did not answer the last time gets a sixth of the timeout.

        Returns:
            Whether MLflow now has everything (``True`` also with tracking off).
        """
        if self._uri == "none":
            return True
        self._closing.set()
        self.notify()
        assert self._thread is not None
        self._thread.join(timeout / 6 if self._away else timeout)
        if self._thread.is_alive():
            self._complain(f"tracking at {self._uri} has not taken everything in time")
            return False
        return self._sent

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._closing.is_set()  # read before sending, so that everything written before finish() is sent
            try:
                with self._span():
                    sync(self._run_dir, self._uri, self._experiment)
                self._sent, self._away = True, False
            except Exception as error:  # a failure of the copy must not stop the run
                self._sent, self._away = False, isinstance(error, ServerAway)
                name = "" if isinstance(error, FedprivError) else f"tracking failed: {type(error).__name__}: "
                self._complain(f"{name}{error}")
            if last:
                return
            self._closing.wait(self._interval)

    def _complain(self, what: str) -> None:
        # The lock is never released, so the warning is given once.
        if self._warned.acquire(blocking=False):
            self._warn(
                f"{what}; the run continues, records are kept; `fedpriv sync {self._run_dir}{self._again}` sends them later"
            )

    @property
    def _again(self) -> str:
        """The option with which a later command sends to a store that is not the usual one."""
        try:
            permitted_store(self._run_dir, self._uri)
        except UsageError:
            return f" --tracking-uri {self._uri}"
        return ""
