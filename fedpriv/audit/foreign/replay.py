"""The local training that a record declares, done again: with clients' samples, to check it, and with the server's own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.recorder.layout import Training

ROUNDING = 1e-4
"""Largest relative difference of two computations of the same steps, in single precision."""
REPLAYS = 4
"""How often the training is done again, each time with the samples in another order."""
APART = 2.0
"""By which factor a message may lie outside of what the replays span: in its distance from them, and in its length."""


class CannotReplay(Exception):
    """The record does not say how clients train; the message says what it lacks."""


def check_replayable(training: Training) -> None:
    """Check that the declared training can be done again.

    Raises:
        CannotReplay: it cannot.
    """
    if training.optimizer != "sgd" or training.lr is None:
        raise CannotReplay("the record does not declare SGD with its lr")
    if training.local_epochs is None and training.local_steps is None:
        raise CannotReplay("the record declares neither local_epochs nor local_steps")
    if training.loss != "cross_entropy":
        raise CannotReplay("the record declares another loss than the cross-entropy")
    if training.augmented:
        raise CannotReplay("clients change samples at random before a step (augmented), and the record does not say how")


def trained(net: nn.Module, training: Training, inputs: Tensor, labels: Tensor, seed: int) -> dict[str, Tensor]:
    """The state of a net after a client's local training, by the net's names; the net is left as it is.

    Args:
        net: with the weights at which the client begins, in its mode.
        inputs: ``(n, C, H, W)``, normalised.
        labels: ``(n,)``.
        seed: of the order of the samples, which is drawn anew in every epoch.

    Raises:
        CannotReplay: see :func:`check_replayable`.
    """
    check_replayable(training)
    assert training.lr is not None
    net = copy.deepcopy(net)
    optimiser = torch.optim.SGD(net.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay)
    draws, steps = torch.Generator().manual_seed(seed), training.steps(len(labels))
    size, done = training.batch_size or len(labels), 0
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(seed)
        while done < (steps or 0):
            for batch in torch.split(torch.randperm(len(labels), generator=draws), size)[: (steps or 0) - done]:
                optimiser.zero_grad()
                F.cross_entropy(net(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                done += 1
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}


@dataclass(frozen=True)
class Difference:
    """How far a message is from what the declared training gives, on the tensor where that is worst.

    Attributes:
        distance: from the nearest replay, relative to its change; ``spread``: the largest distance of two replays.
        length: of the change, as a multiple of the replays' mean length; ``shortest``, ``longest``: those of the replays.
    """

    tensor: str
    distance: float
    spread: float
    length: float
    shortest: float
    longest: float

    @property
    def excess(self) -> float:
        """How far it is outside of what the replays span; at most 1: it can be a message of the declared training."""
        beyond = self.distance / max(APART * self.spread, ROUNDING)
        longer, shorter = self.length / self.longest, self.shortest / max(self.length, 1e-12)
        return max(beyond, *((ratio - ROUNDING) / APART if ratio > 1 + ROUNDING else 0.0 for ratio in (longer, shorter)))

    @property
    def agrees(self) -> bool:
        """Whether the message can be one of the declared training."""
        return self.excess <= 1

    @property
    def sentence(self) -> str:
        """The figures."""
        return (
            f"on {self.tensor} by {self.distance:.2g} of the change, and {self.length:.2g} times as long; orders of the samples "
            f"differ by up to {self.spread:.2g}, and give lengths from {self.shortest:.2g} to {self.longest:.2g}"
        )


def compare_with_message(record: FolderRecord, round: int, client: int) -> Difference:
    """Train a recorded client again as it is declared, with its recorded samples, and compare its message.

    The order of the samples is not known. So the training is done several times in different orders: the message may be further
    from the replays than these are from each other, but not by much.

    Raises:
        CannotReplay: the record does not say how clients train, or the message lacks what it would be compared with.
    """
    message = record.message(round, client)
    update, truth = record.update(message), record.truth(client)
    if update.schedule is None:
        raise CannotReplay("the message is a gradient")
    if message.num_examples not in (None, len(truth.labels)):
        raise CannotReplay(f"the client says it trained on {message.num_examples} samples, and {len(truth.labels)} were recorded")
    inputs = record.normalised(truth.images)
    replays = [trained(update.model, record.facts.training, inputs, truth.labels, seed) for seed in range(REPLAYS)]
    before = {name: parameter.detach() for name, parameter in update.model.named_parameters()}
    return max((_difference(name, update.sent.parameters[name], replays, before[name]) for name in update.sent.parameters),
               key=lambda difference: difference.excess)  # fmt: skip


def _difference(name: str, change: Tensor, replays: Sequence[Mapping[str, Tensor]], before: Tensor) -> Difference:
    changes = [replay[name] - before for replay in replays]
    lengths = [float(other.norm()) for other in changes]
    mean = sum(lengths) / len(lengths) or 1.0
    spread = max(float((first - other).norm()) for first, other in combinations(changes, 2))
    nearest = min(float((change - other).norm()) for other in changes)
    return Difference(
        name, nearest / mean, spread / mean, float(change.norm()) / mean, max(min(lengths) / mean, 1e-12), max(lengths) / mean
    )
