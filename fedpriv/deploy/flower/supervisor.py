"""Keeps processes running: one that ends is started again, and all end with the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedpriv.deploy.flower.internals import SILENT
from fedpriv.deploy.operation.logs import Log, LogFormat
from fedpriv.errors import FedprivError
from fedpriv.processes import python_command

PAUSE = 5.0
"""Seconds between two starts of a process."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
TOO_OFTEN = 5
"""Consecutive ends within a minute of the start after which a process is given up."""
REFUSED = 2
"""Exit code of a process that must not be started again; its last line says why."""

_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""Flower starts its commands by name; they are beside this Python."""


@dataclass
class _Process:
    command: list[str]
    popen: subprocess.Popen[bytes]
    output: threading.Thread
    started: float
    ends: int = 0


@dataclass
class Supervisor:
    """Starts Python processes and keeps them running.

    Attributes:
        log: file for the output of all of them.
        cwd: their working directory.
        environment: variables in addition to those of this process.
        log_format: of the lines in the log.
    """

    log: Path
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    log_format: LogFormat = "text"
    _processes: dict[str, _Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log = Log(self.log, self.log_format)

    def start(self, name: str, code: str, *arguments: object) -> None:
        """Start Python code with ``sys.argv[1:] = arguments``. The process ends with this one, even if that is killed."""
        command = python_command(code, *map(str, arguments))
        self._processes[name] = _Process(command, *self._popen(name, command), time.monotonic())

    def pids(self) -> dict[str, int]:
        """The current process ids, by name."""
        return {name: process.popen.pid for name, process in self._processes.items()}

    def problem(self) -> str | None:
        """A line on a process that does not run; ``None``: all run."""
        ended = [name for name, process in self._processes.items() if process.popen.poll() is not None]
        return f"{ended[0]} does not run; it is started again" if ended else None

    def look(self) -> None:
        """Start processes again that have ended.

        Raises:
            FedprivError: a process has ended too often, or cannot run; with its last line.
        """
        for name, process in self._processes.items():
            code = process.popen.poll()
            if code is None:
                continue
            process.output.join(1)  # it has no children that hold on to its output for longer
            if code == REFUSED:
                raise FedprivError(f"{name} cannot run: {self._last_line('fedpriv: ')}")
            now = time.monotonic()
            if now - process.started < PAUSE:
                continue
            process.ends = process.ends + 1 if now - process.started < 60 else 1
            if process.ends >= TOO_OFTEN:
                raise FedprivError(f"{name} ends again and again (exit code {code}); {self.log} says why: {self._last_line()}")
            process.popen, process.output = self._popen(name, process.command)
            process.started = now

    def watch(self, stopped: Callable[[], bool] = lambda: False, tend: Callable[[], None] = lambda: None) -> None:
        """Keep the processes running until SIGTERM, Ctrl-C, or ``stopped`` is true.

        Args:
            tend: called regularly.
        """

        def end(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, end)
        try:
            while not stopped():
                self.look()
                tend()
                time.sleep(0.5)
        finally:
            signal.signal(signal.SIGTERM, before)

    def close(self) -> None:
        """End all processes, the last started first."""
        for process in reversed(self._processes.values()):
            if process.popen.poll() is None:
                process.popen.terminate()
        until = time.monotonic() + GRACE
        for process in self._processes.values():
            try:
                process.popen.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            process.output.join(1)
        self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _popen(self, name: str, command: list[str]) -> tuple[subprocess.Popen[bytes], threading.Thread]:
        """A new process, and the thread that writes its output to the log."""
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.cwd,
            env={**os.environ, **SILENT, **self.environment, "PATH": _PATH},
        )
        assert popen.stdout is not None
        return popen, self._log.collect(name, popen.stdout)

    def _last_line(self, beginning: str = "") -> str:
        """The rest of the last line of the log with this beginning."""
        lines = [message.strip() for message in self._log.messages()]
        return next((line.removeprefix(beginning)[:200] for line in reversed(lines) if line.startswith(beginning) and line), "")
