"""A tracker in a process of its own, which goes on after the end of the run: its packages take seconds to import."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fedpriv.tracking.background import Background
from fedpriv.tracking.trackers import Tracker, registry
from fedpriv.untrusted.addresses import keep_secrets, with_secrets

KILLED = 0.5
"""Seconds after which a process that was killed has lost its locks, too: the system closes its files one by one."""
LONGEST = 600.0
"""Seconds that the process may take after the end of the run."""


class Apart:
    """As :class:`fedpriv.tracking.background.Background`, in another process, which is told of new records by a pipe.

    That process reads the records from the run folder. It has a session of its own, so that Ctrl-C does not end it. If the run's
    process is killed, it copies what there is, and ends.

    Args:
        warn: called with one line if something cannot be copied, perhaps from another thread.
        patience: seconds for which :meth:`finish` waits.
        span: context manager around each copy, for timing; entered in another thread.
    """

    def __init__(
        self,
        tracker: Tracker,
        warn: Callable[[str], None],
        patience: float,
        span: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.tracker, self._warn, self._patience, self._span = tracker, warn, patience, span
        self._process: subprocess.Popen[str] | None = None
        self._ended, self._complete = threading.Event(), False

    def notify(self) -> None:
        """Signal new records in the folder. Returns immediately."""
        if self._process is None and not self._ended.is_set():
            self._start()
        self._tell("new")

    def finish(self) -> bool | None:
        """Have the rest copied; to be called once the folder has its final status.

        Returns:
            Whether the copy is complete; ``None``: not yet, and the process goes on with it.
        """
        self.notify()
        self._tell("end")
        return self._complete if self._ended.wait(self._patience) else None

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from fedpriv.tracking.apart import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # not this process's: whatever reads that would wait for the other's end, too
                text=True,
                start_new_session=True,
                encoding="utf-8",
            )
        except OSError as error:  # no memory, or too many processes: it must not stop the run
            self._lost(f"cannot be started ({error.strerror})")
            return
        threading.Thread(target=self._listen, args=(self._process,), name="fedpriv-tracking", daemon=True).start()
        tracker = self.tracker
        uri = with_secrets(tracker.uri) or tracker.uri  # by the pipe: other users can read a command's arguments
        facts = {"name": tracker.name, "run_dir": str(tracker.run_dir), "uri": uri, "experiment": tracker.experiment}
        self._tell(json.dumps(facts))

    def _tell(self, line: str) -> None:
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
                said: dict[str, Any] = json.loads(line)
                if said.get("copying"):
                    copying.enter_context(self._span())
                elif "copying" in said:
                    copying.close()
                if "warning" in said:
                    self._warn(said["warning"])
                complete = said.get("complete", complete)
        process.wait()
        if complete is None:
            self._lost(f"ended (exit code {process.returncode})")
        self._complete = bool(complete)
        self._ended.set()

    def _lost(self, what: str) -> None:
        name = self.tracker.name
        self._warn(f"the process of the tracker {name!r} {what}; the run continues, records are kept; {self.tracker.later}")
        self._ended.set()


def beside(
    tracker: Tracker | None,
    warn: Callable[[str], None],
    patience: float,
    span: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Background | Apart:
    """The copying of a run's records, in a process of its own where the tracker says so, else in a thread of this one."""
    if tracker is not None and tracker.apart:
        return Apart(tracker, warn, patience, span)
    return Background(tracker, warn, span=span)


def main() -> None:
    """The process: a :class:`Background` that standard input tells of new records; what it says goes to standard output."""

    def say(**what: object) -> None:
        with suppress(OSError):  # the run's process has ended, so there is no reader
            print(json.dumps(what), flush=True)

    @contextmanager
    def span() -> Iterator[None]:
        say(copying=True)
        try:
            yield
        finally:
            say(copying=False)

    facts = json.loads(sys.stdin.readline())
    tracker = registry.find(facts["name"])(Path(facts["run_dir"]), keep_secrets(facts["uri"]), facts["experiment"])
    background = Background(tracker, lambda text: say(warning=text), span=span)
    for line in sys.stdin:  # until its end, if the run is killed
        if line.strip() == "end":
            break
        background.notify()
    else:
        time.sleep(KILLED)
    say(complete=background.finish(LONGEST))
