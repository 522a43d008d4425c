"""The cost of recording: a round of FedAvg in a bare PyTorch loop, with ``fedpriv.recording`` and without, in turn.

CPU time of a round (one thread), each pair of rounds from the same weights; they must end at the same bits. Of a recorded
round, the time in the recorder's calls over the rest is measured, too: on a busy machine two rounds differ by more than that.
Ten clients a round take one epoch of batches of 32, on noise in the shape of the data set:

    W1  LeNet-5 (44,426 parameters), 600 images of Fashion-MNIST's shape a client
    W2  the same, 60 images a client: two steps each, so that no target is set for it
    W3  a convolutional net of 308,482 parameters, 50 images of CIFAR-10's shape a client
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
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
LIMIT = 0.05
"""Largest median of the CPU time in the recorder's calls over that of the rest of the round."""


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
        self.in_recorder = 0.0
        self.weights = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    def timed(self, call: Callable[[], None]) -> None:
        """Call the recorder, and add its CPU time."""
        began = time.process_time()
        call()
        self.in_recorder += time.process_time() - began

    def round(self, number: int, record: Recording | None) -> dict[str, Tensor]:
        """The model after a round from the same weights."""
        total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in self.weights.items()}
        for client, (images, labels) in enumerate(self.data):
            if record is not None:
                self.timed(partial(record.sent, number, client, self.weights))
            self.net.load_state_dict(self.weights)
            optimiser = torch.optim.SGD(self.net.parameters(), 0.1)
            for batch in torch.arange(len(labels)).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(self.net(images[batch]).logits, labels[batch]).backward()
                optimiser.step()
            answer = {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}
            if record is not None:
                self.timed(partial(record.answered, number, client, answer, num_examples=len(labels)))
            for name, tensor in answer.items():
                total[name] += tensor
        return {name: (tensor / CLIENTS).to(self.weights[name].dtype) for name, tensor in total.items()}


@dataclass
class Measured:
    """Of pairs of rounds: the CPU seconds without recording, their ratios, and the recorder's share; the bytes of the record."""

    cpu_seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    bytes: int = 0


def measured(work: Workload, rounds: int, folder: Path) -> Measured:
    loop, result = Loop(work), Measured()
    with fedpriv.recording(folder, classes=10, input_shape=work.shape) as record:
        for number in range(rounds + 1):  # the first warms up
            cost, after = dict[bool, float](), dict[bool, dict[str, Tensor]]()
            for is_recorded in (True, False) if number % 2 else (False, True):
                loop.in_recorder, began = 0.0, time.process_time()
                after[is_recorded] = loop.round(number + 1, record if is_recorded else None)
                cost[is_recorded] = time.process_time() - began
                if is_recorded:
                    share = loop.in_recorder / (cost[True] - loop.in_recorder)
            if any(not torch.equal(tensor, after[True][name]) for name, tensor in after[False].items()):
                sys.exit("a recorded round ends at other bits")
            loop.weights = after[False]
            if number:
                result.cpu_seconds.append(cost[False])
                result.ratios.append(cost[True] / cost[False])
                result.shares.append(share)
    result.bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return result


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="pairs of rounds (default: 12)")
    options = parser.parse_args()
    results: dict[str, object] = {"benchmark": "recording", **facts(("fedpriv", "torch", "safetensors")), "threads": 1}
    missed = []
    for name, work in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            of = measured(work, options.rounds, Path(folder) / "record")
        seconds, ratio, share = spread(of.cpu_seconds), spread(of.ratios), spread(of.shares, 4)
        shown = f"{share['median']:.1%} ({share['min']:.1%}-{share['max']:.1%})"
        times = f"{ratio['median']} times ({ratio['min']}-{ratio['max']})"
        print(
            f"{name}: {seconds['median']} s a round, the recorder {shown} of it; the pairs {times}; {of.bytes:,} bytes",
            flush=True,
        )
        results[name] = {**asdict(of), "ratio": ratio, "share": share}
        if name != "W2" and share["median"] > LIMIT:
            missed.append(f"{name}: recording costs {shown} of a round, above {LIMIT:.0%}")
    report(results, options.json, missed)


if __name__ == "__main__":
    main()
