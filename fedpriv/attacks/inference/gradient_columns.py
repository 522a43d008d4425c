"""The columns of a regression of messages on gradients (:mod:`fedpriv.attacks.inference.gradient_regression`), and their inner
products, tensor by tensor.

The gradient of a linear layer's weight at one sample is the outer product of the gradient at the layer's outputs and its inputs.
So the inner products of such gradients follow from these two vectors of each sample, without the gradients themselves.

If the gradients of all samples do not fit into memory, the entries with the largest mean gradient of the candidates are used:
even far fewer entries would determine the coefficients, so little is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.labels import label_loss
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.gradients.multistep import as_gradient, decay_before_clipping, rounding
from fedpriv.attacks.gradients.per_sample import LabelledSamples, batch_gradient, per_sample

MEMORY = 2**29
"""Bytes of gradients that are held at once."""
_SINGLE = 1e-6
"""Relative error of a gradient in single precision."""


@dataclass(frozen=True)
class Products:
    """The inner products of the columns with each other and with a message, on one tensor.

    Attributes:
        gram: of the columns ``(q, q)``: the candidates, the attacker's own samples, the nuisance columns.
        message: of the columns with the message ``(q,)``.
        square: of the message with itself.
        entries: number of entries that were sent.
        error: known variance of an entry of the message.
        size: mean square of an entry of the deviation of a sample's gradient.
    """

    gram: Tensor
    message: Tensor
    square: float
    entries: int
    error: float
    size: float


@dataclass(frozen=True)
class Dense:
    """Gradients of a tensor, in double precision ``(n, p)``."""

    rows: Tensor

    @cached_property
    def gram(self) -> Tensor:
        """The inner products with each other ``(n, n)``."""
        return self.rows @ self.rows.T

    def along(self, vector: Tensor) -> Tensor:
        """The inner products with a vector ``(p,)``: ``(n,)``."""
        return self.rows @ vector

    def and_one(self, row: Tensor) -> Dense:
        """With one more ``(p,)``."""
        return Dense(torch.cat([self.rows, row[None]]))

    def at(self, entries: Tensor) -> Dense:
        """On some entries ``(p,)``, bool."""
        return Dense(self.rows[:, entries])


@dataclass(frozen=True)
class Outer:
    """Gradients of a weight ``(out, in)``: of samples, each an outer product, and further ones; as :class:`Dense`.

    Attributes:
        left: the gradients at the layer's outputs ``(n, out)``.
        right: the layer's inputs ``(n, in)``.
        further: ``(m, out * in)``.
    """

    left: Tensor
    right: Tensor
    further: Tensor

    @cached_property
    def gram(self) -> Tensor:
        """The inner products of all ``(n + m, n + m)``."""
        n, own = len(self.left), (self.left @ self.left.T) * (self.right @ self.right.T)
        across = torch.stack([self.along(gradient) for gradient in self.further], 1) if len(self.further) else own[:, :0]
        return torch.cat([torch.cat([own, across[:n]], 1), across.T])

    def along(self, vector: Tensor) -> Tensor:
        """The inner products with a vector ``(out * in,)``: ``(n + m,)``."""
        of_samples = ((self.left @ vector.view(self.left.shape[1], -1)) * self.right).sum(1)
        return torch.cat([of_samples, self.further @ vector])

    def and_one(self, row: Tensor) -> Outer:
        """With one more ``(out * in,)``."""
        return replace(self, further=torch.cat([self.further, row[None]]))

    def at(self, entries: Tensor) -> Dense:
        """On some entries ``(out * in,)``, bool."""
        samples = (self.left[:, :, None] * self.right[:, None]).flatten(1)
        return Dense(torch.cat([samples, self.further])[:, entries])


@dataclass(frozen=True)
class Columns:
    """The columns of the regression on one tensor.

    Attributes:
        gradients: of the candidates, of the attacker's own samples, and further ones: s in all.
        mixed: each column as a combination of them ``(q, s)``.
        entries: the entries of the tensor that are used; ``None``: all.
    """

    gradients: Dense | Outer
    mixed: Tensor
    entries: Tensor | None


def columns(
    net: nn.Module,
    names: Sequence[str],
    candidates: LabelledSamples,
    public: LabelledSamples,
    path: Sequence[Mapping[str, Tensor]],
    clip: float | None,
    certain: LabelledSamples | None = None,
) -> Iterator[tuple[str, Columns]]:
    """The columns for each tensor; arguments as for :func:`fedpriv.attacks.inference.gradient_regression.equations`.

    They are the deviations of candidates and of the attacker's own samples from the means of their classes, and these means at
    every point of the path; last, the means of the ``certain`` samples of each class.
    """
    classes = torch.unique(public.classes)
    entries = _entries(net, names, path[0], candidates, len(public))
    parts = candidates, public
    whole = clip is None and all(chosen is None for chosen in entries.values())
    outer = [_outer_products(net, path[0], names, part) if whole else {} for part in parts]
    factored = outer[0].keys() & outer[1].keys()
    rest = [name for name in names if name not in factored]
    dense = [_gradients(net, path[0], rest, entries, part, clip) if rest else {} for part in parts]
    points = [(point, public) for point in path[1:]] + [(point, certain) for point in path if certain is not None]
    later = [
        batch_gradient(net, point, names, samples.of_class(label))
        for point, samples in points
        for label in torch.unique(samples.classes).tolist()
    ]
    mixed = _mixed(torch.searchsorted(classes, torch.cat([candidates.classes, public.classes])), len(public), len(later))
    for name in names:
        further = [_at(gradient.pop(name), entries[name])[None] for gradient in later]
        if name in factored:
            left, right = (torch.cat(vectors).double() for vectors in zip(*(of.pop(name) for of in outer), strict=True))
            gradients: Dense | Outer = Outer(
                left, right, torch.cat([left.new_zeros(0, left.shape[1] * right.shape[1]), *further])
            )
        else:
            gradients = Dense(torch.cat([*(of.pop(name) for of in dense), *further]).double())
        yield name, Columns(gradients, mixed, entries[name])


def _mixed(classes: Tensor, own: int, further: int) -> Tensor:
    """The columns as combinations of the gradients of samples and of ``further`` ones.

    Args:
        classes: of the samples, from 0 on ``(n,)``; the last ``own`` of them make the means of the classes.
    """
    member = F.one_hot(classes).double()
    means = member.T.clone()
    means[:, :-own] = 0
    means /= means.sum(1, keepdim=True)
    of_samples = torch.cat([torch.eye(len(classes), device=classes.device) - member @ means, means])
    diagonal: Tensor = torch.block_diag(  # type: ignore[no-untyped-call]
        of_samples, torch.eye(further, device=classes.device, dtype=torch.double)
    )
    return diagonal


def _outer_products(
    net: nn.Module, weights: Mapping[str, Tensor], names: Sequence[str], samples: LabelledSamples
) -> dict[str, tuple[Tensor, Tensor]]:
    """The gradients of linear layers' weights and biases at the samples, as outer products ``(n, out)`` and ``(n, in)``; the
    second factor of a bias is 1.

    Only of layers that get one vector a sample, and of tensors that are used nowhere else.
    """
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def noting(layer: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        return lambda _, inputs, outputs: calls.setdefault(layer, []).append((inputs[0].detach(), outputs))

    hooks = [
        module.register_forward_hook(noting(layer)) for layer, module in net.named_modules() if isinstance(module, nn.Linear)
    ]
    copies = {name: weights[name].detach().clone().requires_grad_() for name in names}
    try:
        logits = functional_call(net, {**weights, **copies}, (samples.joined(samples.inputs),))
    finally:
        for hook in hooks:
            hook.remove()
    once = {layer: of[0] for layer, of in calls.items() if len(of) == 1 and of[0][1].ndim == 2 and of[0][1].requires_grad}
    tensors = [(layer, name) for layer in once for name in (f"{layer}.weight", f"{layer}.bias") if name in copies]
    if not tensors:
        return {}
    wanted = [*(copies[name] for _, name in tensors), *(outputs for _, outputs in once.values())]
    gradients = torch.autograd.grad(len(samples) * label_loss(logits, samples.labels), wanted, materialize_grads=True)
    left = dict(zip(once, gradients[len(tensors) :], strict=True))
    products = dict[str, tuple[Tensor, Tensor]]()
    for (layer, name), total in zip(tensors, gradients, strict=False):
        inputs = once[layer][0] if name.endswith(".weight") else left[layer].new_ones(len(samples), 1)
        here = (left[layer].T @ inputs).view_as(total)
        scale = float(total.abs().max())
        if math.isfinite(scale) and torch.allclose(here, total, rtol=1e-3, atol=1e-4 * scale):
            products[name] = left[layer], inputs
    return products


def _entries(
    net: nn.Module, names: Sequence[str], weights: Mapping[str, Tensor], candidates: LabelledSamples, others: int
) -> dict[str, Tensor | None]:
    """The positions of the entries of each tensor that are used; ``None``: all."""
    total = sum(weights[name].numel() * weights[name].element_size() for name in names)
    share = MEMORY / (total * (len(candidates) + others))
    if share >= 1:
        return dict.fromkeys(names)
    mean = batch_gradient(net, weights, names, candidates)
    return {name: tensor.abs().topk(math.ceil(share * tensor.numel())).indices for name, tensor in mean.items()}


def _at(flat: Tensor, entries: Tensor | None) -> Tensor:
    return flat if entries is None else flat[..., entries]


def _gradients(
    net: nn.Module,
    weights: Mapping[str, Tensor],
    names: Sequence[str],
    entries: Mapping[str, Tensor | None],
    samples: LabelledSamples,
    clip: float | None,
) -> dict[str, Tensor]:
    """Entries of the gradients of samples by name ``(n, p)``, clipped where DP-SGD clips them."""
    wanted = names if clip is None else [name for name, _ in net.named_parameters()]
    gradients: dict[str, list[Tensor]] = {name: [] for name in names}
    for part in per_sample(net, weights, wanted, samples, MEMORY // 4):
        factors = None
        if clip is not None:
            norms = torch.stack([gradient.square().sum(1) for gradient in part.values()]).sum(0).sqrt()
            factors = (clip / norms).clamp(max=1)[:, None]
        for name in names:
            chosen = _at(part[name], entries[name])
            gradients[name].append(chosen if factors is None else chosen * factors)
    return {name: torch.cat(parts) for name, parts in gradients.items()}


@dataclass(frozen=True)
class Sent:
    """A message, as it was sent and as a gradient.

    Attributes:
        left: what weight decay added to a gradient that was clipped.
    """

    message: Observation
    gradient: Observation
    left: Mapping[str, Tensor]

    @classmethod
    def of(cls, message: Observation) -> Sent:
        """The message, read as a gradient."""
        return cls(message, as_gradient(message), decay_before_clipping(message))

    def products(self, name: str, columns: Columns, own: slice) -> Products:
        """The inner products on one tensor; ``own``: the columns of the attacker's own samples."""
        gradients, mixed, entries = columns.gradients, columns.mixed, columns.entries
        seen, kept = _at(self.gradient.shared[name].flatten(), entries).to(mixed), self.gradient.altered.kept.get(name)
        if self.left:
            left = self.left.get(name, torch.zeros_like(self.gradient.shared[name]))
            gradients = gradients.and_one(_at(left.flatten(), entries).to(mixed))
            mixed = torch.block_diag(mixed, mixed.new_ones(1, 1))  # type: ignore[no-untyped-call]
        if kept is not None:
            sent = _at(kept.flatten(), entries).to(mixed.device)
            gradients, seen = gradients.at(sent), seen[sent]
        square = float(seen.square().sum())
        error = self.gradient.altered.variance.get(name, 0.0) + rounding(self.message, name) ** 2
        error += _SINGLE**2 * square / max(1, len(seen))
        gram = (mixed @ gradients.gram @ mixed.T).cpu()
        size = float(gram.diagonal()[own].mean()) / max(1, len(seen))
        return Products(gram, (mixed @ gradients.along(seen)).cpu(), square, len(seen), error, size)
