"""Requests of an operator to run a config: a file that the server's app reads, and files that it writes beside it.

Requests are numbered, as a clock may be set back. Paths of runs are relative to the deployment's folder,
which may be moved or copied.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from fedpriv.config import RunConfig, parse
from fedpriv.deploy.operation.members import Members
from fedpriv.errors import FedprivError
from fedpriv.files import load_json, save_json
from fedpriv.storage.records import lines_of
from fedpriv.tracking.folder import read_lines
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from fedpriv.deploy.remote_clients import Grid

GridOf = Callable[[int, Callable[[], Mapping[int, str]]], "Grid"]


class GivenUp(FedprivError):
    """The SuperLink has given up the app, such as after a minute without a heartbeat; it may have started another."""


@dataclass(frozen=True)
class Request:
    """A request, by the path of its file."""

    path: Path

    @classmethod
    def write(cls, folder: Path, run_dir: Path, config: RunConfig | None, clients: int, seconds: float) -> Request:
        """Write a new request.

        Args:
            config: of a new run; ``None``: resume the run in that folder.
            seconds: timeout of a client's answer.

        Raises:
            UsageError: the run cannot begin, whatever data the clients have.
        """
        from fedpriv.deploy.deployable import deployable

        run_dir, paths = run_dir.absolute(), folder.absolute().parent
        relative = run_dir.relative_to(paths) if run_dir.is_relative_to(paths) else run_dir
        chosen = None if config is None else deployable(config).model_copy(update={"run_dir": None}).chosen()
        with FileLock(folder / ".lock"):
            path = folder / f"{run_dir.name}-{1 + max(map(_number, folder.iterdir()), default=0)}.json"
            save_json(path, {"run_dir": str(relative), "config": chosen, "clients": clients, "seconds": seconds})
        return cls(path)

    @classmethod
    def latest(cls, folder: Path) -> dict[str, Request]:
        """Name of a run -> the last request for it."""
        paths = sorted(folder.glob("*.json"), key=_number)
        return {path.stem.rpartition("-")[0]: cls(path) for path in paths}

    @classmethod
    def interrupted(cls, folder: Path) -> list[Request]:
        """The last requests for runs that were interrupted; called before the server starts an app, so that none is running."""
        requests = cls.latest(folder).values()
        return [request for request in requests if request._begun.exists() and request.ended is None and request.run_dir.exists()]

    @classmethod
    def idle(cls, folder: Path) -> bool:
        """Whether every run that was asked for has ended."""
        return all(request.ended is not None for request in cls.latest(folder).values())

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.path.absolute().parent.parent / str(load_json(self.path)["run_dir"])

    @property
    def ended(self) -> dict[str, Any] | None:
        """How the run ended: ``error`` and ``exit_code``, or ``finished``; ``None``: it has not."""
        return load_json(self._note) if self._note.exists() else None

    @property
    def _note(self) -> Path:
        return self.path.with_suffix(".ended")

    @property
    def _begun(self) -> Path:
        return self.path.with_suffix(".begun")

    def play(self, grid_of: GridOf) -> None:
        """Conduct the run, and note how it ended.

        If the SuperLink believes that an app is dead, it may start another for the same request. The second waits until the first
        has ended, and continues its run; so does an app that is started after a restart of the server.

        Args:
            grid_of: number of clients, and what gives those that were removed -> a grid of them.

        Raises:
            GivenUp: the SuperLink has given up this app.
            Exception: the run failed, which is noted, too.
        """
        with FileLock(self.path.with_suffix(".lock")):
            if self.ended is None:
                self._play(grid_of)

    def _play(self, grid_of: GridOf) -> None:
        from fedpriv.deploy.server_run import DECLARED, clear_beginning, resume, start

        values, again = load_json(self.path), self._begun.exists()
        members = Members(self.path.absolute().parent.parent / "clients.json", values["clients"])
        grid, run_dir, seconds = grid_of(values["clients"], members.removed), self.run_dir, values["seconds"]
        try:
            self._begun.touch()
            if values["config"] is None or (again and (run_dir / DECLARED).exists()):
                summary = resume(run_dir, grid, seconds, _ignore, _ignore, self._warn)
            else:
                if again:
                    clear_beginning(run_dir)
                config = parse(RunConfig, {**values["config"], "run_dir": str(run_dir)}, "the request's config")
                summary = start(config, run_dir.parent, grid, seconds, _ignore, _ignore, self._warn, members.present())
        except (GivenUp, SystemExit):  # Flower raises the latter when this process is to end: the run may continue
            raise
        except BaseException as error:
            text = str(error) if isinstance(error, FedprivError) else f"{type(error).__name__}: {error}"
            save_json(self._note, {"error": text, "exit_code": getattr(error, "exit_code", 1)})
            raise
        save_json(self._note, {"finished": summary is not None})

    def _warn(self, text: str) -> None:
        """Append a warning to the file that :meth:`follow` reads: the app's output goes only to the server's log.

        A full disk does not end the run here: the error of the next file of the run says how to continue.
        """
        line = " ".join(text.split())
        try:
            with self.warnings.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            print(f"fedpriv: {printable(line)} (not written to {self.warnings}: {error.strerror})", file=sys.stderr, flush=True)

    @property
    def warnings(self) -> Path:
        """File of the run's warnings, one a line; it may not exist."""
        return self.path.with_suffix(".warnings")

    def follow(
        self,
        check_alive: Callable[[], None],
        on_round: Callable[[dict[str, Any]], None],
        on_warning: Callable[[str], None] = lambda text: None,
        after: int = -1,
    ) -> bool:
        """Wait until the run ends, and report its rounds and warnings; whether it finished, and was not stopped.

        Args:
            check_alive: called regularly; raises if the run cannot continue.
            on_round: called with the record of each round after ``after``.

        Raises:
            FedprivError: the run failed, with the reason.
        """
        run_dir, shown, seen, warned = self.run_dir, after, 0, 0
        while True:
            ended = self.ended
            warnings = lines_of(self.warnings)
            for line in warnings[warned:]:
                on_warning(line.decode())
            warned = len(warnings)
            records, seen = read_lines(run_dir, seen)
            for record in records:
                if record["round"] > shown:
                    shown = record["round"]
                    on_round(record)
            if ended is not None:
                if "error" in ended:
                    failed = FedprivError(ended["error"])
                    failed.exit_code = int(ended.get("exit_code") or 1)
                    raise failed
                return bool(ended["finished"])
            try:
                check_alive()
            except FedprivError:
                if self.ended is None:
                    raise
            time.sleep(0.2)


def _ignore(*of: object) -> None:
    """A request is followed by its records, and not in the server's process."""


def _number(path: Path) -> int:
    """The number of the request that a file belongs to; 0: of none."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
