"""The local training that a record declares, done again: with clients' samples, to check it, and with the server's own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.audit.recorded.record import FolderRecord
from fedpriv.recorder.layout import Training

ROUNDING = 1e-4
"""Largest relative difference of two computations of the same steps, in single precision."""
APART = 3.0
"""How many times further from a replay a message may be than another replay, whose batches are other ones."""


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
            for batch in torch.randperm(len(labels), generator=draws).split(size)[: (steps or 0) - done]:
                optimiser.zero_grad()
                F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
                optimiser.step()
                done += 1
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}


@dataclass(frozen=True)
class Difference:
    """How far a message is from what the declared training gives, relative to the change, on the tensor where that is largest.

    Attributes:
        allowed: how far two such trainings are from each other.
    """

    tensor: str
    relative: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether the message can be one of the declared training."""
        return self.relative <= max(APART * self.allowed, ROUNDING)


def compare_with_message(record: FolderRecord, round: int, client: int) -> Difference:
    """Train a recorded client once more as it is declared, with its recorded samples, and compare its message.

    The order of the samples is not known. So the training is done twice in different orders: the message may be further from a
    replay than the two are from each other, but not by much.

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
    replays = [trained(update.model, record.facts.training, inputs, truth.labels, seed) for seed in (0, 1)]
    before = dict(update.model.named_parameters())

    def relative(name: str, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
        scale = float((replays[0][name] - before[name].detach()).norm()) or 1.0
        return float((first[name] - second[name]).norm()) / scale

    differences = [
        Difference(name, relative(name, message.uploaded, replays[0]), relative(name, *replays))
        for name in update.sent.parameters
    ]
    return max(differences, key=lambda it: it.relative / max(APART * it.allowed, ROUNDING))
