"""A record of any size is read one file at a time: what is read and held is counted."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.audit.foreign import record as foreign
from fedpriv.audit.foreign.membership import in_recorded_rounds
from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.foreign.simulation import SimulatedRecord
from fedpriv.audit.progress import Progress
from fedpriv.recorder import layout, reader
from fedpriv.recorder.check import check
from fedpriv.recorder.reader import Recorded
from tests.recorder.loop import samples, trained

CLIENTS, ROUNDS = 6, 4
SIZE = 4 * (36 * 512 + 512 + 512 * 3 + 3)
"""Bytes of a message."""


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 512), nn.ReLU(), nn.Linear(512, 3))


class Counting:
    """How often each file is read, and how many bytes of messages are held at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self.held, self.most = Counter[str](), 0, 0
        real = reader._load

        def load(path: Path, digest: str | None = None) -> dict[str, Tensor]:
            tensors = real(path, digest)
            self.reads[path.name] += 1
            for tensor in tensors.values() if path.parent.name == layout.MESSAGES else ():
                self.held += tensor.nbytes
                weakref.finalize(tensor.untyped_storage(), self._freed, tensor.nbytes)
            self.most = max(self.most, self.held)
            return tensors

        monkeypatch.setattr(reader, "_load", load)

    def _freed(self, nbytes: int) -> None:
        self.held -= nbytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of six clients in four rounds."""
    folder, facts = tmp_path_factory.mktemp("records") / "record", {"classes": 3, "input_shape": (1, 6, 6)}
    torch.manual_seed(0)
    weights = {name: tensor.clone() for name, tensor in net().state_dict().items()}
    training = {"lr": 0.5, "local_epochs": 1, "batch_size": 4}
    with fedpriv.recording(folder, net=f"{__name__}:net", training=training, **facts) as record:  # type: ignore[arg-type]
        record.public(*samples(36, 99))
        for round in range(1, ROUNDS + 1):
            answers = []
            for client in range(CLIENTS):
                model = net()
                model.load_state_dict(weights)
                record.truth(client, *samples(6, client))
                record.sent(round, client, weights)
                answers.append(trained(model, samples(6, client)))
                record.answered(round, client, answers[-1], num_examples=6)
            weights = {name: torch.stack([answer[name] for answer in answers]).mean(0) for name in weights}
    return folder


def files(folder: Path) -> Counter[str]:
    return Counter(path.name for path in (folder / layout.MESSAGES).iterdir())


def of_messages(counted: Counter[str], folder: Path) -> Counter[str]:
    return Counter({name: number for name, number in counted.items() if name in files(folder)})


def test_a_check_reads_each_file_once_and_holds_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counting(monkeypatch)
    assert check(Recorded(folder)).messages == CLIENTS * ROUNDS and len(files(folder)) == (CLIENTS + 1) * ROUNDS
    assert of_messages(counted.reads, folder) == files(folder) and counted.most <= 2 * SIZE


def test_an_audit_verifies_each_file_once_and_holds_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counting(monkeypatch)
    FolderRecord(folder).verify()
    assert of_messages(counted.reads, folder) == files(folder) and counted.most <= 2 * SIZE


def test_messages_are_held_up_to_a_number_of_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_HELD", 3 * 4 * SIZE)
    counted, record = Counting(monkeypatch), FolderRecord(folder)
    for message in record.messages():
        record.message(*message)
    assert record.held == 3 and counted.most <= (3 + 1) * 2 * SIZE


@pytest.mark.slow
def test_membership_holds_no_more_of_many_clients_and_rounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 2
    monkeypatch.setattr(foreign, "_HELD", bound * 4 * SIZE)
    counted, record = Counting(monkeypatch), SimulatedRecord(folder)
    members = in_recorded_rounds(record, [], 4, 0, Progress(lambda text: None, None))
    tried: Any = {outcome.attack: outcome.points for outcome in members.outcomes}
    assert tried["FedMIA"] is not None  # which compares all clients of all rounds
    # Held: the messages of the cache, of the rounds' own updates, and the one that is attacked.
    assert counted.most <= (bound + bound + 3) * 2 * SIZE < CLIENTS * ROUNDS * SIZE
