"""SGD on slices of rows, for one client or for several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class SGD:
    """``torch.optim.SGD(fused=True)`` on a few flat tensors, equal to the bit, without the overhead of torch's optimiser.

    Without ``fused``, torch rounds the last few entries of a tensor (fewer than a vector unit holds) differently if momentum is
    not a power of two.

    Args:
        parts: values, their gradient and their weight decay.

    Attributes:
        param_groups: as in torch's optimisers; holds the learning rate.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor, float]], lr: float, momentum: float) -> None:
        self.param_groups = [{"lr": lr}]
        self._momentum = momentum
        # With zeros, the first velocity is the gradient, as in torch.
        self._parts = [(values, grad, torch.zeros_like(values) if momentum else None, decay) for values, grad, decay in parts]

    def state(self) -> dict[str, Tensor]:
        """The velocities by number of their part, as :func:`fedpriv.optim.by_name.state_of` names them."""
        return {f"{at}/momentum_buffer": velocity for at, (_, _, velocity, _) in enumerate(self._parts) if velocity is not None}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the velocities of an earlier :meth:`state`."""
        for name, velocity in self.state().items():
            if name in state:
                velocity.copy_(state[name])

    def step(self) -> None:
        """Take one step."""
        step_together([self])


Columns = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Values, gradients and, with momentum, velocities."""


def step_together(optimisers: Sequence[SGD]) -> None:
    """Take one step of each optimiser, in one pass through memory for all parts with the same settings."""
    alike: dict[tuple[float, float, float], Columns] = {}
    for optimiser in optimisers:
        lr, momentum = optimiser.param_groups[0]["lr"], optimiser._momentum
        for value, grad, velocity, decay in optimiser._parts:
            if (settings := (lr, momentum, decay)) not in alike:
                alike[settings] = ([], [], [])
            values, grads, velocities = alike[settings]
            values.append(value)
            grads.append(grad)
            if velocity is not None:
                velocities.append(velocity)
    for (lr, momentum, decay), (values, grads, velocities) in alike.items():
        # The operation behind torch.optim.sgd.sgd(fused=True), which would sort the tensors by device and dtype first.
        torch._fused_sgd_(
            values,
            grads,
            velocities,
            weight_decay=decay,
            momentum=momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
