"""A line of ``metrics.jsonl`` that is not what was written is made good from what the folder still knows, or named."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from click.testing import Result

from fedpriv.files import Damaged
from fedpriv.storage.records import Records, parsed
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import read_records
from tests.marks import quick_first
from tests.simulation.small import computed

Fedpriv = Callable[..., Result]
Lines = list[bytes]


def flipped(line: bytes) -> bytes:
    """Another digit of the accuracy, as one bit makes it."""
    at = line.index(b'"accuracy": 0.') + len(b'"accuracy": 0.')
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


MENDED: dict[str, Callable[[Lines], Lines]] = {
    "torn at the end": lambda lines: [*lines[:-1], lines[-1][:-9]],
    "the last is missing": lambda lines: lines[:-1],
    "the last two are missing": lambda lines: lines[:-2],
    "the last is flipped": lambda lines: [*lines[:-1], flipped(lines[-1])],
    "the last two are noise": lambda lines: [*lines[:-2], b"\xff\x00\n", b"{\n"],
    "doubled": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "doubled whole": lambda lines: lines * 2,
    "reordered": lambda lines: lines[::-1],
    "blank": lambda lines: [*lines[:2], b"\n", *lines[2:]],
    "torn in the middle, and whole": lambda lines: [*lines[:2], lines[2][:40] + b"\n", *lines[2:]],
}
NAMED: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "flipped": (lambda lines: [lines[0], flipped(lines[1]), *lines[2:]], "metrics.jsonl, line 2 is damaged"),
    "missing": (lambda lines: [lines[0], *lines[2:]], "metrics.jsonl is damaged: it has no line of round 1"),
    "torn": (lambda lines: [lines[0], lines[1][:50] + b"\n", *lines[2:]], "metrics.jsonl, line 2 is damaged"),
    "blank": (lambda lines: [lines[0], b"\n", *lines[2:]], "metrics.jsonl, line 2 is damaged"),
    "empty": (lambda lines: [], "metrics.jsonl is damaged: it has no line of round 0"),
}


def change(folder: Path, how: Callable[[Lines], Lines]) -> None:
    file = folder / "metrics.jsonl"
    file.write_bytes(b"".join(how(file.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize("how", quick_first(MENDED, 3))
def test_damaged_records_are_mended_on_resume(halfway: Path, whole: Path, fedpriv: Fedpriv, how: str) -> None:
    change(halfway, MENDED[how])
    result = fedpriv("resume", halfway)
    assert result.exit_code == 0, result.output
    assert computed(halfway) == computed(whole)


@pytest.mark.parametrize("how", NAMED)
def test_what_nothing_knows_is_named(halfway: Path, fedpriv: Fedpriv, how: str) -> None:
    damage, message = NAMED[how]
    change(halfway, damage)
    before = (halfway / "metrics.jsonl").read_bytes()
    for command in (("resume", halfway), ("compare", halfway), ("audit", halfway)):
        result = fedpriv(*command)
        if command[0] == "audit" and "not finished" in result.stderr:
            continue
        assert result.exit_code == 1, result.output
        assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert (halfway / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("how", MENDED)
def test_the_records_of_a_finished_run_are_known_too(whole: Path, tmp_path: Path, how: str) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    expected = RunFolder(whole).records()
    change(folder, MENDED[how])
    assert RunFolder(folder).records() == read_records(folder) == expected


def test_a_round_after_the_last_is_none(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    expected = RunFolder(whole).records()
    RunFolder(folder).append({**expected[-1], "round": 6})
    assert RunFolder(folder).records() == expected


def test_a_round_that_was_not_committed_is_played_again(halfway: Path, whole: Path, fedpriv: Fedpriv) -> None:
    """Its line says what it then did; where it did something else, the line would not fit the model."""
    future = {**RunFolder(halfway).records()[-1], "round": 4, "metrics": {"accuracy": 1.0}}
    RunFolder(halfway).append(future)
    assert fedpriv("resume", halfway).exit_code == 0
    assert computed(halfway) == computed(whole)


def test_any_bit_of_a_line_counts(whole: Path) -> None:
    """It is noticed, or the record is the same."""
    line = (whole / "metrics.jsonl").read_bytes().splitlines()[2]
    expected, noticed = parsed(line), 0
    for at in range(len(line)):
        changed = line[:at] + bytes([line[at] ^ (1 << at % 8)]) + line[at + 1 :]
        try:
            record = parsed(changed)
        except ValueError:
            noticed += 1
        else:
            assert {key: value for key, value in record.items() if key in expected} == expected
    assert noticed > 0.9 * len(line)


@pytest.mark.parametrize("line", [b"[" * 10**5, b"3", b"{}", b'{"round": true, "time_ms": 1, "metrics": {}}', b'{"sha256": []}'])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"record|round|checksum|recursion"):
        parsed(line)


@pytest.mark.parametrize("last", [None, 10**6])
def test_a_line_that_names_a_round_far_ahead_takes_no_memory(tmp_path: Path, last: int | None) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": {10**6}, "time_ms": 1, "metrics": {{}}}}\n')
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="it has no line of round 0"):
            Records(tmp_path).read(last)
        assert tracemalloc.get_traced_memory()[1] < 2**20  # bytes; a list of the missing rounds has 40 times as many
    finally:
        tracemalloc.stop()


def test_without_checkpoints_a_damaged_line_may_be_the_last(halfway: Path) -> None:
    change(halfway, lambda lines: [*lines[:-1], flipped(lines[-1])])
    shutil.rmtree(halfway / "checkpoints")
    with pytest.raises(Damaged, match=r"metrics\.jsonl, line 4 is damaged"):
        Records(halfway).read()


def test_metrics_are_read_by_pandas(whole: Path) -> None:
    table: Any = pandas.read_json(whole / "metrics.jsonl", lines=True, precise_float=True)
    assert table["round"].tolist() == [0, 1, 2, 3, 4, 5]
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert table["metrics"].tolist() == [record["metrics"] for record in records]
