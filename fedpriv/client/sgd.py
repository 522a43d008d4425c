"""SGD on slices of rows: one client's step, or those of several at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd


class SGD:
    """``torch.optim.SGD(fused=True)`` on a few flat tensors; bit for bit the same.

    It is torch's arithmetic without its bookkeeping, which takes longer for a small net. Without ``fused``, torch rounds the last
    few entries of a tensor (fewer than a vector unit holds) in another way if momentum is no power of two.

    Args:
        parts: values, their gradient and their weight decay.

    Attributes:
        param_groups: as in torch's optimisers; holds the learning rate.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> None:
        self.param_groups = [{"lr": lr}]
        self._momentum = momentum
        # Zeros: momentum's first step is then the gradient, as torch's.
        self._parts = [(values, grad, torch.zeros_like(values) if momentum else None, decay) for values, grad, decay in parts]

    def step(self) -> None:
        """One step along the gradient."""
        step_together([self])


Columns = tuple[list[Tensor], list[Tensor], list[Tensor | None]]
"""Values, gradients and velocities."""


def step_together(optimisers: Sequence[SGD]) -> None:
    """One step of each, in one pass through memory for all parts with the same settings."""
    alike: defaultdict[tuple[float, float, float], Columns] = defaultdict(lambda: ([], [], []))
    for one in optimisers:
        for value, grad, velocity, decay in one._parts:
            values, grads, velocities = alike[one.param_groups[0]["lr"], one._momentum, decay]
            values.append(value)
            grads.append(grad)
            velocities.append(velocity)
    for (lr, momentum, decay), (values, grads, velocities) in alike.items():
        sgd(
            values,
            grads,
            velocities,
            fused=True,
            weight_decay=decay,
            momentum=momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
