"""The effect of an upload's transforms on the weight change, from its wire format and the transforms' options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.attacks.core.altered import Altered
from fedpriv.wire import Sealed, Transform
from fedpriv.wire.coding import INDICES, SCALE, base_name, coded, is_model


def alteration(sealed: Sealed, received: Mapping[str, Tensor], transforms: Sequence[Transform]) -> Altered:
    """The difference between the change that the server decodes and the one that the client computed, by the net's names.

    Rounding and pruning can be seen from the message. Clipping and noise must be declared by the transforms.

    Args:
        received: the tensors that the client was sent, by name.
    """
    tensors = sealed.tensors()
    names = dict.fromkeys(base_name(name) for name in tensors if is_model(name))
    stated = declared(names, transforms)
    variance = {name: stated.variance.get(name, 0.0) + error for name, error in _rounding(tensors).items()}
    kept = {name: _kept(tensors[name + INDICES], received[name].shape) for name in names if name + INDICES in tensors}
    return replace(stated, variance={**stated.variance, **variance}, kept=kept)


def declared(names: Iterable[str], transforms: Sequence[Transform]) -> Altered:
    """The effect that transforms declare on tensors of these names: ``rescales``, and ``noise_variance`` per entry."""
    noise = float(sum(getattr(transform, "noise_variance", 0.0) for transform in transforms))
    rescaled = any(getattr(transform, "rescales", False) for transform in transforms)
    return Altered(rescaled, dict.fromkeys(names, noise) if noise else {})


def _rounding(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Variance of an entry's rounding error, by the net's names, for tensors that were rounded."""
    variance = {}
    for form, tensor in tensors.items():
        if not is_model(form) or form.endswith((INDICES, SCALE)):
            continue
        if codes := coded(form):  # rounded up or down at random: the error is triangular, at most one step either way
            step = tensors[codes[0] + SCALE].double()
            variance[base_name(form)] = float(step.square().mean()) / 6
        elif tensor.dtype in (torch.float16, torch.bfloat16):  # to the nearest: uniform, at most half a step either way
            kind = torch.finfo(tensor.dtype)
            step = 2.0 ** torch.frexp(tensor.float()).exponent.double() * kind.eps / 2
            step = step.where(tensor != 0, kind.smallest_normal * kind.eps)  # what is smaller is 0
            variance[base_name(form)] = float(step.square().mean()) / 12
    return variance


def _kept(indices: Tensor, shape: torch.Size) -> Tensor:
    """Which entries of a tensor of that shape were sent."""
    kept = torch.zeros(shape.numel(), dtype=torch.bool)
    kept[indices.long()] = True
    return kept.view(shape)
