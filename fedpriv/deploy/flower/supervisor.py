"""Processes that are kept running: one that ends is started again, and none outlives the keeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedpriv.deploy.flower.needed import SILENT
from fedpriv.errors import FedprivError
from fedpriv.processes import python_command

PAUSE = 5.0
"""Seconds between two starts of a process."""
GRACE = 10.0
"""Seconds that a process has to end when it is told to."""
TOO_OFTEN = 5
"""Ends within a minute of its start, one after another, at which a process is given up."""
REFUSED = 2
"""Exit code of a process that cannot run, however often it is started; its last line says why."""

_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""Flower starts commands of its own by name: they are beside this Python."""


@dataclass
class _Kept:
    command: list[str]
    process: subprocess.Popen[bytes]
    started: float
    ends: int = 0


@dataclass
class Supervisor:
    """Starts Python processes and keeps them.

    Attributes:
        log: file that all of them write into.
        environment: beside that of this process.
        cwd: folder in which they run.
    """

    log: Path
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict)

    def start(self, name: str, code: str, *arguments: object) -> None:
        """Start ``code`` with ``sys.argv[1:] = arguments``; it ends with this process, however that ends."""
        command = python_command(code, *map(str, arguments))
        self._kept[name] = _Kept(command, self._process(command), time.monotonic())

    def pid(self, name: str) -> int:
        """The process id at present."""
        return self._kept[name].process.pid

    def look(self) -> None:
        """Start again what has ended.

        Raises:
            FedprivError: a process ends soon after each of its starts; says where to read why.
        """
        for name, kept in self._kept.items():
            code = kept.process.poll()
            if code is None:
                continue
            if code == REFUSED:
                raise FedprivError(f"{name} cannot run: {self._last_line('fedpriv: ')}")
            now = time.monotonic()
            if now - kept.started < PAUSE:
                continue
            kept.ends = kept.ends + 1 if now - kept.started < 60 else 1
            if kept.ends >= TOO_OFTEN:
                raise FedprivError(f"{name} ends again and again (exit code {code}); {self.log} says why: {self._last_line()}")
            kept.process, kept.started = self._process(kept.command), now

    def watch(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Keep them running until SIGTERM, Ctrl-C, or ``stopped``."""

        def end(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, end)
        try:
            while not stopped():
                self.look()
                time.sleep(0.5)
        finally:
            signal.signal(signal.SIGTERM, before)

    def close(self) -> None:
        """End all of them, the last started first, each by its process id."""
        for kept in reversed(self._kept.values()):
            if kept.process.poll() is None:
                kept.process.terminate()
        until = time.monotonic() + GRACE
        for kept in self._kept.values():
            try:
                kept.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                kept.process.kill()
                kept.process.wait()
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _process(self, command: list[str]) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env={**os.environ, **SILENT, **self.environment, "PATH": _PATH},
            )

    def _last_line(self, beginning: str = "") -> str:
        """What follows that beginning in the last line that has it."""
        lines = [line.strip() for line in self.log.read_text(errors="replace", encoding="utf-8").splitlines()]
        return next((line.removeprefix(beginning)[:200] for line in reversed(lines) if line.startswith(beginning) and line), "")
