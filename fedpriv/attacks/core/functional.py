"""A net's forward pass with other tensors than its own; the whole of fedpriv takes this one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn


def functional_call(net: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...]) -> Any:
    """As ``torch.func.functional_call``, which leaves the tensors of the call in a layer that the net has under several names.

    Torch (2.15) sets such a layer's tensors once for each name, and restores them in the same order: at last those of the call.
    The layer would then no longer have its parameters, and would not be trained.

    Args:
        tensors: parameters and buffers by name; those that are not named are the net's own.
    """
    names = Counter(module for _, module in net.named_modules(remove_duplicate=False))
    kept = [(module, dict(module._parameters), dict(module._buffers)) for module, times in names.items() if times > 1]
    try:
        return torch.func.functional_call(net, tensors, args)
    finally:
        for module, parameters, buffers in kept:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
