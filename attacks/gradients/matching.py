"""Gradient matching for many reconstructions at once: the distance and its gradient with respect to the unknowns.

Per-reconstruction gradients come from ``vmap``. On CPU, for the LeNet of DLG, 32 images at once cost a fifth of one at
a time, and less than with weight gradients written out by ``unfold`` and products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedpriv.attacks.core.observation import Observation, SplitNet, in_clients_mode, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable, differentiating_twice, require_labels
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.distances import Distance, ObservedGradient, matching_loss
from fedpriv.attacks.gradients.multistep import as_gradient, decay_before_clipping
from fedpriv.attacks.gradients.variables import Layout, Pixels

Data = dict[str, Tensor]
"""The variables of reconstructions, by name, each ``(N, ...)``; within ``vmap`` without the first dimension."""
FEW = 1e-4
"""Expected error of a pruned gradient's entry, as a share of their mean square. The entries are exact, but too few to do without
a prior."""
SPARED = 1e-8
"""The same for a tensor that is exact while others are not, so that it does not outweigh them altogether."""
Loss = Callable[[Mapping[str, Tensor], Data], Tensor]
"""(unknowns, data) of one reconstruction -> its loss ``()``."""


@dataclass(frozen=True)
class Objective:
    """``N`` losses of ``N`` rows of unknowns; a :data:`fedpriv.attacks.optimise.lbfgs.Function`.

    Attributes:
        single: a problem that is evaluated alone is evaluated without ``vmap``, which for a net with BatchNorm saves a quarter of
            the time.
        together: the same losses of many rows ``(k, ...)`` at once, ``(k,)``, where that is quicker than ``vmap`` of one.
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
        """Problem ``rows[i]`` at ``points[i]``: values ``(k,)``, gradients ``(k, p)``."""
        data = self.data if len(rows) == self.n else self.select(rows).data  # rows are distinct and in order
        points = points.detach().requires_grad_()

        def each(row: Tensor, data: Data) -> Tensor:
            return self.loss(self.layout.unpack(row), data)

        if self.together is not None:
            value = self.together(self.layout.unpack(points), data)
        elif self.single and len(rows) == 1:
            value = each(points[0], {name: tensor[0] for name, tensor in data.items()})[None]
        else:
            value = vmap_or_loop(each, points, data)
        (gradient,) = torch.autograd.grad(value.sum(), points)  # a sixth cheaper than one more transform of torch.func
        return value.detach(), gradient

    def select(self, rows: Tensor) -> Objective:
        """Only the problems ``rows``, renumbered."""
        return replace(self, data={name: tensor[rows] for name, tensor in self.data.items()})


@dataclass(frozen=True)
class Case:
    """Observations that are attacked together: same net, same tensors shared, same number of samples.

    Attributes:
        net: the architecture in the client's mode; its parameters are NaN.
        seen: the gradients, by name ``(N, ...)``.
        weights: what is known of the parameters: ``(...)`` where all observations agree.
        stacked: those of ``weights`` that differ, ``(N, ...)``.
        samples: ``B`` per observation.
        labels: ``(N, B)`` where the threat model gives them.
        rescaled: whether the gradients were clipped, or read from changes whose schedule is not known, so that their norm carries
            no information.
        kept: which entries were sent, by name ``(N, ...)``. Of a tensor that is not named, all were sent.
        variance: expected error of an entry, by name ``(N,)``; empty where the gradients are exact.
        decay: what weight decay added before clipping, by name ``(N, ...)``.
    """

    net: SplitNet
    seen: Data
    weights: Data
    stacked: Data
    samples: int
    shape: tuple[int, ...]
    classes: int
    pixels: Pixels
    labels: Tensor | None
    rescaled: bool
    kept: Data
    variance: Data
    decay: Data

    @property
    def n(self) -> int:
        return len(next(iter(self.seen.values())))

    def shared_top(self) -> bool:
        """Whether the gradient of the whole of ``top`` was seen."""
        return all(name in self.seen for name, _ in self.net.named_parameters() if name.startswith("top."))

    def knows_top(self) -> bool:
        """Whether all weights of ``top`` are known."""
        return all(name in self.weights | self.stacked for name in state_names(self.net) if name.startswith("top."))

    def of_body(self) -> Case:
        """The case without the gradients and weights of ``top``."""

        def body(group: Data) -> Data:
            return {name: tensor for name, tensor in group.items() if name.startswith("body.")}

        return replace(
            self, seen=body(self.seen), weights=body(self.weights), stacked=body(self.stacked), kept=body(self.kept),
            variance=body(self.variance), decay=body(self.decay),
        )  # fmt: skip

    @property
    def exact(self) -> bool:
        """Whether the gradients are exact up to a common factor."""
        return not self.variance

    def distance(self, exact: Distance, guess: Data, unknown: Tensor, data: Data) -> Tensor:
        """:func:`matching_loss` of a reconstruction's gradient ``guess``, whose unknown images are ``unknown``."""
        seen, decay = self._seen(data, list(guess)), under("decay:", data)
        made = {name: tensor + decay[name] if name in decay else tensor for name, tensor in guess.items()}
        return matching_loss(exact, made, self.pixels.image(unknown), seen)

    def data(self) -> Data:
        """The inputs of the losses below, for every reconstruction."""
        groups = {"seen": self.seen, "weight": self.stacked, "kept": self.kept, "decay": self.decay, "variance": self.variance}
        return {f"{prefix}:{name}": tensor for prefix, group in groups.items() for name, tensor in group.items()}

    def _seen(self, data: Data, names: Sequence[str]) -> ObservedGradient:
        of = {
            prefix: {n: t for n, t in under(f"{prefix}:", data).items() if n in names} for prefix in ("seen", "kept", "variance")
        }
        return ObservedGradient({name: of["seen"][name] for name in names}, self.rescaled, of["kept"], of["variance"])

    def expected(self) -> float:
        """The distance at the true images, due to errors alone; of the observation with the largest errors."""
        if self.exact:
            return 0.0
        entries = sum((self.kept.get(n, torch.ones_like(t)).flatten(1).sum(1) for n, t in self.seen.items()), torch.zeros(self.n))
        squares = torch.stack([t.flatten(1).square().sum(1) / self.variance[n] for n, t in self.seen.items()]).sum(0)
        return float((entries / squares.clamp_min(1e-30)).max())

    def deviation(self, name: str) -> Tensor:
        """Approximate standard deviation of each observed entry's error ``(N, ...)``."""
        seen, ones = self.seen[name], [1] * (self.seen[name].ndim - 1)
        each = self.variance[name].view(-1, *ones).expand_as(seen)
        if name in self.kept:  # pruned entries are smaller than all that were sent
            sent = [self.seen[n].abs().masked_fill(mask == 0, torch.inf).flatten(1).amin(1) for n, mask in self.kept.items()]
            least = torch.stack(sent).amin(0).view(-1, *ones)
            each = torch.where(self.kept[name] == 0, least.square() / 3, each)
        return each.sqrt()

    def weights_of(self, data: Data) -> Data:
        """All known weights of one reconstruction."""
        return self.weights | under("weight:", data)


def under(prefix: str, data: Mapping[str, Tensor]) -> Data:
    """The entries whose names begin with ``prefix``, by names without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in data.items() if name.startswith(prefix)}


def build_case(observations: Sequence[Observation], bounded: bool, scale_free: bool = False) -> Case:
    """Combine observations into a case.

    Args:
        bounded: whether images are kept in [0, 1] (:class:`Pixels`).
        scale_free: whether the distance ignores a factor, as the cosine does; otherwise a weight change needs a known schedule.

    Raises:
        Inapplicable: nothing was shared, the observations differ in kind, or the client's loss used no labels.
    """
    first = observations[0]
    require_labels(first)
    if not all(o.shared for o in observations):
        raise Inapplicable("no layer is shared: there is no gradient to match")
    if not scale_free and any(o.kind == "change" and o.schedule is None and not o.altered.rescaled for o in observations):
        raise Inapplicable("a change of the weights is a gradient only up to a factor where the schedule is not known")
    samples = first.num_examples or 1  # an attacker who does not know assumes one
    read = [as_gradient(o) for o in observations]
    rescaled = read[0].altered.rescaled
    alike = all(
        (o.num_examples or 1) == samples
        and o.shared.keys() == first.shared.keys()
        and o.input_shape == first.input_shape
        and seen.altered.rescaled == rescaled
        for o, seen in zip(observations, read, strict=True)
    )
    if not alike:
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
        {name: torch.stack([one[name] for one in group]).to(dtype) for name in names if name in group[0]}
        for group in ([o.altered.kept for o in read], [decay_before_clipping(o) for o in observations])
    )
    seen = {name: torch.stack([o.shared[name] for o in read]) for name in names}
    seen = {name: tensor * kept[name] if name in kept else tensor for name, tensor in seen.items()}
    return Case(
        in_clients_mode(first.net).requires_grad_(False),
        seen,
        weights,
        stacked,
        samples,
        tuple(first.input_shape),
        first.classes,
        Pixels(mean, std, bounded),
        labels,
        rescaled,
        kept,
        _errors(read, seen),
        decay,
    )


def observed_gradient(observation: Observation, names: Sequence[str]) -> ObservedGradient:
    """The observed gradients of the parameters ``names``, for attacks that take one observation at a time."""
    altered = observation.altered
    seen = {name: observation.shared[name] for name in names}
    seen = {name: tensor * altered.kept[name].to(tensor) if name in altered.kept else tensor for name, tensor in seen.items()}
    kept = {name: altered.kept[name].to(seen[name]) for name in names if name in altered.kept}
    errors = _errors([observation], {name: tensor[None] for name, tensor in seen.items()})
    return ObservedGradient(seen, altered.rescaled, kept, {name: error[0] for name, error in errors.items()})


def _errors(observations: Sequence[Observation], seen: Data) -> Data:
    """Expected error of an entry, by name ``(N,)``; empty where all entries are exact and were sent."""
    if all(not o.altered.variance and not o.altered.kept for o in observations):
        return {}
    squares = torch.stack([tensor.flatten(1).square().mean(1) for tensor in seen.values()]).amax(0)
    least = squares * (FEW if any(o.altered.kept for o in observations) else SPARED)
    known = {name: torch.tensor([o.altered.variance.get(name, 0.0) for o in observations]).to(least) for name in seen}
    return {name: torch.maximum(value, least).clamp_min(1e-30) for name, value in known.items()}


def gradient_from_labels(net: nn.Module, weights: Data, shared: Sequence[str], inputs: Tensor, targets: Tensor) -> Data:
    """Gradient of the mean soft cross-entropy of ``inputs`` ``(B, C, H, W)`` against distributions ``(B, classes)``, by name."""

    def loss(some: Data) -> Tensor:
        logits = functional_call(net, weights | some, (inputs,))
        entropy: Tensor = -(targets * logits.log_softmax(-1)).sum(-1).mean()
        return entropy

    return dict(grad(loss)({name: weights[name] for name in shared}))


def batched_gradient_from_labels(case: Case, names: Sequence[str], data: Data, inputs: Tensor, targets: Tensor) -> Data:
    """:func:`gradient_from_labels` of ``k`` reconstructions at once: inputs ``(k, B, C, H, W)``, targets ``(k, B, classes)``.

    By ``vmap`` of the net alone and plain autograd: a tenth cheaper than ``torch.func.grad``, which also loads torch's compiler.
    """
    stacked = under("weight:", data)
    known = {
        name: stacked[name] if name in stacked else case.weights[name].expand(len(inputs), *case.weights[name].shape)
        for name in names
    }
    at = {name: weight.detach().requires_grad_() for name, weight in known.items()}

    def outputs(some: Data, inputs: Tensor) -> Tensor:
        found: Tensor = functional_call(case.net, case.weights | some, (inputs,))
        return found

    entropy = -(targets * vmap_or_loop(outputs, stacked | at, inputs).log_softmax(-1)).sum(-1).mean(-1).sum()
    slopes = torch.autograd.grad(entropy, list(at.values()), create_graph=True, materialize_grads=True)
    return dict(zip(names, slopes, strict=True))


def gradient_from_signal(
    net: nn.Module, at: nn.Module, weights: Data, shared: Sequence[str], inputs: Tensor, signal: Tensor
) -> Data:
    """The same, given the loss's gradient ``signal`` ``(B, ...)`` at the output of the module ``at`` instead of labels."""

    def product(some: Data) -> Tensor:
        outputs: list[Tensor] = []
        hook = at.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            functional_call(net, weights | some, (inputs,))
        finally:
            hook.remove()
        return (outputs[0] * signal).sum() / len(inputs)

    return dict(grad(product)({name: weights[name] for name in shared}))


def bypassing_tensors(net: nn.Module, at: nn.Module, weights: Data, names: Sequence[str], inputs: Tensor) -> list[str]:
    """Those of the tensors ``names`` that act on the net's output by a path around the output of the module ``at``, as a residual
    block, a gate or attention over channels leads: the signal there does not give their gradients."""
    some = {name: weights[name].detach().clone().requires_grad_() for name in names}
    hook = at.register_forward_hook(lambda module, args, output: output.detach())
    try:
        output = functional_call(net, weights | some, (inputs,))
    finally:
        hook.remove()
    if not some or not output.requires_grad:
        return []
    slopes = torch.autograd.grad(output.sum(), list(some.values()), allow_unused=True)
    return [name for name, slope in zip(some, slopes, strict=True) if slope is not None]


def _twice_differentiable(observation: Observation, samples: int) -> None:
    """Compute one second derivative by plain autograd; ``torch.func`` silently skips operations that have none.

    Raises:
        Inapplicable: an operation of the net has none; it is named.
    """
    net = in_clients_mode(observation.net).requires_grad_(True)
    example = next(iter(observation.shared.values()))
    inputs = torch.rand(samples, *observation.input_shape, device=example.device)
    with differentiating_twice():
        outputs = net.float()(inputs)
        first = torch.autograd.grad(outputs.square().sum(), list(net.parameters()), create_graph=True, allow_unused=True)
        # Back to all parameters, not to the inputs alone: a missing derivative may lie on a branch that does not lead there.
        torch.stack([g.square().sum() for g in first if g is not None]).sum().backward()  # type: ignore[no-untyped-call]
