"""A full disk ends the run with one clear line; what was written before is whole, and the run can go on."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.marks import quick_first, slow_but
from tests.simulation.processes import Process, limit_file_size
from tests.simulation.small import FEW_STEPS, computed, facts, flags

Fedpriv = Callable[..., Result]


class _Full(io.FileIO):
    """A file that takes half of what is written to it."""

    def write(self, data: Any) -> int:
        super().write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """A disk that is full from the moment when the ``number``-th file whose path matches ``pattern`` is opened for writing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self._pattern, self._number = False, "", 0
        real = Path.open

        def open_(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if mode in ("wb", "ab"):
                self._number -= bool(self._pattern and re.search(self._pattern, str(path)))
                self.full |= bool(self._pattern and self._number == 0)
                if self.full:
                    return _Full(path, mode)
            return real(path, mode, *args, **kwargs)

        monkeypatch.setattr(Path, "open", open_)

    def fill_at(self, pattern: str, number: int = 1) -> None:
        self._pattern, self._number = pattern, number

    def make_room(self) -> None:
        self.full, self._pattern = False, ""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.make_room()


def assert_clear(text: str, names: str, reason: str = "No space left on device") -> None:
    """One or two lines that say what could not be written, where, why, and how to go on."""
    lines = [line for line in text.strip().splitlines() if not re.match(r"(mpfedcon on|round \d)", line)]
    assert len(lines) <= 2, text
    assert f"cannot write {names}" in lines[-1] and reason in lines[-1] and "fedpriv resume" in lines[-1], text
    assert "Traceback" not in text and "OSError" not in text


@pytest.mark.parametrize(
    ("pattern", "number", "names"),
    slow_but(
        ["partition", "client-.*-000002", "weights"],
        [
            ("partition", 1, "the partition"),
            (r"run\.json", 1, "the beginning of the run"),
            (r"run\.json", 2, "run.json"),
            ("broadcast", 1, "the payloads of round 0"),
            ("download", 2, "the payloads of round 2"),
            ("payloads/.*/client", 5, "the payloads of round 2"),
            ("server-000000", 1, "the checkpoint of round 0"),
            ("round-000000", 1, "the checkpoint of round 0"),
            ("metrics", 1, "the checkpoint of round 0"),
            ("client-.*-000002", 2, "the private state of client"),
            ("server-000002", 1, "the checkpoint of round 2"),
            ("round-000002", 1, "the checkpoint of round 2"),
            ("metrics", 3, "the checkpoint of round 2"),
            ("weights", 1, "the results"),
            ("plots", 1, "the results"),
            ("summary", 1, "the results"),
        ],
    ),
)
def test_wherever_the_disk_fills_up(
    tmp_path: Path, disk: Disk, fedpriv: Fedpriv, reference: Callable[..., Path], pattern: str, number: int, names: str
) -> None:
    folder = tmp_path / "run"
    disk.fill_at(pattern, number)
    result = fedpriv("train", *flags("mpfedcon", **FEW_STEPS), "--run-dir", folder)
    assert disk.full
    assert result.exit_code == 1, result.output
    assert_clear(result.stderr, names)
    assert not list(folder.rglob("*.part"))
    again = fedpriv("resume", folder)  # still full: refused as clearly, and no harm done
    assert again.exit_code == 1
    assert_clear(again.stderr, "")
    disk.make_room()
    assert fedpriv("resume", folder).exit_code == 0
    assert computed(folder) == computed(reference("mpfedcon", **FEW_STEPS))
    assert facts(folder)["status"] == "finished"


def test_no_room_for_the_run_folder_at_all(tmp_path: Path, disk: Disk, fedpriv: Fedpriv) -> None:
    disk.fill_at(r"config\.yaml")
    result = fedpriv("train", *flags("mpfedcon", **FEW_STEPS), "--run-dir", tmp_path / "run")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    disk.make_room()
    assert fedpriv("train", *flags("mpfedcon", **FEW_STEPS), "--run-dir", tmp_path / "run").exit_code == 0


def test_no_room_to_note_that_the_run_is_finished(
    tmp_path: Path, disk: Disk, fedpriv: Fedpriv, reference: Callable[..., Path]
) -> None:
    folder = tmp_path / "run"
    disk.fill_at(r"run\.json", 3)
    result = fedpriv("train", *flags("mpfedcon", **FEW_STEPS), "--run-dir", folder)
    assert "cannot note" in result.stderr and "finished" in result.stderr and "No space left on device" in result.stderr
    disk.make_room()
    assert fedpriv("resume", folder).exit_code == 0
    assert facts(folder)["status"] == "finished"
    assert computed(folder) == computed(reference("mpfedcon", **FEW_STEPS))


@pytest.mark.parametrize(
    ("where", "number", "room", "names"),
    quick_first(
        [
            ("commit", 1, 5_000, "the checkpoint of round 0"),
            ("commit", 3, 5_000, "the checkpoint of round 2"),
            ("commit", 3, 0, "the checkpoint of round 2"),  # not even run.json
            ("append", 3, 300, "the checkpoint of round 2"),
            ("results", 1, 5_000, "the results"),
            ("results", 1, 1_000_000, None),  # room for everything: the control
        ]
    ),
)
def test_when_the_system_refuses_to_write(
    tmp_path: Path, fedpriv: Fedpriv, reference: Callable[..., Path], where: str, number: int, room: int, names: str | None
) -> None:
    folder = tmp_path / "run"
    arguments = ["train", *flags("mpfedcon", **FEW_STEPS), "--run-dir", folder]
    ended = Process(tmp_path, *arguments, sabotage=partial(limit_file_size, where, number, room)).wait()
    if names is None:
        assert ended.code == 0, ended.err
        return
    assert ended.code == 1, ended.err
    assert_clear(ended.err, names, "File too large")
    assert facts(folder)["status"] == ("failed" if room else "running")
    assert not list(folder.rglob("*.part"))
    assert fedpriv("resume", folder).exit_code == 0
    assert computed(folder) == computed(reference("mpfedcon", **FEW_STEPS))
