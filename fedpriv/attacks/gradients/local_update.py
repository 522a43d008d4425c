"""A client's local SGD as the attacker simulates it: differentiable in the data, the labels and the initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import grad

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.labels import label_loss
from fedpriv.attacks.core.observation import Schedule
from fedpriv.attacks.gradients.multistep import is_bias


def simulate_local_update(
    net: nn.Module,
    start: Mapping[str, Tensor],
    trained: Sequence[str],
    inputs: Tensor,
    labels: Tensor,
    schedule: Schedule,
    shuffle: torch.Generator | None = None,
    rounded: bool = True,
) -> dict[str, Tensor]:
    """The change of the ``trained`` weights over ``schedule.steps`` steps of SGD, differentiable in everything.

    Args:
        start: the initial weights of ``net``, by name.
        inputs: ``(n, C, H, W)``, normalised.
        labels: ``(n, classes)`` probabilities, or numbers ``(n,)``.
        shuffle: draws the sample order of every epoch, as clients do; ``None``: the given order in every epoch.
        rounded: return the difference of the weights, which are rounded after every step as a client's are, instead of the sum
            of the steps.
    """

    def batch_loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return label_loss(functional_call(net, {**start, **weights}, (x,)), y)

    gradient_of = grad(batch_loss)
    batches = _batches(inputs, labels, schedule.batch_size, shuffle)
    current = {name: start[name] for name in trained}
    velocity: dict[str, Tensor] = {}
    change = {name: torch.zeros_like(current[name]) for name in trained}
    for step in range(schedule.steps):
        gradient = gradient_of(current, *next(batches))
        for name in trained:
            decay = schedule.weight_decay_bias if is_bias(current[name]) else schedule.weight_decay
            step_gradient = gradient[name] + decay * current[name] if decay else gradient[name]
            velocity[name] = schedule.of(name).momentum * velocity[name] + step_gradient if step else step_gradient
        current = {name: current[name] - schedule.lr * velocity[name] for name in trained}
        change = change if rounded else {name: change[name] - schedule.lr * velocity[name] for name in trained}
    return {name: current[name] - start[name] for name in trained} if rounded else change


def _batches(inputs: Tensor, labels: Tensor, size: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches forever, epoch after epoch."""
    everything = torch.arange(len(inputs))
    while True:
        order = everything if shuffle is None else torch.randperm(len(inputs), generator=shuffle)
        for batch in torch.split(order.to(inputs.device), size):
            yield inputs[batch], labels[batch]
