"""Per-sample gradients of the loss on labels, and the gradient of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.labels import groups, label_loss
from fedpriv.attacks.gradients.batching import vmap_or_loop

_CHUNK = 64
"""Largest number of samples per batch."""


@dataclass(frozen=True)
class LabelledSamples:
    """Samples with labels.

    Attributes:
        inputs: tensors ``(n, ...)`` by name, normalised.
        labels: ``(n,)``.
        joined: maps such tensors to what the net takes.
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor
    joined: Callable[[Mapping[str, Tensor]], Any]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> Tensor:
        """The class of each sample ``(n,)``, see :func:`fedpriv.attacks.core.labels.groups`."""
        return groups(self.labels)

    def of_class(self, label: int) -> LabelledSamples:
        """The samples of one class."""
        which = self.classes == label
        return LabelledSamples({name: tensor[which] for name, tensor in self.inputs.items()}, self.labels[which], self.joined)


def per_sample(
    net: nn.Module, weights: Mapping[str, Tensor], names: Sequence[str], samples: LabelledSamples, memory: int
) -> Iterator[dict[str, Tensor]]:
    """Per-sample gradients of the loss on labels, in batches of tensors by name ``(b, p)``.

    Args:
        net: in evaluation mode, so that samples do not depend on each other.
        weights: all parameters and buffers.
        names: the parameters to differentiate by.
        memory: largest size of a batch of gradients, in bytes.
    """
    # A copy of the weights per sample and plain autograd: `torch.func.grad` takes seconds to import.
    size = sum(weights[name].numel() * weights[name].element_size() for name in names)
    chunk = max(1, min(_CHUNK, memory // max(1, size)))
    inputs = list(samples.inputs)

    def loss(copies: Mapping[str, Tensor], x: Mapping[str, Tensor], label: Tensor) -> Tensor:
        logits = functional_call(net, {**weights, **copies}, (samples.joined({name: x[name][None] for name in inputs}),))
        return label_loss(logits, label[None])

    for start in range(0, len(samples), chunk):
        labels = samples.labels[start : start + chunk]
        copies = {
            name: weights[name].detach().expand(len(labels), *weights[name].shape).clone().requires_grad_() for name in names
        }
        losses = vmap_or_loop(
            loss, copies, {name: tensor[start : start + chunk] for name, tensor in samples.inputs.items()}, labels
        )
        gradients = torch.autograd.grad(losses.sum(), list(copies.values()), materialize_grads=True)
        yield {name: gradient.flatten(1) for name, gradient in zip(names, gradients, strict=True)}


def batch_gradient(
    net: nn.Module, weights: Mapping[str, Tensor], names: Sequence[str], samples: LabelledSamples
) -> dict[str, Tensor]:
    """The gradient of the samples' mean loss, by name ``(p,)``; arguments as for :func:`per_sample`."""
    copies = {name: weights[name].detach().clone().requires_grad_() for name in names}
    logits = functional_call(net, {**weights, **copies}, (samples.joined(samples.inputs),))
    gradients = torch.autograd.grad(label_loss(logits, samples.labels), list(copies.values()), materialize_grads=True)
    return {name: gradient.flatten() for name, gradient in zip(names, gradients, strict=True)}
