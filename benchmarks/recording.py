"""The cost of recording: a round of FedAvg in a bare PyTorch loop, with ``fedpriv.recording`` and without, in turn.

CPU time of a round (one thread), each pair of rounds from the same weights; they must end at the same bits. Ten clients a round
take one epoch of batches of 32, on noise in the shape of the data set:

    W1  LeNet-5 (44,426 parameters), 600 images of Fashion-MNIST's shape a client
    W2  the same, 60 images a client: two steps each, so that no target is set for it
    W3  a convolutional net of 308,482 parameters, 50 images of CIFAR-10's shape a client
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from machine import facts, parser_of, report, spread
from torch import Tensor
from torch.nn import functional as F

import fedpriv
from fedpriv.models import build_model
from fedpriv.recorder.writer import Recording

CLIENTS, BATCH = 10, 32
LIMIT = 1.05
"""Largest median of the CPU time of a recorded round over that of the same round without."""


@dataclass(frozen=True)
class Workload:
    model: str
    images: int
    shape: tuple[int, int, int]


WORKLOADS = {
    "W1": Workload("lenet5", 600, (1, 28, 28)),
    "W2": Workload("lenet5", 60, (1, 28, 28)),
    "W3": Workload("cnn10", 50, (3, 32, 32)),
}


class Loop:
    """A federation of ten clients."""

    def __init__(self, work: Workload) -> None:
        torch.manual_seed(0)
        self.work, self.net = work, build_model(work.model, work.shape, 10, None)
        self.data = [(torch.rand(work.images, *work.shape), torch.arange(work.images) % 10) for _ in range(CLIENTS)]
        self.weights = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    def round(self, number: int, record: Recording | None) -> dict[str, Tensor]:
        """The model after a round from the same weights."""
        total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in self.weights.items()}
        for client, (images, labels) in enumerate(self.data):
            if record is not None:
                record.sent(number, client, self.weights)
            self.net.load_state_dict(self.weights)
            optimiser = torch.optim.SGD(self.net.parameters(), 0.1)
            for batch in torch.arange(len(labels)).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(self.net(images[batch]).logits, labels[batch]).backward()
                optimiser.step()
            answer = {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}
            if record is not None:
                record.answered(number, client, answer, num_examples=len(labels))
            for name, tensor in answer.items():
                total[name] += tensor
        return {name: (tensor / CLIENTS).to(self.weights[name].dtype) for name, tensor in total.items()}


def measured(work: Workload, rounds: int, folder: Path) -> tuple[list[float], list[float], int]:
    """Of pairs of rounds: the CPU seconds without recording, the ratios, and the bytes of the record."""
    loop, plain, ratios = Loop(work), list[float](), list[float]()
    with fedpriv.recording(folder, classes=10, input_shape=work.shape) as record:
        for number in range(rounds + 1):  # the first warms up
            cost, after = dict[bool, float](), dict[bool, dict[str, Tensor]]()
            for is_recorded in (True, False) if number % 2 else (False, True):
                began = time.process_time()
                after[is_recorded] = loop.round(number + 1, record if is_recorded else None)
                cost[is_recorded] = time.process_time() - began
            if any(not torch.equal(tensor, after[True][name]) for name, tensor in after[False].items()):
                sys.exit("a recorded round ends at other bits")
            loop.weights = after[False]
            if number:
                plain.append(cost[False])
                ratios.append(cost[True] / cost[False])
    return plain, ratios, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="pairs of rounds (default: 12)")
    options = parser.parse_args()
    results: dict[str, object] = {"benchmark": "recording", **facts(("fedpriv", "torch", "safetensors")), "threads": 1}
    missed = []
    for name, work in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            plain, ratios, size = measured(work, options.rounds, Path(folder) / "record")
        seconds, ratio = spread(plain), spread(ratios)
        times = f"{ratio['median']} times ({ratio['min']}-{ratio['max']})"
        print(f"{name}: {seconds['median']} s a round, recorded {times}, {size:,} bytes", flush=True)
        results[name] = {"cpu_seconds": plain, "ratios": ratios, "ratio": ratio, "bytes": size}
        if name != "W2" and ratio["median"] > LIMIT:
            missed.append(f"{name} recorded costs {ratio['median']} times, above {LIMIT}")
    report(results, options.json, missed)


if __name__ == "__main__":
    main()
