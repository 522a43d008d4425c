"""Gradient matching for many reconstructions at once: the distance and its gradient with respect to the unknowns.

Per-reconstruction gradients come from ``vmap(grad(...))``: measured on CPU for the LeNet of DLG, 32 images at once cost a fifth
of one at a time, and less than weight gradients written out with ``unfold`` and products.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.multistep import as_gradient
from attacks.observation import Observation, Split
from attacks.reconstruction import Inapplicable, differentiating_twice, require_labels
from attacks.variables import Layout, Pixels

Data = dict[str, Tensor]
"""What differs between reconstructions, by name, each ``(N, ...)``; within ``vmap`` without the first dimension."""
Loss = Callable[[Mapping[str, Tensor], Data], Tensor]
"""(unknowns, data) of one reconstruction -> its loss ``()``."""


@dataclass(frozen=True)
class Objective:
    """``N`` losses of ``N`` rows of unknowns; a :data:`attacks.lbfgs.Function`."""

    loss: Loss
    layout: Layout
    data: Data

    @property
    def n(self) -> int:
        return len(next(iter(self.data.values())))

    def __call__(self, rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Problem ``rows[i]`` at ``points[i]``: values ``(k,)``, gradients ``(k, p)``."""
        data = self.data if len(rows) == self.n else self.select(rows).data  # rows are distinct and in order
        points = points.detach().requires_grad_()
        value = vmap(lambda row, data: self.loss(self.layout.unpack(row), data))(points, data)
        (gradient,) = torch.autograd.grad(value.sum(), points)  # a sixth cheaper than one more transform of torch.func
        return value.detach(), gradient

    def select(self, rows: Tensor) -> Objective:
        """Only the problems ``rows``, renumbered."""
        return Objective(self.loss, self.layout, {name: tensor[rows] for name, tensor in self.data.items()})


@dataclass(frozen=True)
class Case:
    """Observations that are attacked together: same net, same tensors shared, same number of samples.

    Attributes:
        net: architecture, in evaluation mode, without parameters that mean anything.
        seen: the gradients, by name ``(N, ...)``.
        weights: what is known of the parameters: ``(...)`` where all observations agree.
        stacked: those of ``weights`` that differ, ``(N, ...)``.
        samples: ``B`` per observation.
        labels: ``(N, B)`` where the threat model gives them.
    """

    net: Split
    seen: Data
    weights: Data
    stacked: Data
    samples: int
    shape: tuple[int, ...]
    classes: int
    pixels: Pixels
    labels: Tensor | None

    @property
    def n(self) -> int:
        return len(next(iter(self.seen.values())))

    def shared_top(self) -> bool:
        """Whether the gradient of the whole of ``top`` was seen."""
        return all(f"top.{name}" in self.seen for name, _ in self.net.top.named_parameters())

    def knows_top(self) -> bool:
        """Whether all weights of ``top`` are known."""
        return all(f"top.{name}" in self.weights or f"top.{name}" in self.stacked for name, _ in self.net.top.named_parameters())

    def data(self) -> Data:
        """What the losses below need of every reconstruction."""
        seen = {f"seen:{name}": tensor for name, tensor in self.seen.items()}
        return seen | {f"weight:{name}": tensor for name, tensor in self.stacked.items()}

    def weights_of(self, data: Data) -> Data:
        """All known weights of one reconstruction."""
        return self.weights | under("weight:", data)


def under(prefix: str, data: Mapping[str, Tensor]) -> Data:
    """The entries whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in data.items() if name.startswith(prefix)}


def case_of(observations: Sequence[Observation], bounded: bool, scale_free: bool = False) -> Case:
    """Put observations together.

    Args:
        bounded: whether images are kept in [0, 1] (:class:`Pixels`).
        scale_free: whether the distance does not mind a factor, as the cosine; otherwise a weight change needs a known schedule.

    Raises:
        Inapplicable: nothing was shared, they do not belong together, or no label had to do with them.
    """
    first = observations[0]
    require_labels(first)
    if not all(o.shared for o in observations):
        raise Inapplicable("no layer is shared: there is no gradient to match")
    if not scale_free and any(o.kind == "change" and o.schedule is None for o in observations):
        raise Inapplicable("a change of the weights is a gradient only up to a factor where the schedule is not known")
    samples = first.num_examples or 1  # who does not know tries one
    alike = all(
        (o.num_examples or 1) == samples and o.shared.keys() == first.shared.keys() and o.input_shape == first.input_shape
        for o in observations
    )
    if not alike:
        raise Inapplicable("observations attacked together must share the same tensors for the same number of samples")
    gradients = [as_gradient(o).shared for o in observations]
    names = [name for name, _ in first.net.named_parameters() if name in first.shared]
    if not names:
        raise Inapplicable(f"no shared tensor is a parameter of the net: {', '.join(first.shared)}")
    weights: Data = {}
    stacked: Data = {}
    for name, weight in first.weights.items():
        same = all(o.weights[name] is weight or torch.equal(o.weights[name], weight) for o in observations)
        (weights if same else stacked)[name] = weight if same else torch.stack([o.weights[name] for o in observations])
    dtype = next(iter(first.shared.values())).dtype
    mean, std = (torch.tensor(v, dtype=dtype).view(-1, 1, 1) for v in (first.mean, first.std))
    _twice_differentiable(first)
    labels = None if first.labels is None else torch.stack([o.labels.view(-1) for o in observations if o.labels is not None])
    return Case(
        copy.deepcopy(first.net).eval().requires_grad_(False),
        {name: torch.stack([g[name] for g in gradients]) for name in names},
        weights,
        stacked,
        samples,
        tuple(first.input_shape),
        first.classes,
        Pixels(mean, std, bounded),
        labels,
    )


def gradient_by_labels(net: nn.Module, weights: Data, shared: Sequence[str], inputs: Tensor, targets: Tensor) -> Data:
    """Gradient of the mean soft cross-entropy of ``inputs`` ``(B, C, H, W)`` against distributions ``(B, classes)``, by name."""

    def loss(some: Data) -> Tensor:
        logits = functional_call(net, weights | some, (inputs,))
        entropy: Tensor = -(targets * logits.log_softmax(-1)).sum(-1).mean()
        return entropy

    return dict(grad(loss)({name: weights[name] for name in shared}))


def gradient_by_signal(
    net: nn.Module, at: nn.Module, weights: Data, shared: Sequence[str], inputs: Tensor, signal: Tensor
) -> Data:
    """The same where not a loss but its gradient ``signal`` ``(B, ...)`` at the output of the module ``at`` is given."""

    def product(some: Data) -> Tensor:
        outputs: list[Tensor] = []
        hook = at.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            functional_call(net, weights | some, (inputs,))
        finally:
            hook.remove()
        return (outputs[0] * signal).sum() / len(inputs)

    return dict(grad(product)({name: weights[name] for name in shared}))


def _twice_differentiable(observation: Observation) -> None:
    """One second derivative by plain autograd, which is stricter than ``torch.func``: that passes over a missing one.

    Raises:
        Inapplicable: an operation of the net has none; it is named.
    """
    net = copy.deepcopy(observation.net).eval().requires_grad_(True)
    example = next(iter(observation.shared.values()))
    inputs = torch.rand(1, *observation.input_shape, device=example.device)
    with differentiating_twice():
        outputs = net.float()(inputs)
        first = torch.autograd.grad(outputs.square().sum(), list(net.parameters()), create_graph=True, allow_unused=True)
        # All the way back, and not to the inputs alone: a missing derivative may hang on a branch that does not lead there.
        torch.stack([g.square().sum() for g in first if g is not None]).sum().backward()  # type: ignore[no-untyped-call]
