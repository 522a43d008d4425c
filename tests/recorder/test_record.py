"""Records are written and read back; what is wrong with one is said in a line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import fedpriv
from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.recorder import layout
from fedpriv.recorder.check import check
from fedpriv.recorder.reader import Recorded, is_record
from fedpriv.recorder.writer import Recording
from tests.notes import noted
from tests.recorder.loop import federation, recorded, samples


def test_a_record_is_read_back_as_it_was_sent(tmp_path: Path) -> None:
    record = recorded(tmp_path / "record")
    clients = {"north": samples(6, 1), "south/2": samples(6, 2)}
    for round, client, sent, answer in federation(clients, 2):
        for direction, tensors in (("down", sent), ("up", answer)):
            read = record.tensors(round, client, direction)  # type: ignore[arg-type]
            assert read is not None and read.keys() == tensors.keys()
            assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    truth = record.truth("south/2")
    assert truth is not None and torch.equal(truth["images"], clients["south/2"][0])
    assert record.answered() == [(1, "north"), (1, "south/2"), (2, "north"), (2, "south/2")] and record.ended is None


def test_one_download_for_all_clients_is_stored_once(tmp_path: Path) -> None:
    record = recorded(tmp_path / "record", rounds=1)
    assert len(record.lines) == 4 and len(list((record.folder / layout.MESSAGES).iterdir())) == 3


def test_another_program_can_write_a_record(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "record.json").write_text('{"name": "r", "classes": 3, "input_shape": [1, 6, 6], "format": 1}')
    data = safetensors.torch.save({"0": torch.zeros(2)})
    (tmp_path / "messages" / "a.safetensors").write_bytes(data)
    import hashlib

    line = {"round": 1, "client": "x", "direction": "up", "kind": "change", "file": "messages/a.safetensors"}
    (tmp_path / "messages.jsonl").write_text(json.dumps(line | {"sha256": hashlib.sha256(data).hexdigest()}) + "\n")
    record = Recorded(tmp_path)
    assert is_record(tmp_path) and record.clients == ("x",) and record.facts.training.lr is None
    assert record.tensors(1, "x", "up") is not None and record.tensors(1, "x", "down") is None


def test_lists_and_arrays_are_named_by_their_positions(tmp_path: Path) -> None:
    record = fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6))
    record.answered(1, 0, [np.ones(3, np.float32), torch.zeros(2)])
    read = Recorded(tmp_path).tensors(1, "0", "up")
    assert read is not None and {name: tuple(tensor.shape) for name, tensor in read.items()} == {"0": (3,), "1": (2,)}


def test_a_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    record = recorded(tmp_path / "record", rounds=1)
    lines = record.folder / layout.LINES
    lines.write_bytes(lines.read_bytes()[:-20])
    assert len(Recorded(record.folder).lines) == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"round": 0}, "line 1: round 0: from 1"),
        ({"file": "../x.safetensors"}, "line 1"),
        ({"kind": "weight"}, "line 1: kind"),
        ({"strange": 1}, "line 1: strange"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, change: dict[str, object], why: str) -> None:
    lines = recorded(tmp_path / "record", rounds=1).folder / layout.LINES
    first, *rest = lines.read_text().splitlines()
    lines.write_text("\n".join([json.dumps(json.loads(first) | change), *rest]) + "\n")
    with pytest.raises(Damaged, match=why):
        _ = Recorded(tmp_path / "record").lines


def test_a_changed_message_is_damaged(tmp_path: Path) -> None:
    record = recorded(tmp_path / "record", rounds=1)
    file = record.folder / record.lines[1, "north", "up"].file
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(Damaged, match="checksum"):
        record.tensors(1, "north", "up")


def test_a_client_that_answers_twice_is_refused_and_a_repeated_line_counts_once(tmp_path: Path) -> None:
    writer = fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6))
    for _ in range(2):
        writer.answered(1, "a", {"w": torch.zeros(2)})
    assert len(Recorded(tmp_path).lines) == 1
    writer.answered(1, "a", {"w": torch.ones(2)})
    with pytest.raises(UsageError, match="client a answered twice in round 1"):
        _ = Recorded(tmp_path).lines


def test_another_run_is_not_mixed_into_a_record(tmp_path: Path) -> None:
    recorded(tmp_path / "record", rounds=1)
    with pytest.raises(UsageError, match="another run"):
        fedpriv.recording(tmp_path / "record", classes=4, input_shape=(1, 6, 6))


def test_a_full_disk_ends_the_record_and_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6))
    writer.answered(1, "a", {"w": torch.zeros(2)})

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recording, "_write", staticmethod(full))
    with noted("No space left on device"):
        writer.answered(2, "a", {"w": torch.zeros(2)})
    monkeypatch.undo()
    writer.answered(3, "a", {"w": torch.zeros(2)})
    record = Recorded(tmp_path)
    assert list(record.lines) == [(1, "a", "up")] and "No space left" in str(record.ended)


@pytest.mark.parametrize(
    ("images", "labels", "why"),
    [
        (torch.rand(2, 1, 6, 6) * 3, torch.tensor([0, 1]), r"\[0, 1\]"),
        (torch.rand(2, 1, 5, 5), torch.tensor([0, 1]), "1, 6, 6"),
        (torch.rand(2, 1, 6, 6), torch.tensor([0, 3]), "0 to 2"),
        (torch.rand(2, 1, 6, 6), torch.tensor([0.0, 1.0]), "class numbers"),
    ],
)
def test_samples_that_cannot_be_right_are_refused(tmp_path: Path, images: torch.Tensor, labels: torch.Tensor, why: str) -> None:
    writer = fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6))
    with pytest.raises(UsageError, match=why):
        writer.truth("a", images, labels)


@pytest.mark.parametrize(
    "facts",
    [
        {"training": {"lr": -1.0}},
        {"training": {"local_epochs": 1, "local_steps": 2}},
        {"training": {"learning_rate": 0.1}},
        {"net": "no net"},
        {"classes": "three"},
    ],
)
def test_facts_that_cannot_be_right_are_refused(tmp_path: Path, facts: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="recording: "):
        fedpriv.recording(tmp_path, **{"classes": 3, "input_shape": (1, 6, 6), **facts})  # type: ignore[arg-type]


def test_check_says_what_to_record_for_more(tmp_path: Path) -> None:
    whole = check(recorded(tmp_path / "record"))
    assert (whole.rounds, whole.clients, whole.messages, whole.attackable) == (2, 2, 4, 4)
    assert not any(ability.missing for ability in whole.abilities)
    bare = fedpriv.recording(tmp_path / "bare", classes=3, input_shape=(1, 6, 6))
    bare.answered(1, "a", {"w": torch.zeros(2)})
    contents = check(Recorded(tmp_path / "bare"))
    assert contents.attackable == 0 and all(ability.missing for ability in contents.abilities)


def test_processes_write_the_same_record_at_once(tmp_path: Path) -> None:
    children = []
    for number in range(4):
        if not (child := os.fork()):
            writer = fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6))
            for round in range(1, 6):
                writer.answered(round, number, {"w": torch.full((2,), float(number))})
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(Recorded(tmp_path).lines) == 20
