"""Clients refuse what a malicious server sends, and it reads why; the run's config cannot switch their check off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.deploy.far_clients import FarClients
from fedpriv.deploy.loopback import Loopback
from fedpriv.server.clients import Instruction
from fedpriv.wire import Payload, seal
from fedpriv.wire.report import Answer
from tests.deploy.apart import play_apart, sites
from tests.simulation.small import config

SETTINGS: dict[str, Any] = {
    "data.clients": 2, "data.limit": 100, "model.name": "mlp_lineage", "train.rounds": 2, "train.participation": 1.0,
    "wire.check_downloads": False,
}  # fmt: skip


@pytest.fixture
def malicious_in_round_2(monkeypatch: pytest.MonkeyPatch) -> None:
    train = FarClients.train

    def altered(far: FarClients, instruction: Instruction) -> Iterator[Answer]:
        if instruction.round == 2:
            assert instruction.message is not None
            sent = dict(instruction.message.tensors())
            sent["encoder.fc1.weight"] = torch.rand(64).expand(512, -1).contiguous()
            instruction = replace(instruction, message=seal(Payload(sent, 2)))
        return train(far, instruction)

    monkeypatch.setattr(FarClients, "train", altered)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("malicious_in_round_2")
def test_they_refuse_and_the_server_reads_why(tmp_path: Path) -> None:
    last = lines(play_apart(tmp_path / "run", "fedavg", **SETTINGS))[-1]
    assert last["metrics"]["missing"] == 2
    for refusal in last["missing"]:
        assert "round 2 is refused as an attack" in refusal["reason"] and "encoder.fc1.weight: its rows" in refusal["reason"]


@pytest.mark.usefixtures("malicious_in_round_2")
def test_a_client_can_switch_its_own_check_off(tmp_path: Path) -> None:
    of = sites(tmp_path / "clients", config("fedavg", **SETTINGS))
    of[1].check_downloads = False
    last = lines(play_apart(tmp_path / "run", "fedavg", grid=Loopback(of), **SETTINGS))[-1]
    assert [one["client"] for one in last["missing"]] == [0]
