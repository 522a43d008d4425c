"""The server's state as the tensors of a checkpoint, by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.methods.base import ServerState
from fedpriv.parameters import ParameterSpace

_MODEL, _MEMORY = "model.", "memory."


def as_tensors(state: ServerState, space: ParameterSpace) -> dict[str, Tensor]:
    """The model's tensors and those of the method's memory."""
    model = {_MODEL + name: tensor for name, tensor in space.unpack(state.row).items()}
    return model | {_MEMORY + name: tensor for name, tensor in state.memory.items()}


def from_tensors(tensors: Mapping[str, Tensor], space: ParameterSpace, like: Tensor) -> ServerState:
    """The inverse of :func:`as_tensors`; other tensors are ignored.

    Args:
        like: a model ``(p,)`` with the dtype and device of the result.
    """
    return ServerState(space.pack(_named(_MODEL, tensors), torch.empty_like(like)), _named(_MEMORY, tensors))


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, by the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
