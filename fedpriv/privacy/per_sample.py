"""Clipped sums of per-sample gradients, the only step of DP-SGD that uses the data (Abadi et al., CCS 2016, alg. 1).

The gradients are computed by ``torch.func``: a sample's gradient is that of the loss of this sample alone, also for losses that
use the parameters (a proximal term) or frozen teachers. (The hooks of Opacus' ``GradSampleModule`` see only gradients through
layers; for plain losses, tests compare both.) Nets in which samples interact, as through BatchNorm, are refused at set-up.

A gradient that is not finite counts as zero. Otherwise a single sample would end the local update without an upload, which no
noise hides; and a server could cause that by weights that are too large for some samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedpriv.attacks.core.functional import functional_call
from fedpriv.interfaces import Loss, Step
from fedpriv.methods.base import Phase
from fedpriv.models.net import Net, Outputs
from fedpriv.samples import Inputs, from_tensors, take, tensors

ENTRIES = 2**24
"""Largest number of entries of per-sample gradients in memory at a time (64 MB)."""

Fields = dict[str, Tensor]
"""The tensors of an ``Outputs`` by name, for ``vmap``."""


class Entrance(nn.Module):
    """The net's forward pass, from inputs or from features."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Inputs, from_features: bool) -> Outputs:
        return self.net.from_features(x) if from_features and isinstance(x, Tensor) else self.net(x)


def fields_of(outputs: Outputs) -> Fields:
    """The outputs of a batch, for ``vmap``."""
    return {name: tensor for name, tensor in vars(outputs).items() if tensor is not None}


def outputs_of(fields: Fields) -> Outputs:
    """The outputs of one sample within ``vmap``, as a batch of one."""
    return Outputs(**{"prediction": None, **{name: tensor[None] for name, tensor in fields.items()}})  # type: ignore[arg-type]


class ClippedSums:
    """The common part of per-sample and ghost clipping.

    Args:
        parameters: the net's parameters by name; those of the phase's roles are trained.
        received: the round's download, by name.
        from_features: whether samples are features ``(d,)`` of a frozen encoder.
        clip: the clipping bound C.
        memo: :attr:`fedpriv.interfaces.LocalUpdate.memo`.
    """

    def __init__(
        self, net: Net, parameters: Mapping[str, Tensor], received: Mapping[str, Tensor], phase: Phase, loss: Loss,
        from_features: bool, clip: float, memo: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self._net, self._clip = Entrance(net), clip
        self._parameters = parameters
        self._trained = {name: tensor for name, tensor in parameters.items() if name.split(".")[0] in phase.trains}
        self._received, self._phase, self._loss, self._from_features = received, phase, loss, from_features
        self._memo = {} if memo is None else memo


class PerSampleGradients(ClippedSums):
    """Clipped sums for a phase, from per-sample gradients; arguments as for :class:`ClippedSums`."""

    @cached_property
    def _constant(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self._parameters.items()}

    @cached_property
    def _gradients(self) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
        return vmap(grad_and_value(self._sample_loss), in_dims=(None, 0, 0, 0), randomness="different")

    def _sample_loss(
        self, trained: dict[str, Tensor], sample: dict[str, Tensor], label: Tensor, teachers: dict[str, Fields]
    ) -> Tensor:
        state = {"net." + name: tensor for name, tensor in trained.items()}
        batch_of_one = from_tensors({name: part[None] for name, part in sample.items()})
        outputs = functional_call(self._net, state, (batch_of_one, self._from_features))
        frozen = {name: outputs_of(fields) for name, fields in teachers.items()}
        parameters = {**self._constant, **trained}
        received, trains = self._received, self._phase.trains
        return self._loss(Step(label[None], outputs, parameters, received, trains, frozen.__getitem__, memo=self._memo))

    def __call__(
        self, samples: Inputs, labels: Tensor, teachers: Mapping[str, Outputs]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The sum over the samples of ``g_i min(1, C / ||g_i||)`` by name, the losses ``(B,)``, and ``||g_i||`` ``(B,)``.

        A gradient that is not finite counts as zero.
        """
        trained = {name: self._constant[name] for name in self._trained}
        total = {name: torch.zeros_like(tensor) for name, tensor in trained.items()}
        fields = {name: fields_of(out) for name, out in teachers.items()}
        losses, lengths = [], []
        chunk = max(1, ENTRIES // max(1, sum(tensor.numel() for tensor in trained.values())))
        for part in torch.split(torch.arange(len(labels), device=labels.device), chunk):
            if not len(part):
                continue
            teachers_of_part = {name: {field: tensor[part] for field, tensor in out.items()} for name, out in fields.items()}
            gradients, values = self._gradients(trained, tensors(take(samples, part)), labels[part], teachers_of_part)
            norms = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
            factors, finite = (self._clip / norms).clamp(max=1.0), norms.isfinite()
            if not finite.all():
                factors = factors.where(finite, 0.0)
                # A factor of zero would not remove an infinite gradient.
                gradients = {name: g.where(finite.view(-1, *[1] * (g.ndim - 1)), 0.0) for name, g in gradients.items()}
            for name, gradient in gradients.items():
                total[name] += torch.tensordot(factors, gradient, dims=1)
            losses.append(values.detach())
            lengths.append(norms)
        return total, torch.cat(losses) if losses else labels.new_zeros(0), torch.cat(lengths) if lengths else labels.new_zeros(0)
