"""Gradient matching (Zhu et al. 2019) for many reconstructions at once: the loss and its gradient at the unknowns.

Dummy images ``x`` and labels ``y`` are optimised until the gradient that they cause agrees with the observed one,
``min_{x, y} D(dL(x, y)/dW, g)``. The attacker knows the net, the weights ``W`` and the client's loss. Reconstructions are
batched by ``vmap``: with DLG's LeNet on CPU, 32 images at once cost a fifth of 32 images one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import grad

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, SplitNet, in_clients_mode, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable, differentiating_twice, require_labels
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.distances import Distance, ObservedGradient, matching_loss
from fedpriv.attacks.gradients.multistep import as_gradient, decay_before_clipping
from fedpriv.attacks.gradients.variables import Cells, Layout, Pixels

Data = dict[str, Tensor]
"""Tensors by name, one per reconstruction: ``(N, ...)``; within ``vmap`` without the first dimension."""
PRUNED_ERROR = 1e-4
"""Assumed squared error of an entry of a pruned gradient, as a share of the mean square. The entries sent are exact, but too few
to do without a prior."""
EXACT_ERROR = 1e-8
"""Assumed squared error of an entry of an exact tensor beside noisy ones, so that it does not outweigh them entirely."""
Loss = Callable[[Mapping[str, Tensor], Data], Tensor]
"""Unknowns and data of one reconstruction -> its loss ``()``."""


@dataclass(frozen=True)
class Objective:
    """The losses of ``N`` reconstructions as a function of their unknowns; a :data:`fedpriv.attacks.optimise.lbfgs.Function`.

    Attributes:
        loss: of one reconstruction.
        layout: of its unknowns in a vector ``(p,)``.
        data: the fixed inputs of all reconstructions.
        single: evaluate a lone reconstruction without ``vmap``, which saves a quarter of the time with BatchNorm.
        together: the losses ``(k,)`` of ``k`` reconstructions at once, if that is faster than ``vmap`` of ``loss``.
    """

    loss: Loss
    layout: Layout
    data: Data
    single: bool = False
    together: Loss | None = None

    @property
    def n(self) -> int:
        return len(next(iter(self.data.values())))

    def __call__(self, rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Losses ``(k,)`` and gradients ``(k, p)`` of the reconstructions ``rows`` ``(k,)`` at ``points`` ``(k, p)``."""
        data = self.data if len(rows) == self.n else self.select(rows).data  # rows are distinct and in order
        points = points.detach().requires_grad_()

        def single_loss(row: Tensor, data: Data) -> Tensor:
            return self.loss(self.layout.unpack(row), data)

        if self.together is not None:
            value = self.together(self.layout.unpack(points), data)
        elif self.single and len(rows) == 1:
            value = single_loss(points[0], {name: tensor[0] for name, tensor in data.items()})[None]
        else:
            value = vmap_or_loop(single_loss, points, data)
        (gradient,) = torch.autograd.grad(value.sum(), points)  # a sixth cheaper than one more transform of torch.func
        return value.detach(), gradient

    def select(self, rows: Tensor) -> Objective:
        """The objective of the reconstructions ``rows`` alone."""
        return replace(self, data={name: tensor[rows] for name, tensor in self.data.items()})


@dataclass(frozen=True)
class Case:
    """``N`` observations that are attacked together: same net, same shared tensors, same number of samples.

    Attributes:
        net: the architecture in the client's mode; its parameters are NaN.
        observed: the gradients, by name ``(N, ...)``.
        weights: known weights that all observations agree on, by name.
        stacked: known weights that differ between observations, by name ``(N, ...)``.
        samples: ``B``, per observation.
        labels: ``(N, B)`` if the threat model gives them.
        rescaled: whether the gradients' norm is unknown (clipping, unknown schedule).
        kept: masks of the entries that were sent, by name ``(N, ...)``; a tensor without a mask was sent whole.
        variance: expected squared error of an entry, by name ``(N,)``; empty if the gradients are exact.
        decay: the part of the gradient due to weight decay before clipping, by name ``(N, ...)``.
    """

    net: SplitNet
    observed: Data
    weights: Data
    stacked: Data
    samples: int
    shape: tuple[int, ...]
    classes: int
    pixels: Pixels | Cells
    labels: Tensor | None
    rescaled: bool
    kept: Data
    variance: Data
    decay: Data

    @property
    def n(self) -> int:
        return len(next(iter(self.observed.values())))

    def shared_top(self) -> bool:
        """Whether the gradients of all of ``top`` were sent."""
        return all(name in self.observed for name, _ in self.net.named_parameters() if name.startswith("top."))

    def knows_top(self) -> bool:
        """Whether all weights of ``top`` are known."""
        return all(name in self.weights | self.stacked for name in state_names(self.net) if name.startswith("top."))

    def body_only(self) -> Case:
        """The case without the gradients and weights of ``top``."""

        def body(group: Data) -> Data:
            return {name: tensor for name, tensor in group.items() if name.startswith("body.")}

        return replace(
            self, observed=body(self.observed), weights=body(self.weights), stacked=body(self.stacked), kept=body(self.kept),
            variance=body(self.variance), decay=body(self.decay),
        )  # fmt: skip

    @property
    def exact(self) -> bool:
        """Whether the gradients are exact up to a common factor."""
        return not self.variance

    def distance(self, exact: Distance, guess: Data, unknown: Tensor, data: Data) -> Tensor:
        """:func:`matching_loss` of one reconstruction, from its gradient ``guess``; images are computed from ``unknown``."""
        observed, decay = self._observed(data, list(guess)), under("decay:", data)
        corrected = {name: tensor + decay[name] if name in decay else tensor for name, tensor in guess.items()}
        images = self.pixels.image(unknown) if isinstance(self.pixels, Pixels) else None
        return matching_loss(exact, corrected, images, observed)

    def data(self) -> Data:
        """The data of the losses, for every reconstruction."""
        prefixes = ("observed", "weight", "kept", "decay", "variance")
        groups = zip(prefixes, (self.observed, self.stacked, self.kept, self.decay, self.variance), strict=True)
        return {f"{prefix}:{name}": tensor for prefix, group in groups for name, tensor in group.items()}

    def _observed(self, data: Data, names: Sequence[str]) -> ObservedGradient:
        observed = under("observed:", data)
        kept, variance = ({n: t for n, t in under(prefix, data).items() if n in names} for prefix in ("kept:", "variance:"))
        return ObservedGradient({name: observed[name] for name in names}, self.rescaled, kept, variance)

    def expected(self) -> float:
        """The expected distance at the true images, due to errors alone, of the observation with the largest errors."""
        if self.exact:
            return 0.0
        entries = sum(
            (self.kept.get(n, torch.ones_like(t)).flatten(1).sum(1) for n, t in self.observed.items()), torch.zeros(self.n)
        )
        squares = torch.stack([t.flatten(1).square().sum(1) / self.variance[n] for n, t in self.observed.items()]).sum(0)
        return float((entries / squares.clamp_min(1e-30)).max())

    def deviation(self, name: str) -> Tensor:
        """Approximate standard deviation of each observed entry's error ``(N, ...)``."""
        observed, ones = self.observed[name], [1] * (self.observed[name].ndim - 1)
        each = self.variance[name].view(-1, *ones).expand_as(observed)
        if name in self.kept:  # pruned entries are smaller than all that were sent
            sent = [self.observed[n].abs().masked_fill(mask == 0, torch.inf).flatten(1).amin(1) for n, mask in self.kept.items()]
            least = torch.stack(sent).amin(0).view(-1, *ones)
            each = torch.where(self.kept[name] == 0, least.square() / 3, each)
        return each.sqrt()

    def weights_of(self, data: Data) -> Data:
        """All known weights for one reconstruction."""
        return self.weights | under("weight:", data)


def under(prefix: str, data: Mapping[str, Tensor]) -> Data:
    """The entries whose names begin with ``prefix``, with the prefix removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in data.items() if name.startswith(prefix)}


def build_case(observations: Sequence[Observation], bounded: bool, scale_free: bool = False) -> Case:
    """Combine observations into a case.

    Args:
        bounded: keep images in [0, 1] (:class:`Pixels`); rows of a table are within their columns (:class:`Cells`).
        scale_free: whether the distance ignores a factor, as the cosine does; otherwise a weight change needs a known schedule.

    Raises:
        Inapplicable: nothing was shared, the observations are of different kinds, or the client's loss used no labels.
    """
    first = observations[0]
    require_labels(first)
    if not all(o.shared for o in observations):
        raise Inapplicable("no layer is shared: there is no gradient to match")
    if not scale_free and any(o.kind == "change" and o.schedule is None and not o.altered.rescaled for o in observations):
        raise Inapplicable("a change of the weights is a gradient only up to a factor where the schedule is not known")
    samples = first.num_examples or 1  # an attacker who does not know the number assumes one
    gradients = [as_gradient(o) for o in observations]
    rescaled = gradients[0].altered.rescaled
    compatible = all(
        (o.num_examples or 1) == samples
        and o.shared.keys() == first.shared.keys()
        and o.input_shape == first.input_shape
        and observed.altered.rescaled == rescaled
        for o, observed in zip(observations, gradients, strict=True)
    )
    if not compatible:
        raise Inapplicable("observations attacked together must share the same tensors for the same number of samples")
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
    _twice_differentiable(first, samples)
    labels = None if first.labels is None else torch.stack([o.labels.view(-1) for o in observations if o.labels is not None])
    kept, decay = (
        {name: torch.stack([tensors[name] for tensors in group]).to(dtype) for name in names if name in group[0]}
        for group in ([o.altered.kept for o in gradients], [decay_before_clipping(o) for o in observations])
    )
    observed = {name: torch.stack([o.shared[name] for o in gradients]) for name in names}
    observed = {name: tensor * kept[name] if name in kept else tensor for name, tensor in observed.items()}
    pixels = Pixels(mean, std, bounded) if first.encoding is None else Cells.of(first.encoding, dtype)
    return Case(
        in_clients_mode(first.net).requires_grad_(False), observed, weights, stacked, samples, tuple(first.input_shape),
        first.classes, pixels, labels, rescaled, kept, variance=_errors(gradients, observed), decay=decay,
    )  # fmt: skip


def observed_gradient(observation: Observation, names: Sequence[str]) -> ObservedGradient:
    """The observed gradients of the parameters ``names``, for attacks on one observation at a time."""
    altered = observation.altered
    observed = {name: observation.shared[name] for name in names}
    observed = {
        name: tensor * altered.kept[name].to(tensor) if name in altered.kept else tensor for name, tensor in observed.items()
    }
    kept = {name: altered.kept[name].to(observed[name]) for name in names if name in altered.kept}
    errors = _errors([observation], {name: tensor[None] for name, tensor in observed.items()})
    return ObservedGradient(observed, altered.rescaled, kept, {name: error[0] for name, error in errors.items()})


def _errors(observations: Sequence[Observation], observed: Data) -> Data:
    """Expected squared error of an entry, by name ``(N,)``; empty if all entries are exact and were sent."""
    if all(not o.altered.variance and not o.altered.kept for o in observations):
        return {}
    squares = torch.stack([tensor.flatten(1).square().mean(1) for tensor in observed.values()]).amax(0)
    least = squares * (PRUNED_ERROR if any(o.altered.kept for o in observations) else EXACT_ERROR)
    known = {name: torch.tensor([o.altered.variance.get(name, 0.0) for o in observations]).to(least) for name in observed}
    return {name: torch.maximum(value, least).clamp_min(1e-30) for name, value in known.items()}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy ``()`` of logits ``(B, C)`` and label probabilities ``(B, C)``."""
    entropy: Tensor = -(targets * logits.log_softmax(-1)).sum(-1).mean()
    return entropy


def gradient_from_labels(net: nn.Module, weights: Data, shared: Sequence[str], inputs: Tensor, targets: Tensor) -> Data:
    """Gradient of the mean cross-entropy of ``inputs`` ``(B, C, H, W)`` for label probabilities ``(B, classes)``, by name."""

    def loss(leaves: Data) -> Tensor:
        return cross_entropy(functional_call(net, weights | leaves, (inputs,)), targets)

    return dict(grad(loss)({name: weights[name] for name in shared}))


def batched_gradient_from_labels(case: Case, names: Sequence[str], data: Data, inputs: Tensor, targets: Tensor) -> Data:
    """:func:`gradient_from_labels` of ``k`` reconstructions at once: inputs ``(k, B, C, H, W)``, targets ``(k, B, classes)``.

    Uses ``vmap`` for the net alone and plain autograd: a tenth cheaper than ``torch.func.grad``, and quicker to import.
    """
    stacked = under("weight:", data)
    weights = {
        name: stacked[name] if name in stacked else case.weights[name].expand(len(inputs), *case.weights[name].shape)
        for name in names
    }
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}

    def outputs(some: Data, inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(case.net, case.weights | some, (inputs,))
        return logits

    entropy = -(targets * vmap_or_loop(outputs, stacked | leaves, inputs).log_softmax(-1)).sum(-1).mean(-1).sum()
    slopes = torch.autograd.grad(entropy, list(leaves.values()), create_graph=True, materialize_grads=True)
    return dict(zip(names, slopes, strict=True))


def gradient_from_signal(
    net: nn.Module, layer: nn.Module, weights: Data, shared: Sequence[str], inputs: Tensor, signal: Tensor
) -> Data:
    """:func:`gradient_from_labels`, given the loss's gradient ``signal`` ``(B, ...)`` at the output of ``layer`` for labels."""

    def product(some: Data) -> Tensor:
        outputs: list[Tensor] = []
        hook = layer.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            functional_call(net, weights | some, (inputs,))
        finally:
            hook.remove()
        return (outputs[0] * signal).sum() / len(inputs)

    return dict(grad(product)({name: weights[name] for name in shared}))


def bypassing_tensors(net: nn.Module, layer: nn.Module, weights: Data, names: Sequence[str], inputs: Tensor) -> list[str]:
    """The tensors, of ``names``, that affect the net's output by a path around ``layer``, such as a residual connection.

    Their gradients do not follow from the signal at the layer's output.
    """
    leaves = {name: weights[name].detach().clone().requires_grad_() for name in names}
    hook = layer.register_forward_hook(lambda module, args, output: output.detach())
    try:
        output = functional_call(net, weights | leaves, (inputs,))
    finally:
        hook.remove()
    if not leaves or not output.requires_grad:
        return []
    slopes = torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)
    return [name for name, slope in zip(leaves, slopes, strict=True) if slope is not None]


def _twice_differentiable(observation: Observation, samples: int) -> None:
    """Check that the net has second derivatives, by plain autograd; ``torch.func`` silently skips operations without.

    Raises:
        Inapplicable: an operation of the net has none; the message names it.
    """
    net = in_clients_mode(observation.net).requires_grad_(True)
    example = next(iter(observation.shared.values()))
    inputs = torch.rand(samples, *observation.input_shape, device=example.device)
    with differentiating_twice():
        outputs = net.float()(inputs)
        first = torch.autograd.grad(outputs.square().sum(), list(net.parameters()), create_graph=True, allow_unused=True)
        # With respect to all parameters: a missing derivative may lie on a branch that the inputs do not reach.
        torch.stack([g.square().sum() for g in first if g is not None]).sum().backward()  # type: ignore[no-untyped-call]
