"""The halves of runs in two processes that share nothing but a pipe: ``python -m tests.simulation.two_processes CONFIG FOLDER
...``.

The server's process forks the clients', before either imports its half, and asks them for what may be known of their data; the
rest it has from the config. What goes through the pipe are frames: a line of JSON, then the sealed messages that it announces.
The runs are played one after another.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedpriv.agreement import Agreement, Declared, agree
from fedpriv.config import RunConfig, load_config
from fedpriv.defenses import build_transforms
from fedpriv.models.net import Net
from fedpriv.models.registry import build_model
from fedpriv.wire import Sealed, unseal

CPU = torch.device("cpu")


class Frames:
    """One end of the pipe."""

    def __init__(self, end: socket.socket) -> None:
        self.file = end.makefile("rwb")

    def send(self, message: Mapping[str, Any], *parts: Sealed | None) -> None:
        sizes = [None if part is None else part.nbytes for part in parts]
        self.file.write(json.dumps({**message, "sizes": sizes}).encode() + b"\n")
        for part in parts:
            self.file.write(b"" if part is None else part.data)
        self.file.flush()

    def receive(self) -> tuple[dict[str, Any], list[Sealed | None]]:
        message = json.loads(self.file.readline())
        return message, [None if size is None else unseal(self.file.read(size)) for size in message.pop("sizes")]


def terms(config: RunConfig, shape: Iterable[int], declared: Declared) -> tuple[Agreement, Net]:
    """What each half builds for itself."""
    model = config.model
    upper = model.projection, model.predictor or False, model.projector

    def new_net() -> Net:
        return build_model(model.name or "", tuple(shape), declared.classes, *upper)

    return agree(config, new_net, declared, build_transforms(config.wire.transforms), CPU)


def serve(runs: Sequence[tuple[Path, Path]]) -> None:
    """The server's process.

    Args:
        runs: config and folder of each.
    """
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(ours, theirs, runs))
    process.start()
    theirs.close()
    pipe = Frames(ours)
    for path, folder in runs:
        conduct(pipe, path, folder)
        pipe.send({"do": "end"})
    pipe.file.close()
    ours.close()
    process.join(60)
    assert process.exitcode == 0
    foreign = [name for name in sys.modules if name.startswith(("fedpriv.client", "fedpriv.simulation", "fedpriv.data"))]
    assert not foreign, f"the server knows {foreign}"


def conduct(pipe: Frames, path: Path, folder: Path) -> None:
    """The server's half of a run."""
    from fedpriv.evaluation.protocols import by_client
    from fedpriv.methods.base import ServerState
    from fedpriv.server.clients import Clients, Evaluation, Instruction
    from fedpriv.server.rounds import Server
    from fedpriv.storage.run_folder import RunFolder
    from fedpriv.wire import Payload, seal
    from fedpriv.wire.report import Answer, Report

    config = load_config(path, {})

    class ByPipe(Clients):
        def welcome(self, broadcast: Sealed) -> None:
            pipe.send({"do": "welcome"}, broadcast)

        def train(self, instruction: Instruction) -> Iterator[Answer]:
            return self._ask("train", instruction)

        def test(self, instruction: Instruction) -> Iterator[Answer]:
            return self._ask("test", instruction)

        def _ask(self, what: str, instruction: Instruction) -> Iterator[Answer]:
            for client in instruction.clients:
                pipe.send({"do": what, "client": client, "last": instruction.last.get(client)}, instruction.message)
                _, (upload, report) = pipe.receive()
                assert report is not None
                yield Answer(client, upload, report)

        def damaged(self, states: Mapping[int, int]) -> str | None:
            return None

        def forget(self, states: Iterable[tuple[int, int]]) -> None:
            pipe.send({"do": "forget", "states": list(states)})

        def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
            raise AssertionError("only a resumed run asks for it")

    class ByMessages:
        untested: Mapping[int, str] = {}

        def score(self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Any] = ()) -> Evaluation:
            message = seal(Payload(agreement.space.unpack(server.row, agreement.method.shared_names), round))
            reports = [
                Report.of(answer.report) for answer in clients.test(Instruction(round, range(config.data.clients), message, last))
            ]
            return Evaluation(*by_client([report.scores for report in reports], [report.num_examples for report in reports]))

    facts, _ = pipe.receive()
    agreement, _ = terms(config, facts.pop("shape"), Declared(**facts))
    clients = ByPipe()
    run_folder = RunFolder.create(config.model_copy(update={"run_dir": folder}), folder.parent)
    server = Server(agreement, run_folder, clients, ByMessages(), print)
    server.start()
    for _ in server.rounds():
        pass


def hold(theirs: socket.socket, ours: socket.socket, runs: Sequence[tuple[Path, Path]]) -> None:
    """The clients' process."""
    theirs.close()
    pipe = Frames(ours)
    for path, folder in runs:
        answer(pipe, path, folder / "at-the-clients")
    assert not pipe.file.read()
    foreign = [name for name in sys.modules if name.startswith(("fedpriv.server", "fedpriv.simulation"))]
    assert not foreign, f"the clients know {foreign}"


def answer(pipe: Frames, path: Path, folder: Path) -> None:
    """The clients' half of a run."""
    from fedpriv.client.client import Client
    from fedpriv.client.receiving import receive
    from fedpriv.client.resident import Resident
    from fedpriv.client.store import ClientStore
    from fedpriv.client.suspicion import secret_generator
    from fedpriv.data.federated import ClientData, FederatedData
    from fedpriv.data.partitions.partition import make_partition
    from fedpriv.data.pools import Images
    from fedpriv.data.sources import load_dataset

    config = load_config(path, {})
    dataset = load_dataset(config.data.name, config.data.dir, config.data.limit, config.data.image_size)
    labels = dataset.train_labels.numpy(), dataset.test_labels.numpy()
    partition = make_partition(*labels, len(dataset.classes), config.data, config.data.partition.seed or 0)
    train, test = (Images(images, dataset.mean, dataset.std, CPU) for images in (dataset.train_images, dataset.test_images))
    data = FederatedData(dataset, partition, CPU, train, test)
    sizes = list(map(data.size, data.nonempty))
    declared = Declared(len(dataset.classes), data.nonempty, sum(sizes) / len(sizes), max(sizes))
    pipe.send({"shape": dataset.input_shape, **asdict(declared)})
    agreement, net = terms(config, dataset.input_shape, declared)
    resident, store, initial = Resident(net, agreement.space, CPU), ClientStore(folder), agreement.initial
    clients = [Client(number, agreement, ClientData(data, number), store) for number in range(config.data.clients)]
    torch.set_num_threads(1)
    while True:
        question, messages = pipe.receive()
        if question["do"] == "end":
            return
        if question["do"] == "welcome":
            assert messages[0] is not None
            initial = receive(agreement, 0, messages[0], initial, secret_generator()).start
        elif question["do"] == "forget":
            store.forget(map(tuple, question["states"]))
        else:
            message = messages[0]
            client, round = clients[question["client"]], message.round if message else 0
            received = receive(agreement, round, message, initial, secret_generator())
            update = (client.train if question["do"] == "train" else client.test)(resident, received, question["last"])
            pipe.send({}, update.upload, update.report)


if __name__ == "__main__":
    serve([(Path(path), Path(folder)) for path, folder in zip(sys.argv[1::2], sys.argv[2::2], strict=True)])
