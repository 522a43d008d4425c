"""Records of training that was killed, of a disk that fills, and of a size beyond memory."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fedpriv
from fedpriv.audit.foreign.audit import AuditedFolder, audit_recorded
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.recorder import layout, reader, writer
from fedpriv.recorder.check import check
from fedpriv.recorder.reader import Recorded
from fedpriv.recorder.writer import Recording
from fedpriv.wire.sealing import CODES
from tests.recorder.loop import recorded, small_net

FACTS: dict[str, Any] = {"classes": 3, "input_shape": (1, 6, 6)}


def in_child(work: Callable[[], None]) -> int:
    """Do it in a child process; its number."""
    if child := os.fork():
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)


def begun(folder: Path) -> Recording:
    return fedpriv.recording(folder, **FACTS)


@pytest.mark.parametrize("after", [0.01, 0.05, 0.1])
def test_a_record_that_a_kill_cut_is_whole_up_to_its_last_line_and_goes_on(tmp_path: Path, after: float) -> None:
    def write() -> None:
        record = begun(tmp_path)
        for round in range(1, 10**6):
            record.answered(round, "a", {"w": torch.full((2000,), float(round))})

    begun(tmp_path)
    child = in_child(write)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = len(Recorded(tmp_path).lines)
    begun(tmp_path).answered(10**6, "a", {"w": torch.zeros(2000)})
    read = Recorded(tmp_path)
    assert len(read.lines) == last + 1 and read.ended is None
    for round in [*range(1, last + 1)][-3:]:
        tensors = read.tensors(round, "a", "up")
        assert tensors is not None and bool((tensors["w"] == round).all())


def test_a_line_that_was_cut_is_ended_by_the_next_writer_and_said(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "record", rounds=1).folder
    lines = folder / layout.LINES
    lines.write_bytes(lines.read_bytes()[:-20])
    assert (len(Recorded(folder).lines), Recorded(folder).cut) == (3, 1)
    facts = Recorded(folder).facts
    Recording(folder, facts).answered(9, "north", small_net().state_dict())
    record = Recorded(folder)
    assert list(record.lines)[-1] == (9, "north", "up") and len(record.lines) == 4 and check(record).cut == 1
    run, _ = audit_recorded(folder, None, AuditOptions(1, 0, 0, 1, budget=1e-6), lambda text: None)
    assert any("cut off are left out: 1" in condition for condition in run.conditions)


@pytest.mark.parametrize("limit", [2_000, 20_000])
def test_training_goes_on_where_files_cannot_grow(tmp_path: Path, limit: int) -> None:
    """Below 2,000 bytes the list of messages is cut within a line, at 20,000 a message does not fit."""
    record = begun(tmp_path)

    def train() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for round in range(1, 9):
            size = 2 if round < 8 or limit < 10_000 else 10_000
            record.answered(round, "a", {"w": torch.full((size,), float(round))})

    assert os.waitpid(in_child(train), 0)[1] == 0  # no error reached training
    read = Recorded(tmp_path)
    rounds = [round for round, _, _ in read.lines]
    assert rounds == [*range(1, len(rounds) + 1)] and 4 <= len(rounds) < 8
    for round in rounds:
        assert read.tensors(round, "a", "up") is not None
    if limit > 10_000:
        assert read.ended is not None and "File too large" in read.ended
    else:
        assert read.cut == 1


def test_a_record_is_read_a_message_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of messages, only a few are in memory at once; their tensors are counted."""
    folder = recorded(tmp_path / "record", rounds=8).folder
    load, alive = reader._load, list[weakref.ref[torch.Tensor]]()
    most = 0

    def counted(path: Path, digest: str | None = None) -> dict[str, torch.Tensor]:
        nonlocal most
        tensors = load(path, digest)
        alive.extend(weakref.ref(tensor) for tensor in tensors.values())
        most = max(most, sum(reference() is not None for reference in alive))
        return tensors

    monkeypatch.setattr(reader, "_load", counted)
    check(Recorded(folder))
    record = AuditedFolder(folder)
    record.verify()
    for message in record.messages():
        record.message(*message)
    assert len(alive) > 4 * 2 * 16 * 2  # four tensors of two messages of 16 answers, twice
    assert most <= 60


def test_a_message_is_copied_once_and_stored_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What recording costs: no clone of a tensor, one buffer of the message, and its bytes on the disk."""
    clones, tensors = [], {"w": torch.zeros(1000), "v": torch.ones(24)}
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda tensor, *a, **k: (clones.append(tensor), clone(tensor, *a, **k))[1])
    record = begun(tmp_path)
    for round in range(1, 4):
        record.sent(round, "a", tensors)
        record.answered(round, "a", {name: tensor + round for name, tensor in tensors.items()})
    assert not clones
    sizes = [file.stat().st_size for file in (tmp_path / layout.MESSAGES).iterdir()]
    assert len(sizes) == 4 and all(4096 < size < 4096 + 256 for size in sizes)  # one download, three answers
    lines = (tmp_path / layout.LINES).read_text().splitlines()
    assert len(lines) == 6 and all(len(line) < 450 for line in lines)
    assert all(json.loads(line)["file"].endswith(".safetensors") for line in lines)


def test_an_unchanged_download_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, sha256 = [], hashlib.sha256
    monkeypatch.setattr(writer.hashlib, "sha256", lambda data: (hashed.append(len(data)), sha256(data))[1])
    record, weights = begun(tmp_path), {"w": torch.zeros(1000)}
    for client in range(5):
        record.sent(1, client, weights)
    weights["w"] += 1
    record.sent(1, 5, weights)
    assert len(hashed) == 2
    read = Recorded(tmp_path)
    assert float(read.tensors(1, "4", "down")["w"][0]) == 0.0  # type: ignore[index]
    assert float(read.tensors(1, "5", "down")["w"][0]) == 1.0  # type: ignore[index]


@pytest.mark.parametrize("dtype", CODES.values())
def test_files_are_those_of_safetensors(dtype: torch.dtype) -> None:
    numbers = torch.arange(12).to(dtype)
    tensors = {"a": numbers.view(3, 4), "b": torch.ones((), dtype=torch.int64), "c": numbers.view(3, 4).T, "d": numbers[:0]}
    read = safetensors.torch.load(writer._packed(tensors))
    assert read.keys() == tensors.keys()
    assert all(read[name].dtype == tensor.dtype and torch.equal(read[name], tensor) for name, tensor in tensors.items())
