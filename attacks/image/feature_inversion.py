"""Image reconstruction from the input of a linear layer: only the pixels are still unknown.

For one sample the weight-by-bias quotient gives the features ``h`` that the first shared linear layer is fed, and its bias
gradient gives the signal ``dL/dh = W^T dL/db`` that is propagated back into the layers before. So the image must have the
features ``h`` *and* reproduce the observed gradients of those layers, but for those that also come by a path around the linear
layer, as in a residual block. The layers above do not matter: masking the head does not help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.analytic import require_invertible_layers
from fedpriv.attacks.gradients.distances import matching_loss, per_layer
from fedpriv.attacks.gradients.linear import normalise_images, single_sample_input, training_net, weight_dtype
from fedpriv.attacks.gradients.matching import bypassing_tensors, observed_gradient
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.gradients.variables import total_variation


@dataclass(frozen=True)
class InversionOptions:
    """
    Attributes:
        adam: steps of Adam with a cosine schedule, then
        lbfgs: outer L-BFGS steps with strong-Wolfe line search (20 inner ones each).
        features, gradients: weights of the two residuals, each a share of the squared norm.
        tv: weight of the total variation, in Adam only.
        restarts: further starts; the one with the smallest loss is returned.
    """

    adam: int = ranged(1000)
    lbfgs: int = ranged(60)
    lr: float = 0.1
    features: float = 1.0
    gradients: float = 1.0
    tv: float = 0.02
    restarts: int = 0


def fed_to(observation: Observation, layer: str) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """The map (weights, normalised images ``(B, C, H, W)``) -> the input of ``layer`` ``(B, in)``."""
    net, _ = training_net(observation)
    seen: list[Tensor] = []

    def take(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0])

    net.get_submodule(layer).register_forward_pre_hook(take)

    def features(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        seen.clear()
        functional_call(net, weights, (x,))
        return seen[0]

    return features


def invert_features(
    observation: Observation, options: InversionOptions | None = None, seed: int = 0
) -> tuple[Tensor, float, list[float]]:
    """The image of a message of one sample, from its first shared linear layer with a bias and the layers before.

    Returns:
        the image in [0, 1] ``(1, C, H, W)``, the loss without total variation, and the loss after every step.

    Raises:
        Inapplicable: there is no such layer, or the layers before it are not known.
    """
    options = options or InversionOptions()
    observation = as_gradient(observation)
    leak, _ = require_invertible_layers(observation)[0]
    assert leak.bias is not None
    weights = {name: w.detach() for name, w in observation.weights.items()}
    if f"{leak.name}.weight" not in weights:
        raise Inapplicable(f"the weights of {leak.name!r} are not known")
    wanted = single_sample_input(leak)[None]
    signal = (leak.bias @ weights[f"{leak.name}.weight"])[None]
    before = _before(observation, leak.name)
    starts = [
        _solve(observation, options, fed_to(observation, leak.name), wanted, signal, before, start)
        for start in range(seed, seed + 1 + options.restarts)
    ]
    return min(starts, key=lambda start: start[1])


def _before(observation: Observation, layer: str) -> list[str]:
    """Names of the shared tensors of the layers that feed ``layer`` and reach the logits through it alone."""
    device, dtype = weight_dtype(observation)
    names = [name for name in observation.shared if name in observation.weights]
    weights = {name: observation.weights[name].detach().clone().requires_grad_() for name in names}
    x = torch.rand(1, *observation.input_shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    fed = fed_to(observation, layer)({**observation.weights, **weights}, x).sum()
    if not bool(fed.isfinite()):
        raise Inapplicable(f"the weights of a layer before {layer!r} are not known")
    if not fed.requires_grad:  # the layer's input is the image
        return []
    slopes = torch.autograd.grad(fed, list(weights.values()), allow_unused=True)
    feeding = [name for name, slope in zip(names, slopes, strict=True) if slope is not None]
    net, known = training_net(observation)
    around = bypassing_tensors(net, net.get_submodule(layer), known, feeding, x)
    return [name for name in feeding if name not in around]


def _solve(
    observation: Observation,
    options: InversionOptions,
    features: Callable[[dict[str, Tensor], Tensor], Tensor],
    wanted: Tensor,
    signal: Tensor,
    before: list[str],
    seed: int,
) -> tuple[Tensor, float, list[float]]:
    weights = {name: w.detach() for name, w in observation.weights.items()}
    lower = {name: weights[name].clone().requires_grad_() for name in before}
    seen = observed_gradient(observation, before) if before else None
    drawn = torch.Generator().manual_seed(seed)
    raw = 0.5 * torch.randn(1, *observation.input_shape, generator=drawn, dtype=wanted.dtype)
    raw = raw.to(wanted.device).requires_grad_()
    curve: list[float] = []

    def residual() -> Tensor:
        image = raw.sigmoid()
        h = features({**weights, **lower}, normalise_images(observation, image))
        missed: Tensor = options.features * (h - wanted).square().sum() / wanted.square().sum()
        if seen is not None and options.gradients:
            sent = torch.autograd.grad((h * signal).sum(), list(lower.values()), create_graph=True)
            missed = missed + options.gradients * matching_loss(per_layer, dict(zip(lower, sent, strict=True)), image, seen)
        return missed

    adam = torch.optim.Adam([raw], lr=options.lr)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(1, options.adam))
    for _ in range(options.adam):
        missed = residual()
        (raw.grad,) = torch.autograd.grad(missed + options.tv * total_variation(raw.sigmoid()), raw)
        adam.step()
        rate.step()
        curve.append(float(missed.detach()))
    lbfgs = torch.optim.LBFGS([raw], history_size=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        missed = residual()
        raw.grad = torch.autograd.grad(missed, raw)[0].contiguous()  # which L-BFGS flattens without a copy
        return missed.detach()

    for _ in range(options.lbfgs):
        curve.append(float(lbfgs.step(closure)))  # type: ignore[no-untyped-call]
    loss = float(residual().detach())
    return raw.detach().sigmoid(), loss if loss == loss else float("inf"), curve
