"""Real ``fedpriv`` processes that can be killed, without their start-up cost: forked from one that has imported everything."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

# Where there is a GPU, autograd starts threads, and a process that has any cannot fork: there, from a fresh one.
CONTEXT: Any = multiprocessing.get_context("forkserver" if torch.cuda.is_available() else "fork")
_IMPORTED = ["pytest", "torch._dynamo", "fedpriv.simulation.run", "fedpriv.cli.report"]
CONTEXT.set_forkserver_preload(_IMPORTED)
if not torch.cuda.is_available():
    for _name in _IMPORTED:
        import_module(_name)

Sabotage = Callable[[], None]
"""Called in the process before the command; must be picklable: a function of a module, or a ``functools.partial`` of one."""


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``code`` is minus the signal's number where one killed it."""

    code: int
    out: str
    err: str


class Process:
    """``fedpriv *arguments`` in a process of its own.

    It writes into pipes, not files: a limit on file sizes must not hit what it says.
    """

    def __init__(self, folder: Path, *arguments: object, sabotage: Sabotage | None = None) -> None:
        names = [str(folder / f".{name}-{time.monotonic_ns()}") for name in ("out", "err")]
        self._pipes = []
        for name in names:
            os.mkfifo(name)
            self._pipes.append(os.open(name, os.O_RDONLY | os.O_NONBLOCK))
            fcntl.fcntl(self._pipes[-1], fcntl.F_SETPIPE_SZ, 2**20)
        self._process = CONTEXT.Process(target=_main, args=([str(a) for a in arguments], names, sabotage), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 120) -> Ended:
        self._process.join(seconds)
        assert not self._process.is_alive(), "the command hangs"
        outputs = [_read(pipe) for pipe in self._pipes]
        for pipe in self._pipes:
            os.close(pipe)
        return Ended(self._process.exitcode, *outputs)


def _read(pipe: int) -> str:
    try:
        return os.read(pipe, 2**20).decode()
    except BlockingIOError:  # it said nothing, and a process of its own still has the pipe
        return ""


def _main(arguments: list[str], pipes: list[str], sabotage: Sabotage | None) -> None:
    for number, pipe in enumerate(pipes, 1):
        os.dup2(os.open(pipe, os.O_WRONLY), number)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 - the parent's are pytest's
    from fedpriv.cli import main

    if sabotage:
        sabotage()
    main(arguments, prog_name="fedpriv")


# --- sabotages --------------------------------------------------------------------------------------------------------


def die_at(call: str, number: int, after: bool, path: str = "") -> None:
    """SIGKILL at the ``number``-th call of ``os.<call>`` whose last argument matches ``path``: before it is done, or right after.

    ``replace`` is where an atomically written file appears, ``unlink`` where an old one goes.
    """
    real, calls = getattr(os, call), 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += bool(re.search(path, str(args[-1])))
        if calls == number and not after:
            _die()
        try:
            return real(*args, **kwargs)
        finally:  # also where there was no file to unlink
            if calls == number:
                _die()

    setattr(os, call, deadly)


def die_at_record(number: int, share: float) -> None:
    """SIGKILL while the ``number``-th line goes to ``metrics.jsonl``: ``share`` of its bytes are written."""
    from fedpriv.storage.run_folder import RunFolder

    def torn(real: Any, folder: RunFolder, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with (folder.path / "metrics.jsonl").open("ab") as file:
            file.write(line[: int(share * len(line))])
        _die()

    _instead(RunFolder, "append", number, torn)


def die_within(share: float) -> None:
    """Be killed after the first round of this process, when ``share`` of the time it took has passed again, wherever that is.

    The signal is SIGALRM, which has no handler.
    """
    from fedpriv.simulation.simulation import Simulation

    def timed(real: Any, simulation: Simulation) -> Any:
        began = time.perf_counter()
        record = real(simulation)
        signal.setitimer(signal.ITIMER_REAL, max(1e-4, share * (time.perf_counter() - began)))
        return record

    _instead(Simulation, "run_round", 1, timed)


def wait_for_interrupt(number: int, ready: Path, times: int = 1) -> None:
    """In the ``number``-th round of this process, make the file ``ready`` and wait until Ctrl-C came ``times`` times."""
    from fedpriv.simulation.simulation import Simulation

    def waiting(real: Any, simulation: Simulation) -> Any:
        ready.touch()
        while times > 1 or not simulation.stop_requested:
            if simulation.stop_requested:
                ready.with_suffix(".again").touch()
            time.sleep(0.005)
        return real(simulation)

    _instead(Simulation, "run_round", number, waiting)


def limit_file_size(where: str, number: int, room: int) -> None:
    """From the ``number``-th checkpoint, record or writing of results on, no file can grow beyond a size: a real failure.

    Args:
        where: ``"commit"``, ``"append"`` or ``"results"``.
        room: bytes; for ``"append"``, beyond the present size of ``metrics.jsonl``.
    """
    from fedpriv.simulation import run
    from fedpriv.storage.checkpoints import Checkpoints
    from fedpriv.storage.run_folder import RunFolder

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limited(real: Any, *args: Any) -> Any:
        size = room + ((args[0].path / "metrics.jsonl").stat().st_size if where == "append" else 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return real(*args)

    owners: dict[str, Any] = {"commit": Checkpoints, "append": RunFolder, "results": run}
    _instead(owners[where], "write_results" if where == "results" else where, number, limited)


def have_children() -> None:
    """Start processes by multiprocessing, which it forbids those that end with the tests."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def become_nobody() -> None:
    """Once everything is loaded, give up root's right to write everywhere."""
    from fedpriv.simulation import run

    def humbled(real: Any, *args: Any) -> Any:
        built = real(*args)
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return built

    _instead(run, "build", 1, humbled)


def _instead(owner: Any, name: str, number: int, act: Callable[..., Any]) -> None:
    """Make the ``number``-th call of ``owner.<name>(...)`` an ``act(original, ...)``."""
    real, calls = getattr(owner, name), 0

    @wraps(real)
    def counting(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return (partial(act, real) if calls == number else real)(*args)

    setattr(owner, name, counting)


def _die() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
