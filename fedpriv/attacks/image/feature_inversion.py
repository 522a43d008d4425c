"""Image reconstruction from the features that a linear layer gets: row ratios, then feature inversion.

For one sample, row ratios (:mod:`fedpriv.attacks.gradients.analytic`) give the input ``h`` of the first shared linear layer, and
its bias gradient gives the back-propagated signal ``dL/dh = W^T dL/db``. The attack optimises an image that has the features
``h`` and reproduces the observed gradients of the layers before, except those that bypass the linear layer (residual blocks). It
needs the weights of these layers and of the linear one, but none of the layers after: masking the head does not help.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.analytic import require_invertible_layers
from fedpriv.attacks.gradients.distances import matching_loss, per_layer
from fedpriv.attacks.gradients.linear import layer_input, normalise_images, single_sample_input, training_net, weight_dtype
from fedpriv.attacks.gradients.matching import bypassing_tensors, observed_gradient
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.gradients.variables import total_variation


@dataclass(frozen=True)
class InversionOptions:
    """
    Attributes:
        adam: steps of Adam with a cosine schedule.
        lbfgs: outer steps of L-BFGS with strong-Wolfe line search that follow, of 20 inner ones each.
        lr: of Adam.
        tv: weight of the total variation, in Adam only.
        restarts: further starts; the one with the smallest loss is returned.
    """

    adam: int = ranged(1000)
    lbfgs: int = ranged(60)
    lr: float = 0.1
    tv: float = 0.02
    restarts: int = 0


def invert_features(observation: Observation, options: InversionOptions, seed: int) -> tuple[Tensor, float, list[float]]:
    """The image of a message of one sample, from its first shared linear layer with a bias and the layers before.

    Returns:
        the image in [0, 1] ``(1, C, H, W)``, the loss without total variation, and the loss after every step.

    Raises:
        Inapplicable: there is no such layer, or the layers before it are not known.
    """
    observation = as_gradient(observation)
    leak, _ = require_invertible_layers(observation)[0]
    assert leak.bias is not None
    weights = {name: w.detach() for name, w in observation.weights.items()}
    if f"{leak.name}.weight" not in weights:
        raise Inapplicable(f"the weights of {leak.name!r} are not known")
    features = single_sample_input(leak)[None]
    signal = (leak.bias @ weights[f"{leak.name}.weight"])[None]
    before = _before(observation, leak.name)
    starts = [
        _solve(observation, options, leak.name, features, signal, before, start)
        for start in range(seed, seed + 1 + options.restarts)
    ]
    return min(starts, key=lambda start: start[1])


def _before(observation: Observation, layer: str) -> list[str]:
    """Names of the shared tensors that affect the logits only through the input of ``layer``."""
    device, dtype = weight_dtype(observation)
    names = [name for name in observation.shared if name in observation.weights]
    weights = {name: observation.weights[name].detach().clone().requires_grad_() for name in names}
    x = torch.rand(1, *observation.input_shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    net, known = training_net(observation)
    features = layer_input(net, layer, {**known, **weights}, x).sum()
    if not bool(features.isfinite()):
        raise Inapplicable(f"the weights of a layer before {layer!r} are not known")
    if not features.requires_grad:  # the layer's input is the image
        return []
    slopes = torch.autograd.grad(features, list(weights.values()), allow_unused=True)
    before = [name for name, slope in zip(names, slopes, strict=True) if slope is not None]
    bypassing = bypassing_tensors(net, net.get_submodule(layer), known, before, x)
    return [name for name in before if name not in bypassing]


def _solve(
    observation: Observation,
    options: InversionOptions,
    layer: str,
    features: Tensor,
    signal: Tensor,
    before: list[str],
    seed: int,
) -> tuple[Tensor, float, list[float]]:
    """One start: the image ``(1, C, H, W)``, its loss, and the loss after every step.

    Args:
        features: the layer's input ``(1, in)``.
        signal: the gradient at it ``(1, in)``.
        before: the shared tensors whose gradients are matched.
    """
    net, _ = training_net(observation)
    weights = {name: w.detach() for name, w in observation.weights.items()}
    lower = {name: weights[name].clone().requires_grad_() for name in before}
    observed = observed_gradient(observation, before) if before else None
    generator = torch.Generator().manual_seed(seed)
    raw = 0.5 * torch.randn(1, *observation.input_shape, generator=generator, dtype=features.dtype)
    raw = raw.to(features.device).requires_grad_()
    curve: list[float] = []

    def residual() -> Tensor:
        image = raw.sigmoid()
        h = layer_input(net, layer, {**weights, **lower}, normalise_images(observation, image))
        value: Tensor = (h - features).square().sum() / features.square().sum()
        if observed is not None:
            sent = torch.autograd.grad((h * signal).sum(), list(lower.values()), create_graph=True)
            value = value + matching_loss(per_layer, dict(zip(lower, sent, strict=True)), image, observed)
        return value

    adam = torch.optim.Adam([raw], lr=options.lr)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(1, options.adam))
    for _ in range(options.adam):
        value = residual()
        (raw.grad,) = torch.autograd.grad(value + options.tv * total_variation(raw.sigmoid()), raw)
        adam.step()
        rate.step()
        curve.append(float(value.detach()))
    lbfgs = torch.optim.LBFGS([raw], history_size=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value = residual()
        raw.grad = torch.autograd.grad(value, raw)[0].contiguous()  # L-BFGS then flattens it without a copy
        return value.detach()

    for _ in range(options.lbfgs):
        curve.append(float(lbfgs.step(closure)))  # type: ignore[no-untyped-call]
    loss = float(residual().detach())
    return raw.detach().sigmoid(), loss if loss == loss else float("inf"), curve
