"""Clients refuse the requests of a malicious server, and say why; the run's config cannot switch the check off."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.request_validation import config_of
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.frames import Envelope, Frame
from fedpriv.deploy.remote_clients import RemoteClients
from fedpriv.deploy.versions import code_version
from fedpriv.files import load_json, save_json
from fedpriv.server.clients import Instruction
from fedpriv.wire import Payload, seal, unseal
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer
from tests.data.image_files import pixels, write_folder
from tests.deploy.apart import client_nodes, play_apart
from tests.deploy.loopback import Loopback
from tests.simulation.small import config

SETTINGS: dict[str, Any] = {
    "data.clients": 2, "data.limit": 100, "model.name": "mlp_lineage", "train.rounds": 2, "train.participation": 1.0,
    "wire.check_downloads": False,
}  # fmt: skip


@pytest.fixture
def malicious_in_round_2(monkeypatch: pytest.MonkeyPatch) -> None:
    train = RemoteClients.train

    def altered(far: RemoteClients, instruction: Instruction) -> Iterator[Answer]:
        if instruction.round == 2:
            assert instruction.message is not None
            sent = dict(instruction.message.tensors())
            sent["encoder.fc1.weight"] = torch.rand(64).expand(512, -1).contiguous()
            instruction = replace(instruction, message=seal(Payload(sent, 2)))
        return train(far, instruction)

    monkeypatch.setattr(RemoteClients, "train", altered)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("malicious_in_round_2")
def test_clients_refuse_an_attack_and_say_why(tmp_path: Path) -> None:
    last = lines(play_apart(tmp_path / "run", "fedavg", **SETTINGS))[-1]
    assert last["metrics"]["missing"] == 2
    for refusal in last["missing"]:
        assert "round 2 is refused as an attack" in refusal["reason"] and "encoder.fc1.weight: its rows" in refusal["reason"]


@pytest.mark.usefixtures("malicious_in_round_2")
def test_a_client_can_switch_its_own_check_off(tmp_path: Path) -> None:
    of = client_nodes(tmp_path / "clients", config("fedavg", **SETTINGS))
    of[1].setups.check_downloads = False
    last = lines(play_apart(tmp_path / "run", "fedavg", grid=Loopback(of), **SETTINGS))[-1]
    assert [client["client"] for client in last["missing"]] == [0]


# --- sample-level DP: two local updates that differ must not have the same noise ------------------------------------------------


PRIVATE = {**SETTINGS, "privacy.level": "sample", "privacy.noise": 4.0, "model.projection": 8, "executor.name": "sequential"}


class Watching(Loopback):
    """A loopback that keeps the last training request to client 0."""

    asked: Frame

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        if frames[0].entries[-1]["do"] == "train":
            self.asked = Frame(
                {**frames[0].head, "entries": [frames[0].entries[-1]]}, (frames[0].parts[frames[0].entries[-1]["message"]],)
            )
        yield from super().exchange(frames, seconds, round)

    def train(self, **changed: Any) -> Frame:
        """The answer of client 0 to that request, with changed entries."""
        return self.nodes[0].answer(
            replace(self.asked, head={**self.asked.head, "entries": [{**self.asked.entries[0], "message": 0, **changed}]})
        )


def played(tmp_path: Path, method: str, **settings: Any) -> Watching:
    grid = Watching(client_nodes(tmp_path / "clients", config(method, **settings)))
    play_apart(tmp_path / "run", method, grid=grid, **settings)
    return grid


def test_a_second_update_from_another_state_is_refused(tmp_path: Path) -> None:
    grid = played(tmp_path, "fedper", **PRIVATE)
    assert grid.train(last=1).parts == grid.train(last=1, again=True).parts, "a repeated local update gives the same bytes"
    assert "from another state" in str(grid.train(last=None).error)


@pytest.mark.slow
def test_the_noise_of_a_defence_is_not_averaged_by_asking_often(tmp_path: Path) -> None:
    noisy = {**SETTINGS, "wire.transforms": [{"name": "gaussian", "variance": 1e-2}]}
    grid = played(tmp_path, "fedavg", **noisy)
    message = unseal(grid.asked.parts[0])
    other = {name: tensor + 1e-6 for name, tensor in message.tensors().items()}
    grid.asked = replace(grid.asked, parts=(seal(Payload(other, message.round)).data,))
    assert "with another message" in str(grid.train().error)


def test_another_initial_model_is_refused(tmp_path: Path) -> None:
    grid = played(tmp_path, "fedper", **PRIVATE)
    (kept,) = (tmp_path / "clients" / "client-0" / "runs" / "run").glob("broadcast-*")
    tensors = unseal(kept.read_bytes()).tensors()

    def greeted(node: ClientNode, change: float) -> Any:
        envelope = Envelope()
        envelope.add({"do": "welcome"}, message=seal(Payload({name: tensor + change for name, tensor in tensors.items()}, 0)))
        return node.answer(envelope.frame(run="run")).error

    started_again = client_nodes(tmp_path / "clients", config("fedper", **PRIVATE))[0]
    for node in (grid.nodes[0], started_again):
        assert "this is another" in str(greeted(node, 0.1)) and greeted(node, 0.0) is None


def test_a_round_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    grid = played(tmp_path, "fedper", **PRIVATE)
    message = unseal(grid.asked.parts[0]).tensors()
    for round in (0, 3):
        grid.asked = replace(grid.asked, parts=(seal(Payload(message, round)).data,))
        assert f"a local update in round {round} of a run of 2" in str(grid.train(round=round, last=None).error)


def test_noise_differs_with_the_state_that_an_update_starts_from(tmp_path: Path) -> None:
    """So that even a client that has forgotten what it was asked has no local update twice with the same noise."""
    loud = {"name": "gaussian", "variance": 1e6}  # beside which the local updates do not differ
    grid = played(tmp_path, "fedper", **{**SETTINGS, "wire.transforms": [loud]})
    first = unseal(grid.train(last=1).parts[0]).tensors()
    assert "from another state" in str(grid.train(last=None).error)
    (tmp_path / "clients" / "client-0" / "runs" / "run" / "trained.json").unlink()
    other = unseal(grid.train(last=None).parts[0]).tensors()
    assert all(float((first[name] - other[name]).abs().max()) > 100 for name in first)


LOUD = {
    "train.rounds": 1,
    "wire.transforms": [{"name": "gaussian", "variance": 1e6}],
}  # beside which the local updates do not differ


def uploaded(answer: Frame) -> torch.Tensor:
    """The numbers of an answer's upload, in a row."""
    assert answer.error is None, answer.error
    tensors = unseal(answer.parts[answer.entries[-1]["upload"]]).tensors()
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_a_repeated_update_on_other_samples_is_refused(tmp_path: Path) -> None:
    def write(seed: int) -> None:
        for number in range(2):
            write_folder(tmp_path / f"photos-{number}", list(pixels(20, 8, 8, seed=seed)), [0, 1] * 10)

    def clients() -> dict[int, ClientNode]:
        photos = {number: Source(str(tmp_path / f"photos-{number}")) for number in range(2)}
        return {number: ClientNode(number, source, tmp_path / f"client-{number}") for number, source in photos.items()}

    write(seed=0)
    own = {"data.limit": None, "data.name": str(tmp_path / "photos-0"), "data.pixels": "unit", "data.partition.name": "iid"}
    grid = Watching(clients())
    play_apart(tmp_path / "run", "fedavg", grid=grid, **{**SETTINGS, **LOUD, **own})
    first = grid.train()
    grid.nodes = clients()
    assert grid.train().parts == first.parts, "a client that was started again gives the same bytes"
    write(seed=1)
    grid.nodes = clients()
    assert "on other data" in str(grid.train().error)
    (tmp_path / "client-0" / "runs" / "run" / "trained.json").unlink()
    assert float((uploaded(grid.train()) - uploaded(first)).std()) > 1000


def test_a_run_of_the_same_name_with_another_setup_has_other_noise(tmp_path: Path) -> None:
    """Where a client has lost what it keeps of the run, but not its secret."""
    first = uploaded(played(tmp_path, "fedavg", **{**SETTINGS, **LOUD}).train())
    for folder in (tmp_path / "run", *(tmp_path / "clients").glob("client-*/runs")):
        shutil.rmtree(folder)
    louder = {"wire.transforms": [{"name": "gaussian", "variance": 4e6}]}
    other = uploaded(played(tmp_path, "fedavg", **{**SETTINGS, **LOUD, **louder}).train())
    assert float((other - 2 * first).std()) > 1000


def test_a_repeated_update_from_a_changed_state_is_refused(tmp_path: Path) -> None:
    """As where a repeated round has computed it again, and rounded it otherwise."""
    grid = played(tmp_path, "fedper", **PRIVATE)
    opened = grid.nodes[0]._run("run")
    assert grid.train(last=1, again=1).error is None
    kept = opened.client.private(1, opened.initial)
    opened.store.keep(0, 1, {name: tensor * (1 + 1e-6) for name, tensor in kept.items()})
    assert "from another state" in str(grid.train(last=1, again=2).error)


def test_an_interrupted_repeated_update_keeps_the_ledger(tmp_path: Path) -> None:
    node = played(tmp_path, "fedrep", **PRIVATE).nodes[0]
    client = node._run("run").client
    assert client.store is not None
    before = client.store.spent(0)
    assert len(before[2]) == 2, "head, then encoder"
    client._spend(2, [], before[2][0])  # and no more
    assert client.store.spent(0) == before


@pytest.mark.parametrize("lost", ["whole", "a round"])
def test_a_client_that_has_lost_its_ledger_does_not_train(tmp_path: Path, lost: str) -> None:
    grid = played(tmp_path, "fedper", **PRIVATE)
    file = tmp_path / "clients" / "client-0" / "runs" / "run" / "states" / "spent-000000.json"
    whole = load_json(file)
    if lost == "whole":
        file.unlink()
    else:  # as from a copy that is older
        save_json(file, {"2": whole["2"]})
    grid.nodes = client_nodes(tmp_path / "clients", config("fedper", **PRIVATE))
    error = str(grid.train(last=1).error)
    assert error.startswith("a file does not have what client 0 spent on privacy in round 1, so it does not train in run run")
    save_json(file, whole)
    assert grid.train(last=1).error is None


def test_a_kill_before_the_ledger_entry_loses_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_of: object) -> None:
        raise KeyboardInterrupt

    grid = played(tmp_path, "fedper", **{**PRIVATE, "train.rounds": 1})
    opened = grid.nodes[0]._run("run")
    for file in ("trained.json", "states/spent-000000.json"):
        (opened.store.folder.parent / file).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(opened.client, "_spend", killed)
        with pytest.raises(KeyboardInterrupt):
            grid.train(last=None)
    assert opened.store.spent(0) == {1: []}
    assert grid.train(last=None, again=True).error is None and opened.store.spent(0)[1]


# --- tests: accuracies on models of a server's choice tell of single samples ---------------------------------------------


def scored(node: ClientNode, tensors: Mapping[str, torch.Tensor], round: int, last: int | None) -> Frame:
    """What a client answers to a test."""
    asked = {"do": "test", "message": 0, "round": round, "last": last}
    return node.answer(Frame({"run": "run", "entries": [asked]}, (seal(Payload(tensors, round)).data,)))


def test_a_test_in_a_round_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    grid = played(tmp_path, "fedper", **PRIVATE)
    sent = unseal(grid.asked.parts[0]).tensors()
    assert scored(grid.nodes[0], sent, 2, 2).error is None
    assert "a test in round 3 of a run of 2" in str(scored(grid.nodes[0], sent, 3, 2).error)


NOT_TESTED_IN_ROUND_1 = {**SETTINGS, "eval.every": 2, "eval.last": 1}


def test_a_client_is_tested_once_a_round(tmp_path: Path) -> None:
    grid = played(tmp_path, "fedper", **NOT_TESTED_IN_ROUND_1)
    sent = unseal(grid.asked.parts[0]).tensors()
    first = scored(grid.nodes[0], sent, 1, 1)
    assert "report" in first.entries[0]
    again = client_nodes(tmp_path / "clients", config("fedper", **NOT_TESTED_IN_ROUND_1))[0]
    assert scored(again, sent, 1, 1).parts == first.parts, "a server that was killed in a round repeats it"
    other = {name: tensor + 1e-6 for name, tensor in sent.items()}
    for tensors, last in ((other, 1), (sent, None)):
        refused = scored(again, tensors, 1, last)
        assert refused.error is None and not refused.parts, "the run goes on"
        assert "client 0 was tested in round 1 with another message, from another state" in refused.entries[0]["untested"]


def test_a_client_that_trained_again_is_not_tested_again(tmp_path: Path) -> None:
    """Its head stays with it, and is another one after each local update that a server asks for."""
    grid = played(tmp_path, "fedper", **NOT_TESTED_IN_ROUND_1)
    sent = unseal(grid.asked.parts[0]).tensors()
    assert "report" in scored(grid.nodes[0], sent, 1, 1).entries[0]
    other = seal(Payload({name: tensor * 0.9 for name, tensor in sent.items()}, 1)).data
    grid.asked = replace(grid.asked, parts=(other,))
    assert grid.train(round=1, last=None).error is None
    assert "untested" in scored(grid.nodes[0], sent, 1, 1).entries[0]


# --- what costs a client memory, or its process -------------------------------------------------------------------------


def test_other_clients_cost_a_client_no_memory(tmp_path: Path) -> None:
    def described(clients: int) -> Any:
        envelope = Envelope()
        asked = config("fedavg", **{**SETTINGS, "data.clients": clients}).model_dump(mode="json")
        envelope.add({"do": "describe", "code": code_version(), "config": asked})
        return node.answer(envelope.frame(run="handshake")).error

    node = ClientNode(3, Source("digits"), tmp_path / "client")
    assert described(1000) is None and node.data.loaded is not None
    data = node.data.loaded.data
    for which in ("train", "validation", "test"):
        nobodys = {id(data.indices(which, client)) for client in range(1000) if client != 3}
        assert len(nobodys) == 1, "one array for all of them"
    assert data.size(3) == 100 and data.size(4) == 0
    assert "1000001 clients" in str(described(1_000_001))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"train.rounds": 10**9}, "1000000000 rounds (train.rounds); at most 100000"),
        ({"train.rounds": 10**5, "data.clients": 101}, "10100000 rounds times clients; at most 10000000"),
        ({"train.local_epochs": 1001}, "1001 epochs (train.local_epochs); at most 1000"),
        ({"train.local_steps": 10**6}, "1000000 steps (train.local_steps); at most 100000"),
        ({"method.head_epochs": 10**6}, "1000000 epochs (method.head_epochs); at most 1000"),
        ({"train.rounds": 10**5, "data.clients": 100, "train.local_epochs": 1000}, ""),
    ],
)
def test_configs_that_cost_a_client_too_much_are_refused(asked: dict[str, Any], reason: str) -> None:
    entry = {"config": config("fedrep", **asked).model_dump(mode="json")}
    if not reason:
        assert config_of(entry).train.rounds == asked["train.rounds"]
        return
    with pytest.raises(Refused, match=re.escape(reason)):
        config_of(entry)


def test_a_frame_with_many_requests_is_refused(tmp_path: Path) -> None:
    node = ClientNode(0, Source("digits"), tmp_path / "client")
    asked = [{"do": "describe", "code": code_version(), "config": config("fedavg", **SETTINGS).model_dump(mode="json")}]
    assert node.answer(Frame({"run": "handshake", "entries": asked * 2})).error is None
    error = node.answer(Frame({"run": "handshake", "entries": asked * 2000})).error
    assert error == "a frame of 2000 requests; at most 64 are possible"


def test_more_clients_than_a_run_has_are_refused(tmp_path: Path) -> None:
    """A client would draw from them all in every round."""
    grid = played(tmp_path, "fedavg", **SETTINGS)
    terms = load_json(tmp_path / "clients" / "client-0" / "runs" / "run" / "setup.json")
    envelope = Envelope()
    declared = {**terms["declared"], "trainable": list(range(3))}
    envelope.add({"do": "agree", "config": terms["config"], "declared": declared, "code": terms["code"], "samples": {}})
    assert grid.nodes[0].answer(envelope.frame(run="other")).error == "the server declares 3 clients of a run of 2"
