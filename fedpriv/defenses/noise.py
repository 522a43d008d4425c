"""Additive noise, shared by the Gaussian and the Laplace defence, and its signal-to-noise ratio in each layer.

Since the server knows the weights that it sent, noise on the uploaded weights is noise on the client's change. How much a
variance hides depends on the size of the change, so the ratio is reported. It is no guarantee: without a bound on the change
(``clip``), there is no epsilon.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.defenses.change import changes, model_tensors
from fedpriv.defenses.stage import Stage, transform
from fedpriv.parameters import layer_of
from fedpriv.wire import Payload, RandomStream, TransformContext
from fedpriv.wire.coding import RUNNING_VAR

SNR = "snr_db/"
"""Prefix of the metrics with signal-to-noise ratios."""
_SILENCE = 1e-30  # stands for a power of zero, which has no logarithm


@transform
class Noise:
    """Add noise to every entry of the model tensors, and report the signal-to-noise ratio of each layer; a base class."""

    stage: ClassVar[Stage] = Stage.NOISE
    variance: float = Field(1e-3, ge=0, description="variance of the noise per entry; 0 adds none")

    def draw(self, noise: RandomStream, shape: torch.Size) -> Tensor:
        """Noise of this shape with variance 1."""
        raise NotImplementedError

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        if not self.variance:
            return payload.with_tensors(payload.tensors, str(self))
        report_snr(payload, context, self.variance)
        noisy = dict(payload.tensors)
        for name, tensor in model_tensors(payload).items():
            noise = math.sqrt(self.variance) * self.draw(context.noise, tensor.shape)
            noisy[name] = tensor + noise.to(tensor)
            if name.endswith(RUNNING_VAR):
                noisy[name].clamp_(min=0)  # a negative running variance would make outputs NaN
        return payload.with_tensors(noisy, str(self))

    @property
    def noise_variance(self) -> float:
        return self.variance


def report_snr(payload: Payload, context: TransformContext, variance: float) -> None:
    """Report ``10 log10(mean square of the change / variance)`` in dB for each layer (a weight with its bias)."""
    power: dict[str, list[float]] = {}
    for name, change in changes(payload, context.received).items():
        layer_power = power.setdefault(layer_of(name) or name, [0.0, 0])
        layer_power[0] += float(change.double().square().sum())
        layer_power[1] += change.numel()
    for layer, (total, count) in power.items():
        if count:
            context.report(SNR + layer, 10 * math.log10(max(total / count, _SILENCE) / variance))
