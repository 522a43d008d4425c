"""Drives a server through its rounds, to the last one or to Ctrl-C, and notes in the run folder how it ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from fedpriv.errors import ClientDiverged
from fedpriv.files import Damaged
from fedpriv.server.rounds import Server
from fedpriv.spans import END
from fedpriv.storage.provenance import changed_code, continued
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import copier_of, tracker_of

OnRound = Callable[[dict[str, Any]], object]
Warn = Callable[[str], None]
T = TypeVar("T")
Rounds = Generator[dict[str, Any], None, T]
"""Runs a round when asked for the next record, which it yields; returns how the run ended. Closing it interrupts the run."""


def run_server(
    server: Server, on_start: Callable[[], None], on_round: OnRound, results: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any] | None, bool | None]:
    """Run a server's rounds, from the start or the last checkpoint to the end or to Ctrl-C, and note the status in its folder.

    Args:
        on_start: called before the first round that is run now.
        on_round: called with each round's record.
        results: writes the results of a finished run, and returns its summary.

    Returns:
        The summary (``None``: interrupted), and :attr:`Outcome.tracked`.
    """
    return run_all(server_by_round(server, on_start, results, patient=True), on_round)


def run_all(rounds: Rounds[T], on_round: OnRound) -> T:
    """Run all rounds; an exception of ``on_round`` ends the run as an error in a round would."""
    while True:
        try:
            record = next(rounds)
        except StopIteration as end:
            ended: T = end.value
            return ended
        try:
            on_round(record)
        except BaseException as error:
            rounds.throw(error)
            raise


def server_by_round(
    server: Server, on_start: Callable[[], None], results: Callable[[], dict[str, Any]], patient: bool
) -> Rounds[tuple[dict[str, Any] | None, bool | None]]:
    """As :func:`run_server`, as a generator that runs one round at a time.

    Args:
        patient: whether the first Ctrl-C lets the round end; otherwise it stops the run at once. The last checkpoint is whole
            either way.
    """
    folder, profile, warn = server.folder, server.profile, server.warn
    begun = has_begun(folder)
    facts_of_start: dict[str, Any] = {}
    facts_of_end: dict[str, Any] = {}
    if begun:
        server.restore()  # raises if the config has changed, before anything is written
        facts_of_start = continued(folder.facts, server.config, server.progress.round)
        if changed := changed_code(folder.facts, server.config):
            warn(f"{', '.join(changed)} changed since the run began: rounds after {server.progress.round} are of the new code")
        if folder.facts.get("diverged"):
            facts_of_start["diverged"] = None
    tracking = folder.facts["tracking"]
    tracker = copier_of(tracker_of(folder.path, tracking), warn, tracking["wait"], partial(profile.beside, "tracking"))
    status, summary = "failed", None
    try:
        with folder.writing("run.json"):
            folder.update_facts(status="running", **facts_of_start)
        with _finish_round_on_interrupt(server, warn) if patient else nullcontext():
            if not begun:
                server.start()
            on_start()
            tracker.notify()
            for record in server.rounds():
                yield record
                with profile("tracking"):
                    tracker.notify()
        profile.begin(END)
        if server.is_done:
            server.check_trained()
            summary = results()
        status = "interrupted" if summary is None else "finished"
    except (KeyboardInterrupt, GeneratorExit):
        status = "interrupted"
        raise
    except ClientDiverged as error:
        facts_of_end = {"diverged": {"client": error.client, "round": error.round}}
        raise
    finally:
        profile.begin(END)
        server.clients.close()
        try:
            folder.update_facts(status=status, **facts_of_end)
        except (OSError, MemoryError) as error:  # only a warning, so that it does not hide what stopped the run
            warn(f"cannot note in {folder.path} that the run is {status}: {getattr(error, 'strerror', 'out of memory')}")
        with profile("tracking"):
            tracked = tracker.finish()
    return summary, tracked


def has_begun(folder: RunFolder) -> bool:
    """Whether there is a checkpoint; raises ``Damaged`` if the records show that it was lost, as a run must not start over."""
    begun = any(folder.checkpoints.glob("round-*.json"))
    if not begun and (records := folder.records()):
        raise Damaged(
            f"{folder.checkpoints} holds no checkpoint, though the run has done {records[-1]['round']} rounds; restore it from "
            "a copy, or start another run with `fedpriv train --config`"
        )
    return begun


@contextmanager
def _finish_round_on_interrupt(server: Server, warn: Warn) -> Iterator[None]:
    """A block in which the first Ctrl-C lets the round end, and the second stops at once; the last checkpoint is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if server.stop_requested:
            raise KeyboardInterrupt
        server.stop_requested = True
        warn("stopping after this round (Ctrl-C again: at once)")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
