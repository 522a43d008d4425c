"""A prior of gradient inversion by what BatchNorm's running statistics say of the batch.

DeepInversion (Yin et al., CVPR 2020, equation 4) pulls the mean and variance of each BatchNorm layer's inputs towards the layer's
running ones, which are of many batches of the training data; GradInversion (Yin et al., CVPR 2021) does so beside the gradient.
Here the message gives away the statistics of the client's own batches (:mod:`fedpriv.attacks.gradients.batch_statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.batch_statistics import layer_statistics
from fedpriv.attacks.gradients.matching import Case, Data, Objective, under

_READ = ("mean", "variance", "mean_error", "variance_error")
_LEAST = 1e-8  # a channel may be constant over a batch


def with_running_statistics(objective: Objective, case: Case, observations: Sequence[Observation], weight: float) -> Objective:
    """The objective plus ``weight`` times :func:`statistics_distance`; unchanged if a message has no readable statistics."""
    try:
        seen = [layer_statistics(one) for one in observations]
    except Inapplicable:
        return objective
    like = next(iter(objective.data.values()))
    data: Data = {}
    for layer in seen[0]:
        for name in _READ:
            data[f"{name}:{layer}"] = torch.stack([getattr(one[layer], name) for one in seen]).to(like)

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        read = {name: under(f"{name}:", data) for name in _READ}
        inputs = case.pixels.input(unknown["image"])
        return objective.loss(unknown, data) + weight * statistics_distance(case.net, case.weights_of(data), inputs, read)

    return replace(objective, loss=loss, data=objective.data | data)


def statistics_distance(net: nn.Module, weights: Data, inputs: Tensor, seen: Mapping[str, Data]) -> Tensor:
    """How far the statistics of a batch ``(B, C, H, W)`` are from those that a message gives away: ``()``.

    The mean over layers and channels of ``(mean - m)^2 / (v + e_m) + (variance - v)^2 / (v^2 + e_v)``, with ``m``, ``v`` what the
    message says and ``e`` its errors. Unlike DeepInversion's norms it does not depend on the scale of a layer's inputs.

    Args:
        net: normalises by the batch.
        seen: ``mean``, ``variance``, ``mean_error`` and ``variance_error`` of each layer ``(C,)``, by its name.
    """
    apart: list[Tensor] = []

    def compare(name: str) -> RemovableHandle:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            values = args[0].transpose(0, 1).flatten(1)
            mean, variance, mean_error, variance_error = (seen[what][name] for what in _READ)
            scale = variance.clamp_min(_LEAST)
            off = (values.mean(1) - mean).square() / (scale + mean_error)
            apart.append((off + (values.var(1) - variance).square() / (scale.square() + variance_error)).mean())

        return net.get_submodule(name).register_forward_pre_hook(hook)

    hooks = [compare(name) for name in seen["mean"]]
    try:
        functional_call(net, weights, (inputs,))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(apart).mean()
