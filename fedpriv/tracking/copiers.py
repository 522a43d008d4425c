"""Copying the records of a live run in the background, in a thread or in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError
from fedpriv.processes import TRACKING_THREAD
from fedpriv.tracking.store import ServerAway
from fedpriv.tracking.trackers import Tracker, registry
from fedpriv.untrusted.addresses import keep_secrets, with_secrets

Span = Callable[[], AbstractContextManager[None]]
"""A context manager around each copy, for timing; entered in the copying thread."""
LOCK_RELEASE = 0.5
"""Seconds after which a killed process has lost its locks, too: the system closes its files one by one."""
NICENESS = 10
"""How far the process gives way to others, the run's own among them: beside two workers on two cores, importing MLflow made the
quick start's rounds a third longer."""
LONGEST = 600.0
"""Seconds that the process may take after the end of the run."""


class ThreadCopier:
    """Calls a tracker from a background thread while the run continues.

    Args:
        tracker: ``None``: no tracking.
        warn: called with one line if something cannot be copied; at most once, perhaps from the thread.
        interval: least time between two copies (seconds), so that many short rounds become one request.
    """

    def __init__(
        self, tracker: Tracker | None, warn: Callable[[str], None], *, interval: float = 2.0, span: Span = nullcontext
    ) -> None:
        self.tracker, self._warn, self._interval, self._span = tracker, warn, interval, span
        self._wake, self._closing, self._warned = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._complete, self._away = False, False

    def notify(self) -> None:
        """Signal new records in the folder. Returns immediately."""
        if self.tracker is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, args=(self.tracker,), name=TRACKING_THREAD, daemon=True)
            self._thread.start()
        self._wake.set()

    def finish(self, timeout: float = 60.0) -> bool:
        """Copy the rest, for at most ``timeout`` seconds (a sixth of it if the server did not answer the last time). To be called
        once the folder has its final status.

        Returns:
            Whether the copy is complete; ``True`` without tracking.
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
        return self._complete

    def _loop(self, tracker: Tracker) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            last = self._closing.is_set()  # read before copying, so that all that was written before finish() is copied
            try:
                with self._span():
                    tracker.copy()
                self._complete, self._away = True, False
            except Exception as error:  # which must not stop the run
                self._complete, self._away = False, isinstance(error, ServerAway)
                name = "" if isinstance(error, FedprivError) else f"tracking failed: {type(error).__name__}: "
                self._complain(tracker, f"{name}{error}")
            if last:
                tracker.close()
                return
            self._closing.wait(self._interval)

    def _complain(self, tracker: Tracker, what: str) -> None:
        if self._warned.acquire(blocking=False):  # never released, so the warning is given once
            self._warn(f"{what}; the run continues, records are kept; {tracker.later}")


class ProcessCopier:
    """A :class:`ThreadCopier` in another process, which outlives the run; for trackers whose packages take seconds to import.

    The process is notified of new records through a pipe, and reads them from the run folder. It has its own session, so that
    Ctrl-C does not end it. If the run's process is killed, it copies what there is, and ends.

    Args:
        warn: called with one line if something cannot be copied, perhaps from another thread.
        patience: seconds for which :meth:`finish` waits.
    """

    def __init__(self, tracker: Tracker, warn: Callable[[str], None], patience: float, span: Span = nullcontext) -> None:
        self.tracker, self._warn, self._patience, self._span = tracker, warn, patience, span
        self._process: subprocess.Popen[str] | None = None
        self._ended, self._complete = threading.Event(), False

    def notify(self) -> None:
        """Signal new records in the folder. Returns immediately."""
        if self._process is None and not self._ended.is_set():
            self._start()
        self._send("new")

    def finish(self) -> bool | None:
        """Have the rest copied; to be called once the folder has its final status.

        Returns:
            Whether the copy is complete; ``None``: not yet, and the process continues.
        """
        self.notify()
        self._send("end")
        return self._complete if self._ended.wait(self._patience) else None

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from fedpriv.tracking.copiers import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # if it were this process's, its reader would wait for the other's end, too
                text=True,
                start_new_session=True,
                encoding="utf-8",
            )
        except OSError as error:  # no memory, or too many processes: it must not stop the run
            self._lost(f"cannot be started ({error.strerror})")
            return
        threading.Thread(target=self._listen, args=(self._process,), name=TRACKING_THREAD, daemon=True).start()
        tracker = self.tracker
        uri = with_secrets(tracker.uri) or tracker.uri  # through the pipe: other users can read a command's arguments
        facts = {"name": tracker.name, "run_dir": str(tracker.run_dir), "uri": uri, "experiment": tracker.experiment}
        self._send(json.dumps(facts))

    def _send(self, line: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended, which _listen reports
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        complete: bool | None = None
        with ExitStack() as copying:
            for line in process.stdout:
                message: dict[str, Any] = json.loads(line)
                if message.get("copying"):
                    copying.enter_context(self._span())
                elif "copying" in message:
                    copying.close()
                if "warning" in message:
                    self._warn(message["warning"])
                complete = message.get("complete", complete)
        process.wait()
        if complete is None:
            self._lost(f"ended (exit code {process.returncode})")
        self._complete = bool(complete)
        self._ended.set()

    def _lost(self, what: str) -> None:
        name = self.tracker.name
        self._warn(f"the process of the tracker {name!r} {what}; the run continues, records are kept; {self.tracker.later}")
        self._ended.set()


def copier_of(
    tracker: Tracker | None, warn: Callable[[str], None], patience: float, span: Span = nullcontext
) -> ThreadCopier | ProcessCopier:
    """The copier for a tracker: in its own process if the tracker says so, else in a thread."""
    if tracker is not None and tracker.own_process:
        return ProcessCopier(tracker, warn, patience, span)
    return ThreadCopier(tracker, warn, span=span)


def main() -> None:
    """Run the process of a :class:`ProcessCopier`: commands on standard input, messages (JSON) on standard output."""

    def send(**message: object) -> None:
        with suppress(OSError):  # the run's process has ended, so there is no reader
            print(json.dumps(message), flush=True)

    @contextmanager
    def span() -> Iterator[None]:
        send(copying=True)
        try:
            yield
        finally:
            send(copying=False)

    if sys.platform != "win32":
        os.nice(NICENESS)
    facts = json.loads(sys.stdin.readline())
    tracker = registry.find(facts["name"])(Path(facts["run_dir"]), keep_secrets(facts["uri"]), facts["experiment"])
    copier = ThreadCopier(tracker, lambda text: send(warning=text), span=span)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        copier.notify()
    else:  # the run's process was killed
        time.sleep(LOCK_RELEASE)
    send(complete=copier.finish(LONGEST))
