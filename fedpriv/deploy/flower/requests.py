"""A run that an operator asks for: a file that the server's app reads, and one in which it notes how the run ended.

Requests are numbered, as a clock may be set back. Their folder is in that of the deployment, which may be moved or copied: from
there they say where a run in it is. Those of earlier versions have the time for a number, and whole paths.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from fedpriv.config import RunConfig, parse
from fedpriv.errors import FedprivError
from fedpriv.files import load_json, save_json
from fedpriv.storage.records import lines_of
from fedpriv.tracking.folder import read_lines
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from fedpriv.deploy.remote_clients import Grid


class GivenUp(FedprivError):
    """The SuperLink has given up the app, as after a minute without a sign of it; it may have started another."""


@dataclass(frozen=True)
class Request:
    """The file of a request; how its run ended is noted beside it."""

    path: Path

    @classmethod
    def write(cls, folder: Path, run_dir: Path, config: RunConfig | None, clients: int, seconds: float) -> Request:
        """A new request for a run.

        Args:
            config: ``None``: to resume the run in that folder.
            seconds: how long a client's answer may take.

        Raises:
            UsageError: an option of the config's method is wrong.
        """
        from fedpriv.deploy.serving import with_usual

        run_dir, home = run_dir.absolute(), folder.absolute().parent
        named = run_dir.relative_to(home) if run_dir.is_relative_to(home) else run_dir
        said = None if config is None else with_usual(config).model_copy(update={"run_dir": None}).chosen()
        with FileLock(folder / ".lock"):
            path = folder / f"{run_dir.name}-{1 + max(map(_number, folder.iterdir()), default=0)}.json"
            save_json(path, {"run_dir": str(named), "config": said, "clients": clients, "seconds": seconds})
        return cls(path)

    @classmethod
    def latest(cls, folder: Path) -> dict[str, Request]:
        """The last request for each run, by the run's name."""
        found = sorted(folder.glob("*.json"), key=_number)
        return {path.stem.rpartition("-")[0]: cls(path) for path in found}

    @classmethod
    def broken_off(cls, folder: Path) -> list[Request]:
        """The last requests for runs that have begun and not ended. Before the server's first app starts, no one plays them."""
        return [one for one in cls.latest(folder).values() if one._begun.exists() and one.ended is None and one.run_dir.exists()]

    @property
    def run_dir(self) -> Path:
        """The folder of its run."""
        return self.path.absolute().parent.parent / str(load_json(self.path)["run_dir"])

    @property
    def ended(self) -> dict[str, Any] | None:
        """How its run ended: ``error`` and ``exit_code``, or ``finished``; ``None``: not yet."""
        return load_json(self._note) if self._note.exists() else None

    @property
    def _note(self) -> Path:
        return self.path.with_suffix(".ended")

    @property
    def _begun(self) -> Path:
        return self.path.with_suffix(".begun")

    def play(self, grid_of: Callable[[int], Grid]) -> None:
        """Play its run with a grid of so many clients, and note how it ended.

        Where the SuperLink takes an app for dead, it may start another for the same request. That one waits until the first has
        ended, and goes on with its run; as does one that is started with the server, where the first was ended with it.

        Raises:
            GivenUp: by the SuperLink.
            Exception: the run failed; that is noted too.
        """
        with FileLock(self.path.with_suffix(".lock")):
            if self.ended is None:
                self._play(grid_of)

    def _play(self, grid_of: Callable[[int], Grid]) -> None:
        from fedpriv.deploy.serving import DECLARED, clear_beginning, resume, start

        said, again = load_json(self.path), self._begun.exists()
        grid, run_dir, seconds = grid_of(said["clients"]), self.run_dir, said["seconds"]
        log: tuple[Any, ...] = (lambda *of: None, lambda record: None, self._warn)
        try:
            self._begun.touch()
            if said["config"] is None or (again and (run_dir / DECLARED).exists()):
                summary = resume(run_dir, grid, seconds, *log)
            else:
                if again:
                    clear_beginning(run_dir)
                config = parse(RunConfig, {**said["config"], "run_dir": str(run_dir)}, "the request's config")
                summary = start(config, run_dir.parent, grid, seconds, *log)
        except (GivenUp, SystemExit):  # the latter is of Flower, where this process is told to end: the run may go on
            raise
        except BaseException as error:
            what = str(error) if isinstance(error, FedprivError) else f"{type(error).__name__}: {error}"
            save_json(self._note, {"error": what, "exit_code": getattr(error, "exit_code", 1)})
            raise
        save_json(self._note, {"finished": summary is not None})

    def _warn(self, text: str) -> None:
        """Show a warning to who follows: what the server's app prints goes into the server's log alone.

        A full disk does not end the run here; the next file of the run, which cannot be written either, says how to go on.
        """
        line = " ".join(text.split())
        try:
            with self.warnings.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            print(f"fedpriv: {printable(line)} (not written to {self.warnings}: {error.strerror})", file=sys.stderr, flush=True)

    @property
    def warnings(self) -> Path:
        """A file of the run's warnings, a line each; it may not exist."""
        return self.path.with_suffix(".warnings")

    def follow(
        self,
        alive: Callable[[], None],
        on_round: Callable[[dict[str, Any]], None],
        on_warning: Callable[[str], None] = lambda text: None,
        after: int = -1,
    ) -> bool:
        """Wait for the run's end, with the record of every round and its warnings on the way; ``False``: it was stopped.

        Args:
            alive: called now and then; raises where the run cannot go on.
            after: the round whose successors are shown.

        Raises:
            FedprivError: the run failed; the reason.
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
                alive()
            except FedprivError:
                if self.ended is None:
                    raise
            time.sleep(0.2)


def _number(path: Path) -> int:
    """That of a request, of which this is a file; 0: it is another file."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
