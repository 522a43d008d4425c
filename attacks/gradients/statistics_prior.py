"""A prior of gradient inversion by what BatchNorm's running statistics say of the batch.

DeepInversion (Yin et al., CVPR 2020, equation 4) pulls the mean and variance of each BatchNorm layer's inputs towards the layer's
running ones, which are of many batches of the training data; GradInversion (Yin et al., CVPR 2021) does so beside the gradient.
Here the message gives away the statistics of the client's own batches (:mod:`fedpriv.attacks.gradients.batch_statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.batch_statistics import layer_statistics
from fedpriv.attacks.gradients.matching import Case, Data, Objective, under

_LEAST = 1e-8  # a channel may be constant over a batch


def with_running_statistics(objective: Objective, case: Case, observations: Sequence[Observation], weight: float) -> Objective:
    """The objective plus ``weight`` times :func:`misfit`, where every message has running statistics that can be read; otherwise
    the objective itself."""
    try:
        seen = [layer_statistics(one) for one in observations]
    except Inapplicable:
        return objective
    dtype = next(iter(objective.data.values())).dtype
    data: Data = {}
    for layer in seen[0]:
        data[f"batch mean:{layer}"] = torch.stack([one[layer].mean for one in seen]).to(dtype)
        data[f"batch variance:{layer}"] = torch.stack([one[layer].variance for one in seen]).to(dtype)

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        inputs = case.pixels.input(unknown["image"])
        found = misfit(case.net, case.weights_of(data), inputs, under("batch mean:", data), under("batch variance:", data))
        return objective.loss(unknown, data) + weight * found

    return Objective(loss, objective.layout, objective.data | data)


def misfit(net: nn.Module, weights: Data, inputs: Tensor, means: Data, variances: Data) -> Tensor:
    """How far the statistics of a batch ``(B, C, H, W)`` are from given ones ``(C,)`` of each layer, by name: ``()``.

    The mean over layers and channels of ``(mean - mean')^2 / variance' + (variance / variance' - 1)^2``; variances are unbiased.
    Unlike DeepInversion's norms this does not depend on the scale of a layer's inputs.
    """
    apart: list[Tensor] = []

    def compare(name: str) -> RemovableHandle:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            values = args[0].transpose(0, 1).flatten(1)
            scale = variances[name].clamp_min(_LEAST)
            off = (values.mean(1) - means[name]).square() / scale
            apart.append((off + (values.var(1) / scale - 1).square()).mean())

        return net.get_submodule(name).register_forward_pre_hook(hook)

    hooks = [compare(name) for name in means]
    try:
        functional_call(net, weights, (inputs,))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(apart).mean()
