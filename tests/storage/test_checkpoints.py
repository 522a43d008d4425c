"""Checkpoints take bounded memory, keep no more files than two rounds need, and know when a file is not what was written."""

from __future__ import annotations

import gc
import json
import random
import weakref
from pathlib import Path

import pytest
import torch

from fedpriv.client.store import ClientStore
from fedpriv.errors import FedprivError
from fedpriv.files import Damaged, load_json, load_tensors, save_tensors
from fedpriv.storage.checkpoints import Checkpoints, Progress

KILOBYTE = 1024


def made(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "server", "print", ClientStore(folder / "clients"))


def store(checkpoints: Checkpoints) -> ClientStore:
    assert isinstance(checkpoints.states, ClientStore)
    return checkpoints.states


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*/*")}


def state(value: float, size: int = KILOBYTE) -> dict[str, torch.Tensor]:
    return {"head.weight": torch.full((size // 4,), value)}


def test_clients_states_in_memory_stay_within_the_bound(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, memory=5 * KILOBYTE)
    for client in range(40):
        store.keep(client, 1, state(client))
    alive: list[weakref.ref[torch.Tensor]] = []
    for client in [*range(40), *range(0, 40, 3)]:
        tensor = store.load(client, 1)["head.weight"]
        assert tensor.unique().tolist() == [client]
        alive.append(weakref.ref(tensor))
        del tensor
    gc.collect()
    assert 1 <= len({id(ref()) for ref in alive if ref() is not None}) <= 5


def test_a_state_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    with pytest.raises(FedprivError, match=r"client 3 cannot continue from its local update in round 7: .*client-000003-000007"):
        store.load(3, 7)
    assert "client-000003-000007" in (store.damaged({3: 7}) or "")


def test_two_checkpoints_and_what_they_need_are_on_disk_and_nothing_else(tmp_path: Path) -> None:
    checkpoints, progress, draw = made(tmp_path), Progress(), random.Random(0)
    updates: list[dict[int, int]] = []
    for round in range(30):
        if round % 7 == 6:  # as after a kill in the middle of a round
            store(checkpoints).keep(0, round, state(-1))
            checkpoints = made(tmp_path)
            progress, _, complaints = checkpoints.latest()
            assert complaints == []
        progress.round = round
        for client in draw.sample(range(5, 13), 3):
            store(checkpoints).keep(client, round, state(100 * client + round))
            progress.clients[client] = round
        checkpoints.commit(progress, state(round))
        updates.append(dict(progress.clients))
        kept = range(max(0, round - 1), round + 1)
        wanted = {f"server-{r:06d}.safetensors" for r in kept} | {f"round-{r:06d}.json" for r in kept}
        wanted |= {f"client-{client:06d}-{r:06d}.safetensors" for k in kept for client, r in updates[k].items()}
        assert names(tmp_path) == wanted
    for client, last in progress.clients.items():
        assert store(checkpoints).load(client, last)["head.weight"][0] == 100 * client + last


def test_a_checkpoint_of_many_clients_is_whole_when_it_is_read(tmp_path: Path) -> None:
    """The numbers of clients are written as text, and sort otherwise."""
    checkpoints, progress = made(tmp_path), Progress(round=1)
    for client in range(12):
        store(checkpoints).keep(client, 1, state(client))
        progress.clients[client] = 1
    checkpoints.commit(progress, state(1))
    restored, _, complaints = made(tmp_path).latest()
    assert complaints == []
    assert restored.clients == progress.clients


@pytest.mark.parametrize("clients", [10, 1000])
def test_what_a_checkpoint_says_of_each_client_is_eight_bytes(tmp_path: Path, clients: int) -> None:
    checkpoints = made(tmp_path)
    sizes = []
    for registered in (0, clients):
        checkpoints.commit(Progress(round=1, clients=dict.fromkeys(range(registered), 0)), state(1))
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*/*")))
    assert sizes[1] - sizes[0] == pytest.approx(8 * clients, abs=16)


def test_going_on_does_not_change_what_was_committed(tmp_path: Path) -> None:
    """The progress of a resumed run is its own: the next rounds must not be mistaken for the checkpoint it came from."""
    first = made(tmp_path)
    first.commit(Progress(round=1), state(1))
    second = made(tmp_path)
    progress, _, _ = second.latest()
    for round in (2, 3):
        progress.round = round
        second.commit(progress, state(round))
        newest, server, _ = made(tmp_path).latest()
        assert newest.round == round == server["head.weight"][0]


@pytest.mark.parametrize("suffix", ["server-000002.safetensors", "round-000002.json", "client-000000-000002.safetensors"])
def test_any_changed_byte_is_noticed(tmp_path: Path, suffix: str) -> None:
    """One bit of every third byte: either it makes no difference to what is read, or the checkpoint before is used."""
    checkpoints, progress = made(tmp_path), Progress(record={"round": 2, "metrics": {"accuracy": 0.5}})
    for round in (1, 2):
        progress.round, progress.clients[0] = round, round
        store(checkpoints).keep(0, round, state(round, 8))
        checkpoints.commit(progress, state(10 + round, 8))
    files = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    target = tmp_path / ("clients" if suffix.startswith("client") else "server") / suffix
    whole, noticed = files[target], 0
    for position in range(0, len(whole), 3):
        for path, content in files.items():  # those of the damaged round were swept away
            path.write_bytes(content)
        changed = bytes([whole[position] ^ (1 << position % 8)])
        target.write_bytes(whole[:position] + changed + whole[position + 1 :])
        restored, server, complaints = made(tmp_path).latest()
        if complaints:
            assert suffix in complaints[0]
            noticed += 1
        assert restored.round == (1 if complaints else 2)
        assert server["head.weight"].tolist() == [10 + restored.round] * 2
        assert restored.clients == {0: restored.round}
    assert noticed > 0.8 * len(whole) / 3


def test_tensors_come_back_as_they_were_and_a_torn_file_does_not(tmp_path: Path) -> None:
    tensors = {
        "a": torch.tensor([float("nan"), -0.0, float("inf")]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "strided": torch.arange(6.0).reshape(2, 3).T,
    }
    path = tmp_path / "some.safetensors"
    save_tensors(path, tensors)
    stored = load_tensors(path)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[n].nan_to_num(9), t.nan_to_num(9)) and stored[n].dtype == t.dtype for n, t in tensors.items())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=r"some\.safetensors"):
            load_tensors(path)


@pytest.mark.parametrize(("shape", "facts"), [([2**63, 0], {}), ([0, 2**63], {}), ([0, 2**40, 2**40], {}), ([0], None)], ids=str)
def test_a_header_that_no_file_has_is_damage(tmp_path: Path, shape: list[int], facts: dict[str, str] | None) -> None:
    """A tensor without numbers: no file is too short for its shape."""
    header = {"__metadata__": facts, "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    path, header = tmp_path / "some.safetensors", json.dumps(header).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Damaged, match=r"some\.safetensors is damaged") as caught:
        load_tensors(path)
    assert "\n" not in str(caught.value)


def test_nesting_of_any_depth_is_damage(tmp_path: Path) -> None:
    """Some depths can be read, and not be written again, as the checksum needs it."""
    path = tmp_path / "some.json"
    for depth in range(800, 1050):
        path.write_text('{"a": ' + "[" * depth + "]" * depth + ', "sha256": "x"}')
        with pytest.raises(Damaged, match=r"some\.json is damaged"):
            load_json(path)


def test_an_unfinished_round_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoints = made(tmp_path)
    checkpoints.commit(Progress(round=1), state(1))
    store(checkpoints).keep(5, 2, state(5))
    save_tensors(tmp_path / "server" / "server-000002.safetensors", state(2))
    (tmp_path / "server" / "round-000002.json.part").write_text(json.dumps({})[:1])
    (tmp_path / "clients" / "client-000007-000002.safetensors.part").write_bytes(b"")
    progress, server, complaints = made(tmp_path).latest()
    assert (progress.round, complaints, float(server["head.weight"][0])) == (1, [], 1.0)
    assert names(tmp_path) == {"round-000001.json", "server-000001.safetensors"}
