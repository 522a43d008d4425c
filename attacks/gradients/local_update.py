"""A client's local training as the attacker simulates it: differentiable in the data, the labels and the initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Schedule
from fedpriv.attacks.gradients.multistep import is_bias

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits ``(B, C)`` and label probabilities ``(B, C)`` -> the mean loss."""


def simulate_local_update(
    net: nn.Module,
    start: Mapping[str, Tensor],
    trained: Sequence[str],
    inputs: Tensor,
    labels: Tensor,
    schedule: Schedule,
    loss: Loss = F.cross_entropy,
    shuffle: torch.Generator | None = None,
    rounded: bool = True,
) -> dict[str, Tensor]:
    """The change of the ``trained`` weights over ``schedule.steps`` steps of SGD, differentiable in everything.

    Args:
        start: the weights of ``net`` before, by name.
        inputs: ``(n, C, H, W)``, normalised.
        labels: ``(n, classes)`` probabilities.
        shuffle: draws the order of every epoch, as clients do; ``None``: consecutive batches, the same in every epoch.
        rounded: whether the change is that of weights that were rounded after every step, as clients'; else the sum of the steps.
    """

    def batch_loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(net, {**start, **weights}, (x,)), y)

    slope = grad(batch_loss)
    batches = _batches(inputs, labels, schedule.batch_size, shuffle)
    now = {name: start[name] for name in trained}
    velocity: dict[str, Tensor] = {}
    moved = {name: torch.zeros_like(now[name]) for name in trained}
    for step in range(schedule.steps):
        gradient = slope(now, *next(batches))
        for name in trained:
            decay = schedule.weight_decay_bias if is_bias(now[name]) else schedule.weight_decay
            push = gradient[name] + decay * now[name] if decay else gradient[name]
            velocity[name] = schedule.of(name).momentum * velocity[name] + push if step else push
        now = {name: now[name] - schedule.lr * velocity[name] for name in trained}
        moved = moved if rounded else {name: moved[name] - schedule.lr * velocity[name] for name in trained}
    return {name: now[name] - start[name] for name in trained} if rounded else moved


def _batches(inputs: Tensor, labels: Tensor, size: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end, epoch after epoch."""
    whole = torch.arange(len(inputs))
    while True:
        order = whole if shuffle is None else torch.randperm(len(inputs), generator=shuffle)
        for some in torch.split(order.to(inputs.device), size):
            yield inputs[some], labels[some]
