"""A client with a registered key that lies to a real server, over the network: each lie costs the liar its part in the round, and
nobody else anything."""

from __future__ import annotations

import json
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from click.testing import Result

from fedpriv.deploy.frames import Frame
from fedpriv.deploy.server_run import start
from fedpriv.errors import FedprivError
from fedpriv.files import load_tensors
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Payload, Sealed, seal, unseal
from tests.deploy.apart import hashes
from tests.deploy.deployed import REAL, SMALL, Deployment
from tests.deploy.peer import Peer, Present, Reply, with_peers
from tests.deploy.test_bounds import MIB, status_of
from tests.simulation.small import config, flags

pytestmark = REAL
LIAR = 1
PLAYED: dict[str, Any] = {**SMALL, "train.max_update_norm": 100.0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, list[Peer]]]:
    """A real server, and three clients of which one may lie."""
    with with_peers(tmp_path_factory.mktemp("lied") / "d", 3) as running:
        yield running


@pytest.fixture(autouse=True)
def honest(served: tuple[Deployment, list[Peer]]) -> None:
    for peer in served[1]:
        peer.lie = Peer.lie
        peer.errors.clear()


@dataclass
class Told:
    """What a liar has at hand for a lie.

    Attributes:
        message: of Flower's.
        answer: the honest one.
        before: the honest answer of the round before.
        others: the messages of Flower's that client 0 got, and its node id.
    """

    peer: Peer
    message: Any
    answer: Frame
    before: Frame
    other: Peer
    others: list[Any]

    def uploading(self, change: Callable[[dict[str, torch.Tensor], Sealed], Payload]) -> Frame:
        """The honest answer with another upload."""
        at, parts = self.answer.entries[-1]["upload"], list(self.answer.parts)
        sealed = unseal(parts[at])
        parts[at] = seal(change(sealed.tensors(), sealed)).data
        return replace(self.answer, parts=tuple(parts))

    def tensors(self, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Frame:
        """The honest answer with other tensors in its upload."""
        return self.uploading(lambda tensors, sealed: like(change(tensors), sealed))

    def part(self, name: str, of: Frame | None = None, change: Callable[[bytes], bytes] = lambda data: data) -> Frame:
        """The honest answer with the upload or the report of another one, or a changed one."""
        source, parts = of or self.answer, list(self.answer.parts)
        parts[self.answer.entries[-1][name]] = change(source.parts[source.entries[-1][name]])
        return replace(self.answer, parts=tuple(parts))


def like(tensors: dict[str, torch.Tensor], sealed: Sealed, **facts: Any) -> Payload:
    """A payload with the facts of a message."""
    known = {"round": sealed.round, "client": sealed.client, "kind": sealed.kind, "num_examples": sealed.num_examples}
    return Payload(tensors, **{**known, "transforms": sealed.transforms, **facts})


def first(tensors: dict[str, torch.Tensor]) -> str:
    return sorted(tensors)[0]


def filled(value: float) -> Callable[[Told], Frame]:
    """One number of the upload is this one."""

    def lie(told: Told) -> Frame:
        def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            tensors[first(tensors)].view(-1)[-1] = value
            return tensors

        return told.tensors(change)

    return lie


def reshaped(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Told], Frame]:
    """The largest tensor of the upload has another shape or dtype."""

    def lie(told: Told) -> Frame:
        def changed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            largest = max(sorted(tensors), key=lambda name: tensors[name].numel() * (tensors[name].dim() > 1))
            return {**tensors, largest: change(tensors[largest]).contiguous()}

        return told.tensors(changed)

    return lie


def claimed(told: Told) -> Frame:
    """The header claims 2^40 rows; the bytes are as before."""
    return told.part("upload", change=lambda data: re.sub(rb'"shape":\[\d+', b'"shape":[1099511627776', data, count=1))


def indexed(told: Told) -> Frame:
    """A sparse change with one number at entry 2^31 - 1."""

    def change(tensors: dict[str, torch.Tensor], sealed: Sealed) -> Payload:
        name = first(tensors)
        coded = {f"{name}~indices": torch.tensor([2**31 - 1], dtype=torch.int32), f"{name}~values": torch.ones(1)}
        return like({**{other: tensors[other] for other in tensors if other != name}, **coded}, sealed, kind="delta")

    return told.uploading(change)


def repeated(told: Told) -> None:
    """An array of 2 GiB: one chunk of 1 MiB, which is named 2,048 times."""
    from tests.deploy.test_flower_replies import array, chunk, with_array

    send_made(told, with_array(array(chunk(MIB), 2048)))


def crowded(told: Told) -> Frame:
    """A reply of 20,000 objects, none of which is ever sent; then the honest answer."""
    from flwr.proto.message_pb2 import ObjectTree

    honest = told.peer.reply(told.message, told.answer)
    more = [ObjectTree(object_id=f"{number:064x}") for number in range(20_000)]
    try_to_push(told, replace(honest, tree=ObjectTree(object_id=honest.tree.object_id, children=[*honest.tree.children, *more])))
    return told.answer


def try_to_push(told: Told, reply: Reply) -> None:
    """Send a reply that the SuperLink may refuse."""
    try:
        told.peer.push(reply)
    except httpx.HTTPStatusError as error:
        told.peer.errors.append(error)


def send_made(told: Told, made: Any) -> None:
    """Send objects of the liar's own making as a reply."""
    facts = told.peer.reply(told.message, told.answer).facts
    facts.metadata.message_id = made.tree.object_id
    told.peer.push(Reply(facts, made.tree, made.objects))


def in_another_name(told: Told) -> Frame:
    """Nonsense in client 0's name and to its message, each of which is refused; then the honest answer."""
    for facts in (
        {"src_node_id": told.other.id},
        {"reply_to_message_id": told.others[-1].metadata.message_id},
        {"src_node_id": told.other.id, "reply_to_message_id": told.others[-1].metadata.message_id},
    ):
        forged = told.peer.reply(told.message, Frame({"error": "forged"}))
        for name, value in facts.items():
            setattr(forged.facts.metadata, name, value)
        try_to_push(told, forged)
    return told.answer


def twice(told: Told) -> Frame:
    """The honest answer, and then another one to the same message."""
    told.peer.push(told.peer.reply(told.message, told.answer))
    return told.tensors(lambda tensors: {name: tensor + 1 for name, tensor in tensors.items()})


LIES: dict[str, tuple[Callable[[Told], Frame | None], str, str]] = {
    "a NaN": (filled(float("nan")), "refused", r"not finite"),
    "an infinity": (filled(float("inf")), "refused", r"not finite"),
    "a row too many": (reshaped(lambda tensor: torch.cat([tensor, tensor[:1]])), "refused", r"has shape \[.*\], not \["),
    "a transposed tensor": (reshaped(lambda tensor: tensor.flip(0).transpose(0, -1)), "refused", r"has shape \[.*\], not \["),
    "another dtype": (reshaped(torch.Tensor.double), "refused", r"is of torch.float64"),
    "the answer of the round before": (lambda told: told.before, "refused", r"its report is of client 1 in round 6"),
    "the upload of the round before": (lambda told: told.part("upload", told.before), "refused", r"it says round 7, not 8"),
    "another client's number": (
        lambda told: told.uploading(lambda tensors, sealed: like(tensors, sealed, client=0)), "refused", r"says client 0, not 1"
    ),
    "a sparse change beyond the end": (indexed, "refused", r"kind 'delta', not 'weights'"),
    "a header that claims 4 TiB": (claimed, "missing", r"its answer is invalid"),
    "an array of 2 GiB from 1 MiB": (repeated, "missing", r"arrays of \d+ bytes, of which \d+ were sent"),
    "an answer of 40 MiB": (
        lambda told: replace(told.answer, parts=(*told.answer.parts, *(random.randbytes(10 * MIB) for _ in range(4)))),
        "missing", r"a reply of more than 33554432 bytes",
    ),
    "20,000 objects": (crowded, "", ""),
    "a head nested 90 deep": (
        lambda told: Frame({"entries": json.loads("[" * 90 + "]" * 90)}), "missing", r"nested more than 64 deep"
    ),
    "a huge finite change": (lambda told: told.tensors(lambda t: {n: 1e4 * x for n, x in t.items()}), "refused", r"over 100"),
    "in another client's name": (in_another_name, "", ""),
    "a second answer": (twice, "", ""),
}  # fmt: skip


def processes(deployment: Deployment) -> dict[str, int]:
    """Process ids of the SuperLink and of the app of the run that is played."""
    (server,) = deployment.supervisors
    tasks = Path(f"/proc/{server.pids()['the SuperExec']}/task").glob("*/children")
    (app,) = [int(pid) for task in tasks for pid in task.read_text(encoding="utf-8").split()]
    return {"SuperLink": server.pids()["the SuperLink"], "app": app}


def test_each_lie_costs_the_liar_its_round_and_nobody_else_anything(
    tmp_path: Path, served: tuple[Deployment, list[Peer]]
) -> None:
    deployment, peers = served
    told, others, answers = list(LIES), list[Any](), list[Frame]()
    costs: dict[str, dict[str, int]] = {}

    def listens(peer: Peer, message: Any, asked: Frame, honest: Frame) -> Frame:
        others.append(message)
        if asked.entries[-1].get("do") == "train" and asked.entries[-1]["round"] > 1:
            time.sleep(1)  # so that the liar comes first
        return honest

    def lies(peer: Peer, message: Any, asked: Frame, honest: Frame) -> Frame | None:
        if asked.entries[-1]["do"] != "train":
            return honest
        answers.append(honest)
        at = asked.entries[-1]["round"] - 2
        pids = processes(deployment)
        if 0 < at <= len(told):
            costs[told[at - 1]] = {name: status_of(pid, "VmHWM") - before[name] for name, pid in pids.items()}
        for name, pid in pids.items():
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
            before[name] = status_of(pid, "VmRSS")
        if not 0 <= at < len(told):
            return honest
        time.sleep(0.5)  # until client 0 has its message
        return LIES[told[at]][0](Told(peer, message, honest, answers[-2], peers[0], others))

    before: dict[str, int] = {}
    peers[0].lie, peers[LIAR].lie = listens, lies
    rounds = len(LIES) + 2
    chosen = {**PLAYED, "train.rounds": rounds, "eval.every": rounds, "eval.last": 1}
    run = deployment.play("lies", "fedavg", **chosen)
    records = RunFolder.open(run).records()
    for name, record in zip(LIES, records[2:], strict=False):
        _, how, why = LIES[name]
        found = {kind: record.get(kind, []) for kind in ("refused", "missing")}
        assert [entry["client"] for entries in found.values() for entry in entries] == ([LIAR] if how else []), (name, found)
        if how:
            assert re.search(why, found[how][0]["reason"]), (name, found)
    assert costs.keys() == LIES.keys()
    for name, cost in costs.items():  # with `-s`: the figures of docs/explanation/reliability.md
        print(f"{name}: " + ", ".join(f"{process} {size / MIB:.1f} MiB" for process, size in cost.items()))
    for name, cost in costs.items():
        assert max(cost.values()) < (512 if name == "an answer of 40 MiB" else 64) * MIB, (name, cost)
    absent = {2 + at: {LIAR} for at, (_, how, _) in enumerate(LIES.values()) if how}
    again = config("fedavg", **{**chosen, "run_dir": str(tmp_path / "again")})
    start(again, tmp_path, Present(tmp_path, again, absent), 60, lambda *of: None, lambda record: None, lambda text: None)
    state = ("checkpoints/server-*.safetensors", "weights/*")
    assert hashes(run, *state) == hashes(tmp_path / "again", *state)
    assert records[-1]["per_client"] == RunFolder.open(tmp_path / "again").records()[-1]["per_client"]
    statuses = [error.response.status_code for error in peers[LIAR].errors if isinstance(error, httpx.HTTPStatusError)]
    assert statuses == [413, 403, 403] and len(peers[LIAR].errors) == 3
    assert not peers[0].errors and not peers[2].errors


@pytest.mark.parametrize(
    ("asked_for", "changed", "why"),
    [
        ("agree", {"config": "0" * 64}, "the config of client 1 is 000000000000, the server's is"),
        ("agree", {"initial": "0" * 64}, "the initial model of client 1 is 000000000000, the server's is"),
        (
            "describe",
            {"suggests": {"train.rounds": 1000}},
            "client 1 suggests train.rounds = 1000, which is the operator's to choose",
        ),
        ("describe", {"train": 2**31}, "client 1 declares 2147483648 samples"),
        ("describe", {"client": 0}, "client 0 answers in place of client 1"),
    ],
)
def test_a_run_does_not_begin_with_a_client_that_changes_its_setup(
    served: tuple[Deployment, list[Peer]], asked_for: str, changed: dict[str, Any], why: str
) -> None:
    def lie(peer: Peer, message: Any, asked: Frame, honest: Frame) -> Frame:
        if asked.entries[-1]["do"] != asked_for:
            return honest
        entries = [*honest.entries[:-1], {**honest.entries[-1], **changed}]
        return replace(honest, head={**honest.head, "entries": entries})

    deployment, peers = served
    peers[LIAR].lie = lie
    with pytest.raises(FedprivError, match=re.escape(why)):
        deployment.play(f"changed-{asked_for}-{next(iter(changed))}", "fedavg", **PLAYED)


def test_a_run_without_a_bound_says_that_any_finite_upload_is_merged(
    served: tuple[Deployment, list[Peer]], fedpriv: Callable[..., Result]
) -> None:
    def lie(peer: Peer, message: Any, asked: Frame, honest: Frame) -> Frame:
        if asked.entries[-1]["do"] != "train":
            return honest
        told = Told(peer, message, honest, honest, peer, [])
        return told.tensors(lambda tensors: {name: 1e4 * tensor for name, tensor in tensors.items()})

    deployment, peers = served
    peers[LIAR].lie = lie
    run_dir = deployment.paths.runs / "unbounded"
    ended = fedpriv("deploy", "run", deployment.paths.path, *flags("fedavg", **SMALL), "--run-dir", run_dir)
    said = " ".join(ended.stderr.split())
    assert "train.max_update_norm is not set: an upload of any finite size is merged" in said
    assert "round 1 is refused as an attack on the client's data (check_downloads)" in said, "the clients' own bound"
    merged = RunFolder.open(run_dir).records()[1]
    assert merged["metrics"]["participants"] == 3 and "refused" not in merged
    first, *_, last = sorted((run_dir / "checkpoints").glob("server-*.safetensors"))
    assert largest(last) > 100 * largest(first)


def largest(checkpoint: Path) -> float:
    """The largest absolute number of a checkpoint's floats."""
    tensors = load_tensors(checkpoint).values()
    return max(float(tensor.abs().max()) for tensor in tensors if tensor.is_floating_point() and tensor.numel())


def test_a_compressed_body_is_not_inflated(served: tuple[Deployment, list[Peer]]) -> None:
    """256 MiB of zeros in 0.3 MB, with a valid login."""
    deployment, peers = served
    pid = deployment.supervisors[0].pids()["the SuperLink"]
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
    before, packer = status_of(pid, "VmRSS"), zlib.compressobj(wbits=31)
    bomb = b"".join([*(packer.compress(bytes(MIB)) for _ in range(256)), packer.flush()])
    answer = peers[LIAR].post("/v1/fleet/pull-messages", bomb, content_encoding="gzip")
    assert 400 <= answer.status_code < 500
    assert status_of(pid, "VmHWM") - before < 64 * MIB
