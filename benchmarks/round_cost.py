"""The overhead of a federated round: a bare PyTorch loop, fedpriv and Apple's pfl, side by side in one process.

Measures the CPU time of a round (``time.process_time``, one thread) as a ratio to the bare loop. All take turns, round by round,
in all orders; a repeat is the sum over some rounds. CPU time, since the machine may be busy; wall time is stored too, as CPU time
leaves out waiting for the disk.

* ``floor``: for each client, copy the round's weights into one ``nn.Sequential``, make a ``torch.optim.SGD``, step. No
  aggregation, nothing sealed, nothing stored; the clients' tensors lie normalised in memory.
* ``fedpriv``: ``Simulation.run_round()`` of FedAvg: sampling, sealing, the local updates (from uint8 images), aggregation,
  checkpoint, record. Tracking is off, and no round is evaluated: the others evaluate nothing either. The executor is the
  vectorized one, which ``auto`` picks here, with groups of 10.
* ``sequential``: the same with the sequential executor.
* ``pfl``: ``FederatedAveraging`` on its ``SimulatedBackend`` with weighting by samples; skipped if not installed.

All take the same steps: same net, initial weights, clients and batches in the same order. After the first round (not timed) their
weights must be equal within float tolerance; otherwise the benchmark fails.

    W1  Fashion-MNIST, LeNet-5 (44,426 parameters), 100 clients of 600 images, 10 a round, 3 local epochs, batch 32
    W2  the same, 1000 clients of 60 images, 100 a round, 1 local epoch

Two cores: the wall time of fedpriv's rounds with one worker process over that with two.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from machine import facts, parser_of, report, spread
from torch import Tensor, nn
from torch.nn import functional as F
from trial import NEVER, begin, find_or_noise

from fedpriv.config import TrainConfig
from fedpriv.parameters import ParameterSpace
from fedpriv.seeding import generator
from fedpriv.wire import Direction, Sealed

LIMITS = {"W1": {"fedpriv": 0.52, "sequential": 1.05}, "W2": {"fedpriv": 0.50, "sequential": 1.05}}
"""Largest median ratios to the floor."""
GROUP = 10
"""Clients that train together on one core; the default is half of the participants, a group for each of two workers."""
TIMES_PFL = {"W1": 2.0, "W2": 2.4}
"""Smallest speed-up of fedpriv over pfl."""
TWO_CORES = {"W1": 1.8, "W2": 1.75}
"""Smallest speed-up of two workers over one."""
TOLERANCE = 1e-5
"""Largest difference of a weight after one round: float32 sums in another order, over up to 57 steps."""
GROUP_TOLERANCE = 1e-4
"""The same for clients that train together, where each layer sums in another order."""
PACKAGES = ("fedpriv", "torch", "numpy", "safetensors", "pfl")


@dataclass(frozen=True)
class Workload:
    clients: int
    participants: int
    epochs: int
    rounds_per_repeat: int


WORKLOADS = {"W1": Workload(100, 10, 3, 6), "W2": Workload(1000, 100, 1, 12)}

Client = tuple[Tensor, Tensor]
"""A client's normalised images ``(n, 1, 28, 28)`` and labels ``(n,)``."""


def batches(data: Client, train: TrainConfig, shuffle: torch.Generator) -> Iterator[Client]:
    """One epoch in the order of ``shuffle``."""
    images, labels = data
    order = torch.randperm(len(labels), generator=shuffle)
    yield from zip(images[order].split(train.batch_size), labels[order].split(train.batch_size), strict=True)


def shuffle_of(seed: int, round: int, client: int) -> torch.Generator:
    """The order of a client's batches, as fedpriv draws it."""
    return generator(seed, round, client, "train", 1, "shuffle")


def sgd(parameters: Iterator[nn.Parameter], train: TrainConfig, lr: float) -> torch.optim.SGD:
    """Stock SGD with the config's two weight decays."""
    weights = {"params": [], "weight_decay": train.weight_decay}
    biases = {"params": [], "weight_decay": train.weight_decay_bias}
    for parameter in parameters:
        (biases if parameter.ndim == 1 else weights)["params"].append(parameter)
    return torch.optim.SGD([weights, biases], lr=lr, momentum=train.momentum)


class Fedpriv:
    """The real loop on the real folder; the reference for who takes part and in which order the batches come."""

    def __init__(
        self, work: Workload, rounds: int, data_dir: Path | None, folder: Path, device: str = "cpu", **executor: Any
    ) -> None:
        self.simulation = begin({**config_of(work, rounds, data_dir, executor), "device": device}, folder)
        self.federation = federation = self.simulation.federation
        self.config, self.space, self.net = federation.config, federation.resident.space, federation.resident.net
        self.uploads: dict[int, Sealed] = {}

    @property
    def row(self) -> Tensor:
        """The server's model ``(p,)``."""
        return self.simulation.state.row

    def participants(self, round: int) -> list[int]:
        """Who takes part, in the order of their local updates."""
        return sorted(self.simulation.participants(round))  # a function of the config, but not a public one

    def watch(self, direction: Direction, payload: Sealed) -> None:
        """A tap that keeps a round's uploads."""
        if direction == "up" and payload.client is not None:
            self.uploads[payload.client] = payload

    def run(self, round: int) -> None:
        record = self.simulation.run_round()
        assert record["round"] == round and not any("accuracy" in name for name in record["metrics"])


class Floor:
    """Nothing but the steps."""

    def __init__(self, fedpriv: Fedpriv, clients: list[Client]) -> None:
        self.fedpriv, self.clients, self.train = fedpriv, clients, fedpriv.config.train
        self.net = plain_net(fedpriv)
        self.net.train()

    def run(self, round: int, row: Tensor, participants: list[int]) -> None:
        state = fedpriv_state(self.fedpriv.space, row)
        for client in participants:
            self.client(round, client, state)

    def client(self, round: int, client: int, state: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.net.parameters(), state, strict=True):
                parameter.copy_(value)
        optimiser = sgd(self.net.parameters(), self.train, self.train.lr)
        shuffle = shuffle_of(self.fedpriv.config.seed, round, client)
        for _ in range(self.train.local_epochs):
            for images, labels in batches(self.clients[client], self.train, shuffle):
                optimiser.zero_grad()
                F.cross_entropy(self.net(images), labels).backward()
                optimiser.step()


class Pfl:
    """FedAvg as pfl's documentation builds it, with the clients and batches of the others."""

    def __init__(self, fedpriv: Fedpriv, clients: list[Client], participants: Callable[[int], list[int]]) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset as UserDataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.metrics import Weighted
        from pfl.model.pytorch import PyTorchModel

        train, seed = fedpriv.config.train, fedpriv.config.seed

        class Shuffled(UserDataset):  # type: ignore[misc]
            """pfl does not shuffle; here each epoch has the order that the others have."""

            def __init__(self, round: int, client: int) -> None:
                super().__init__(clients[client], user_id=str(client))
                self.shuffle = shuffle_of(seed, round, client)

            def iter(self, batch_size: int | None) -> Iterator[Client]:
                # Its evaluation of iteration 0 asks for everything at once, and must not advance the order.
                yield from batches(self.raw_data, train, self.shuffle) if batch_size == train.batch_size else [self.raw_data]

        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = plain_net(fedpriv)

            def loss(self, images: Tensor, labels: Tensor) -> Tensor:
                self.train()
                return F.cross_entropy(self.net(images), labels)

            @torch.no_grad()
            def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
                return {"loss": Weighted(float(F.cross_entropy(self.net(images), labels, reduction="sum")), len(labels))}

        def cohorts() -> Iterator[tuple[int, int]]:
            round = 0
            while True:
                round += 1
                yield from ((round, client) for client in participants(round))

        module, order = Module(), cohorts()
        self.parameters = list(module.parameters())
        data = FederatedDataset(lambda user: Shuffled(*user), lambda: next(order))
        self.backend = SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()])
        self.model = PyTorchModel(
            module,
            local_optimizer_create=lambda parameters, lr: sgd(parameters, train, lr),
            central_optimizer=torch.optim.SGD(self.parameters, lr=1.0),
        )
        self.algorithm = FederatedAveraging()
        self.hyper = NNTrainHyperParams(
            local_num_epochs=train.local_epochs, local_learning_rate=train.lr, local_batch_size=train.batch_size
        )
        cohort = len(participants(1))
        # pfl evaluates in iteration 0 (the one that is not timed here) and then every so many.
        self.params = lambda last: NNAlgorithmParams(
            central_num_iterations=last, evaluation_frequency=10**9, train_cohort_size=cohort, val_cohort_size=0
        )

    def run(self, round: int) -> None:
        """Go on to ``round``: the algorithm object remembers how many it did."""
        self.algorithm.run(self.params(round), self.backend, self.model, self.hyper, send_metrics_to_platform=False)


def plain_net(fedpriv: Fedpriv) -> nn.Sequential:
    """The same layers as fedpriv's net, as one ``nn.Sequential`` with parameters of its own, in the usual memory order."""
    net = nn.Sequential(*(another(layer) for layer in [*fedpriv.net.encoder, fedpriv.net.head]))  # type: ignore[misc]
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), fedpriv_state(fedpriv.space, fedpriv.federation.initial), strict=True):
            parameter.copy_(value)
    return net


def another(layer: nn.Module) -> nn.Module:
    """A new layer of the same kind and size."""
    if isinstance(layer, nn.Conv2d):
        return nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size)  # type: ignore[arg-type]
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, layer.out_features)
    return type(layer)(2) if isinstance(layer, nn.MaxPool2d) else type(layer)()


def fedpriv_state(space: ParameterSpace, row: Tensor) -> list[Tensor]:
    """The tensors of ``row`` ``(p,)`` in the order of the layers (in a row, weights come before biases)."""
    layers = dict.fromkeys(name.rpartition(".")[0] for name in space.names)
    order = sorted(layers, key=lambda layer: (layer == "head", list(layers).index(layer)))
    return [space.view(row, f"{layer}.{kind}") for layer in order for kind in ("weight", "bias")]


def config_of(work: Workload, rounds: int, data_dir: Path | None, executor: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": "fedavg",
        "data": {"name": "fashion_mnist", "dir": data_dir, "clients": work.clients, "partition": {"name": "iid"}},
        "model": {"name": "lenet5", "projection": None},
        "train": {
            "rounds": rounds + 1,  # one more than is run: the last is always evaluated
            "participation": work.participants / work.clients,
            "local_epochs": work.epochs,
            "batch_size": 32,
        },
        "eval": {"every": NEVER, "last": 1},
        "executor": executor,
        "threads": 1,
    }


def measure(name: str, repeats: int, data_dir: Path | None, folder: Path) -> dict[str, Any]:
    """All contenders on one workload."""
    work = WORKLOADS[name]
    rounds = 1 + repeats * work.rounds_per_repeat
    fedpriv = Fedpriv(work, rounds, data_dir, folder / name, name="vectorized", group_size=GROUP)
    sequential = Fedpriv(work, rounds, data_dir, folder / f"{name}-sequential", name="sequential")
    clients: list[Client] = [tuple(fedpriv.federation.data.train(client)) for client in range(work.clients)]  # type: ignore[misc]
    floor = Floor(fedpriv, clients)
    pfl: Pfl | None = None
    try:
        pfl = Pfl(fedpriv, clients, fedpriv.participants)
    except ImportError as error:
        print(f"pfl is left out: {error}")
    print(f"{name} clients are run {fedpriv.federation.choice}")

    check = same_steps(fedpriv, sequential, floor, pfl)
    print(f"{name} same steps as the floor, greatest difference of a weight after round 1: {check}")

    cpu: dict[str, list[float]] = {}
    wall: dict[str, list[float]] = {}
    contenders = ["floor", "fedpriv", "sequential"] + ["pfl"] * (pfl is not None)
    orders = list(itertools.permutations(contenders))
    random.Random(0).shuffle(orders)  # or the first ones would always begin with the floor
    for repeat in range(repeats):
        for who in contenders:
            cpu.setdefault(who, []).append(0.0)
            wall.setdefault(who, []).append(0.0)
        for i in range(work.rounds_per_repeat):
            round = 2 + repeat * work.rounds_per_repeat + i
            row, participants = fedpriv.row.clone(), fedpriv.participants(round)
            contestants: dict[str, Callable[[], None]] = {
                "floor": lambda round=round, row=row, who=participants: floor.run(round, row, who),  # type: ignore[misc]
                "fedpriv": lambda round=round: fedpriv.run(round),
                "sequential": lambda round=round: sequential.run(round),
                "pfl": lambda round=round: pfl.run(round),  # type: ignore[misc, union-attr]
            }
            for who in orders[round % len(orders)]:
                began, began_wall = time.process_time(), time.perf_counter()
                contestants[who]()
                cpu[who][-1] += (time.process_time() - began) / work.rounds_per_repeat
                wall[who][-1] += (time.perf_counter() - began_wall) / work.rounds_per_repeat
    ratios = {who: [a / b for a, b in zip(cpu[who], cpu["floor"], strict=True)] for who in contenders[1:]}
    return {
        "clients": work.clients,
        "participants": work.participants,
        "samples_per_client": len(clients[0][1]),
        "local_epochs": work.epochs,
        "batch_size": fedpriv.config.train.batch_size,
        "parameters": fedpriv.space.size,
        "repeats": repeats,
        "rounds_per_repeat": work.rounds_per_repeat,
        "same_steps_max_difference": check,
        "cpu_seconds_per_round": {who: [round_(value) for value in values] for who, values in cpu.items()},
        "wall_seconds_per_round": {who: [round_(value) for value in values] for who, values in wall.items()},
        "executor": str(fedpriv.federation.choice),
        "ratio_to_floor": {who: {**spread(values), "all": [round_(value) for value in values]} for who, values in ratios.items()},
        **(
            {"times_as_fast_as_pfl": spread([b / a for a, b in zip(ratios["fedpriv"], ratios["pfl"], strict=True)])}
            if pfl
            else {}
        ),
        "two_cores": two_cores(work, repeats, data_dir, folder / f"{name}-cores"),
    }


def two_cores(work: Workload, repeats: int, data_dir: Path | None, folder: Path) -> dict[str, Any]:
    """How many times as fast two worker processes are as one: wall time, round by round in turn."""
    rounds = 1 + repeats * work.rounds_per_repeat
    contenders = [Fedpriv(work, rounds, data_dir, folder / str(number), workers=number) for number in (1, 2)]
    seconds: list[list[float]] = [[], []]
    for round in range(1, rounds + 1):
        for number in (0, 1) if round % 2 else (1, 0):
            began = time.perf_counter()
            contenders[number].run(round)
            seconds[number].append(time.perf_counter() - began)
    same = torch.equal(contenders[0].row, contenders[1].row)
    for contender in contenders:
        contender.simulation.executor.close()
    if not same:
        sys.exit("two workers end at other weights than one")
    size = work.rounds_per_repeat
    sums = [[sum(times[1:][i : i + size]) for i in range(0, repeats * size, size)] for times in seconds]
    return spread([single / double for single, double in zip(*sums, strict=True)])


def same_steps(fedpriv: Fedpriv, sequential: Fedpriv, floor: Floor, pfl: Pfl | None) -> dict[str, float]:
    """Run round 1, which also warms up, and compare: every upload with the floor's weights, pfl's model with the server's.

    Raises:
        SystemExit: they differ by more than :data:`TOLERANCE`, or a client hardly moves its weights.
    """
    participants, before = fedpriv.participants(1), fedpriv.row.clone()
    contenders, differences = {"fedpriv": fedpriv, "sequential": sequential}, dict.fromkeys(("fedpriv", "sequential"), 0.0)
    for contender in contenders.values():
        contender.simulation.taps.append(contender.watch)
        contender.run(1)
        contender.simulation.taps.remove(contender.watch)
    state = fedpriv_state(fedpriv.space, before)
    least_moved = float("inf")
    for client in participants:
        floor.client(1, client, state)
        trained = list(floor.net.parameters())
        least_moved = min(least_moved, _difference(trained, state))
        for who, contender in contenders.items():
            sent = fedpriv.space.pack(contender.uploads[client].tensors(), before.clone())
            differences[who] = max(differences[who], _difference(trained, fedpriv_state(fedpriv.space, sent)))
    if pfl is not None:
        pfl.run(1)
        differences["pfl"] = _difference(pfl.parameters, fedpriv_state(sequential.space, sequential.row))
    limits = {"fedpriv": GROUP_TOLERANCE}
    if any(off > limits.get(who, TOLERANCE) for who, off in differences.items()) or least_moved < 20 * TOLERANCE:
        sys.exit(f"not the same steps: differences {differences}, least movement of a client {least_moved:.2g}")
    return {who: float(f"{value:.2g}") for who, value in differences.items()}


def _difference(left: list[Any], right: list[Tensor]) -> float:
    return max(float((a.detach() - b).abs().max()) for a, b in zip(left, right, strict=True))


def round_(value: float) -> float:
    return round(value, 4)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="folder that holds fashion_mnist/*.parquet; default: FEDPRIV_DATA")
    options = parser.parse_args()
    data_dir = find_or_noise("fashion_mnist", options.data_dir)
    data = "fashion_mnist" if data_dir else "synthetic"

    results: dict[str, Any] = {"benchmark": "round_cost", **facts(PACKAGES), "threads": 1, "data": data, "workloads": {}}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in WORKLOADS if options.workload == "all" else [options.workload]:
            result = measure(name, options.repeats, data_dir, Path(folder))
            results["workloads"][name] = result
            floor = spread(result["cpu_seconds_per_round"]["floor"])
            print(f"{name} floor: {floor['median']:.3f} CPU s a round ({floor['min']:.3f}-{floor['max']:.3f})")
            for who, ratio in result["ratio_to_floor"].items():
                span = f"{ratio['min']:.3f}-{ratio['max']:.3f}, n = {options.repeats}"
                print(f"{name} {who}: {ratio['median']:.3f} times the floor ({span})")
                if who in LIMITS[name] and ratio["median"] > LIMITS[name][who]:
                    missed.append(f"{name} {who} above {LIMITS[name][who]}")
            fast = result.get("times_as_fast_as_pfl")
            if fast:
                print(f"{name} fedpriv: {fast['median']:.2f} times as fast as pfl ({fast['min']:.2f}-{fast['max']:.2f})")
                missed += [f"{name} below {TIMES_PFL[name]} times as fast as pfl"] * (fast["median"] < TIMES_PFL[name])
            cores = result["two_cores"]
            span = f"{cores['min']:.2f}-{cores['max']:.2f}, wall time"
            print(f"{name} two workers: {cores['median']:.2f} times as fast as one ({span})")
            missed += [f"{name} two workers below {TWO_CORES[name]}"] * (cores["median"] < TWO_CORES[name])
    report(results, options.json, missed)


if __name__ == "__main__":
    main()
