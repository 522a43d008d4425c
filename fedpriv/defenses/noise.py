"""Common parts of additive noise: the tensors it is added to, and the signal-to-noise ratio per layer.

The model tensors of an upload are weights, and the weights that the server sent are known to both sides: noise on the weights is
the same noise on the change. How much a variance hides depends on the size of that change, so the ratio is reported. It is no
guarantee: without a bound on the change (``clip``) no noise has an epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedpriv.defenses.change import changes, model_tensors
from fedpriv.parameters import layer_of
from fedpriv.wire import Payload, TransformContext
from fedpriv.wire.coding import RUNNING_VAR

Draw = Callable[[torch.Size], Tensor]
"""Noise of variance one."""

SNR = "snr_db/"
"""Prefix of the reported ratios."""
_SILENCE = 1e-30  # power of a change that is exactly zero, so that its ratio has a logarithm


def add_noise(payload: Payload, context: TransformContext, variance: float, draw: Draw, note: str) -> Payload:
    """Add ``sqrt(variance) * draw`` to every entry of the model tensors and report the ratio per layer."""
    if not variance:
        return payload.with_tensors(payload.tensors, note)
    report_snr(payload, context, variance)
    noisy = dict(payload.tensors)
    for name, tensor in model_tensors(payload).items():
        noise = math.sqrt(variance) * draw(tensor.shape)
        noisy[name] = tensor + noise.to(tensor)
        if name.endswith(RUNNING_VAR):
            noisy[name].clamp_(min=0)  # a negative running variance would make outputs NaN
    return payload.with_tensors(noisy, note)


def report_snr(payload: Payload, context: TransformContext, variance: float) -> None:
    """``10 log10(mean square of the layer's change / variance)`` in dB, weight and bias of a layer together."""
    power: dict[str, list[float]] = {}
    for name, change in changes(payload, context.received).items():
        of_layer = power.setdefault(layer_of(name) or name, [0.0, 0])
        of_layer[0] += float(change.double().square().sum())
        of_layer[1] += change.numel()
    for layer, (total, count) in power.items():
        if count:
            context.report(SNR + layer, 10 * math.log10(max(total / count, _SILENCE) / variance))
