"""The effect of an upload's transforms on the change, from its format on the wire and the transforms' options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attacks.core.altered import Altered
from fedpriv.wire import Sealed, Transform
from fedpriv.wire.coding import INDICES, SCALE, base_name, is_model

_CODES = re.compile(r".*~int[2-8]")


def alteration(sealed: Sealed, received: Mapping[str, Tensor], transforms: Sequence[Transform]) -> Altered:
    """How the change that the server reads from an upload differs from the one that the client computed, by the net's names.

    Rounding and pruning show in the message itself. Clipping and noise are what the transforms declare: ``rescales``, and
    ``noise_variance`` of an entry; of a transform that declares neither, nothing is known.

    Args:
        received: what the client had been sent, by name.
    """
    noise = float(sum(getattr(transform, "noise_variance", 0.0) for transform in transforms))
    tensors = sealed.tensors()
    names = dict.fromkeys(base_name(name) for name in tensors if is_model(name))
    rounding = {name: _rounding(name, tensors) for name in names}
    return Altered(
        rescaled=any(getattr(transform, "rescales", False) for transform in transforms),
        variance={name: noise + rounding[name] for name in names if noise + rounding[name]},
        kept={name: _sent(tensors[name + INDICES], received[name].shape) for name in names if name + INDICES in tensors},
    )


def _rounding(name: str, tensors: Mapping[str, Tensor]) -> float:
    """Variance of the error that rounding made of an entry."""
    for form, tensor in tensors.items():
        if base_name(form) != name or form.endswith((INDICES, SCALE)):
            continue
        if _CODES.fullmatch(form):  # rounded up or down at random: the error is triangular, at most one step either way
            step = tensors[form.rpartition("~")[0] + SCALE].double()
            return float(step.square().mean()) / 6
        if tensor.dtype in (torch.float16, torch.bfloat16):  # to the nearest: uniform, at most half a step either way
            step = 2.0 ** torch.frexp(tensor.float()).exponent.double() * torch.finfo(tensor.dtype).eps / 2
            return float(step.square().mean()) / 12
    return 0.0


def _sent(indices: Tensor, shape: torch.Size) -> Tensor:
    found = torch.zeros(shape.numel(), dtype=torch.bool)
    found[indices.long()] = True
    return found.view(shape)
