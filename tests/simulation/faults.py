"""A run in which the n-th call that can fail does so: each write, sync, rename, removal, new folder and allocation has a number.

A fault happens ``once``; or ``lasting``, from then on with every other write; or the process is ``killed`` there, a write half
done, and nothing more reaches the disk.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import pytest
import safetensors.torch
import torch

from fedpriv.errors import FedprivError
from fedpriv.simulation import run
from fedpriv.simulation.inputs import loading
from fedpriv.untrusted import plain_yaml
from tests.simulation.small import SILENT, computed, config, facts, play, read_once, resume

How = Literal["once", "lasting", "killed"]
TINY = {
    "data.clients": 2,
    "data.limit": 40,
    "train.rounds": 2,
    "train.participation": 0.5,
    "train.local_steps": 1,
    "eval.every": 2,
    "wire.keep_payloads": "all",
    "executor.name": "sequential",
}
ON_DISK = ("open", "write", "sync", "rename", "remove", "folder")


class Killed(BaseException):
    """What no code handles."""


@contextmanager
def killed_at(path: str, after: bool) -> Iterator[None]:
    """A block that is killed where a file appears whose name matches: before it is there, or right after.

    A process that ends costs more than most runs; :func:`tests.simulation.processes.die_at` ends one.
    """
    real = os.replace

    def deadly(source: Any, target: Any) -> None:
        here = re.search(path, str(target))
        if here and not after:
            raise Killed
        real(source, target)
        if here:
            raise Killed

    with patch.object(os, "replace", deadly), pytest.raises(Killed):
        yield


KILLED_AT = ("round-000001", "server-000002")
"""Files after which runs are killed: the first round's state of a client, and the second's of the server."""


def played_and_killed(folder: Path, method: str, **overrides: Any) -> Path:
    """The folder of a run that was killed after each of :data:`KILLED_AT` in turn, and resumed to its end."""
    for number, path in enumerate(KILLED_AT):
        with killed_at(path, after=True):
            resume(folder) if number else play(folder, method, **overrides)
    resume(folder)
    assert facts(folder)["status"] == "finished"
    return folder


class Ended(NamedTuple):
    """How a run ended: ``finished``, ``killed``, or with the lines of an error; ``crashed``: it was no :class:`FedprivError`."""

    how: str
    crashed: bool = False


class Faults:
    """Counts the calls that can fail, and makes one fail.

    Args:
        number: of the call that fails (1-based); 0: none.
    """

    def __init__(self, number: int = 0, how: How = "once") -> None:
        self.number, self.how = number, how
        self.kinds: list[str] = []
        """Of the calls so far, in order."""
        self.active = True

    @property
    def happened(self) -> bool:
        return 0 < self.number <= len(self.kinds)

    def tick(self, kind: str) -> None:
        """Count a call, and raise where it fails."""
        if not self.active:
            return
        self.kinds.append(kind)
        if not self.happened:
            return
        if self.how == "killed":
            raise Killed
        if len(self.kinds) == self.number or (self.how == "lasting" and kind in ON_DISK):
            code = errno.ENOSPC if kind in ("open", "write", "folder") else errno.EIO
            raise MemoryError if kind == "memory" else OSError(code, os.strerror(code))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A block whose calls are counted."""
        calls: list[tuple[Any, str, str]] = [
            (os, "fsync", "sync"), (os, "replace", "rename"), (os, "unlink", "remove"), (os, "mkdir", "folder"),
            (json, "dumps", "memory"), (safetensors.torch, "save", "memory"), (torch.Tensor, "clone", "memory"),
            *((torch, name, "memory") for name in ("empty_like", "zeros", "zeros_like", "stack", "cat")),
        ]  # fmt: skip
        with ExitStack() as stack:
            for owner, name, kind in calls:
                stack.enter_context(patch.object(owner, name, self._counted(getattr(owner, name), kind)))
            stack.enter_context(patch.object(Path, "open", self._opened(Path.open)))
            try:
                yield
            finally:
                self.active = False

    def _counted(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.tick(kind)
            # Nothing loses power here, so nothing waits for the disk.
            return None if kind == "sync" else real(*args, **kwargs)

        return counted

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if mode[0] == "r":
                return real(path, mode, *args, **kwargs)
            self.tick("open")
            file = _File(path, mode.rstrip("bt"))
            file.tick = partial(self.tick, "write")
            return file if "b" in mode else io.TextIOWrapper(file, write_through=True)  # type: ignore[type-var]

        return opened


class _File(io.FileIO):
    """A file that takes half of what is written to it when that fails."""

    tick: Callable[[], None]

    def write(self, data: Any) -> int:
        try:
            self.tick()
        except BaseException:
            super().write(bytes(data)[: len(data) // 2])
            raise
        return super().write(data)


@contextmanager
def quick() -> Iterator[None]:
    """A block in which many small runs of one data set are fast: what does not belong to them is computed once."""

    def draw(*arguments: Any) -> None:
        next(given for given in arguments if isinstance(given, Path)).write_bytes(b"png" * 100)

    read = cache(plain_yaml.load)
    with ExitStack() as stack:
        stack.enter_context(patch.object(plain_yaml, "load", lambda text: deepcopy(read(text))))
        stack.enter_context(patch.object(loading, "read_data", read_once()))
        for name in ("plots.learning_curve", "plots.per_client_score", "simulation.finished.results.draw_confusion"):
            stack.enter_context(patch(f"fedpriv.{name}", draw))
        yield


def begin(folder: Path, method: str, faults: Faults, **overrides: Any) -> Ended:
    """Start a run; its config is read and its data are there before faults can happen."""
    wanted = config(method, **{**TINY, **overrides}, run_dir=str(folder))
    ended = _ended(partial(run.start, wanted, folder.parent, *SILENT), faults)
    # Before there is a run, no advice is due: every command then says "out of memory".
    return ended._replace(crashed=False) if ended.how == "MemoryError: " and not (folder / "config.yaml").exists() else ended


def go_on(folder: Path, method: str, faults: Faults, **overrides: Any) -> Ended:
    """Resume it, or start it again where not even its config was written."""
    if not (folder / "config.yaml").exists():
        return begin(folder, method, faults, **overrides)
    if (folder / "run.json").exists() and facts(folder)["status"] == "finished":
        return Ended("finished")
    return _ended(partial(run.resume, folder, *SILENT), faults)


class Judged(NamedTuple):
    """What became of a run with a fault: the error it ended with, or how else; and what is wrong, which should be nothing."""

    first: Ended
    wrong: str


def judged(folder: Path, method: str, reference: dict[str, Any], faults: Faults, **overrides: Any) -> Judged:
    """Play a run with a fault, or go on with one that is there; and then play it to its end without faults.

    Args:
        reference: what the run computes (:func:`tests.simulation.small.computed`) when nothing happens to it.
    """
    first = go_on(folder, method, faults, **overrides)
    assert faults.happened
    if first.crashed or len(first.how.splitlines()) > 2:
        return Judged(first, first.how)
    if faults.how == "once" and (halves := list(folder.rglob("*.part"))):
        return Judged(first, f"half-written: {halves[0].name}")
    last = go_on(folder, method, Faults(), **overrides)
    if last.how != "finished":
        return Judged(first, f"then {last.how}")
    now = computed(folder)
    return Judged(first, ", ".join(sorted(key for key in now.keys() | reference.keys() if now.get(key) != reference.get(key))))


def _ended(play: Callable[[], object], faults: Faults) -> Ended:
    try:
        with faults():
            play()
    except Killed:
        return Ended("killed")
    except FedprivError as error:
        return Ended(str(error))
    except Exception as error:
        return Ended(f"{type(error).__name__}: {error}", crashed=True)
    return Ended("finished")
