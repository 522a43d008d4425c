"""A prior for gradient inversion from BatchNorm statistics (DeepInversion, Yin et al., CVPR 2020, equation 4).

DeepInversion pulls the mean and variance of each BatchNorm layer's inputs towards the layer's running statistics, averages over
the training data; GradInversion (Yin et al., CVPR 2021) adds this to gradient matching. Here the targets are the statistics of
the client's own batches, recovered from the message (:mod:`fedpriv.attacks.gradients.batch_statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.batch_statistics import layer_statistics
from fedpriv.attacks.gradients.matching import Case, Data, Objective, under

_READ = ("mean", "variance", "mean_error", "variance_error")
_MIN_VARIANCE = 1e-8  # a channel may be constant over a batch


def with_running_statistics(objective: Objective, case: Case, observations: Sequence[Observation], weight: float) -> Objective:
    """The objective plus ``weight`` times :func:`statistics_distance`; unchanged if a message has no readable statistics."""
    try:
        observed = [layer_statistics(statistics) for statistics in observations]
    except Inapplicable:
        return objective
    like = next(iter(objective.data.values()))
    data: Data = {}
    for layer in observed[0]:
        for name in _READ:
            data[f"{name}:{layer}"] = torch.stack([getattr(statistics[layer], name) for statistics in observed]).to(like)

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        read = {name: under(f"{name}:", data) for name in _READ}
        inputs = case.pixels.input(unknown["image"])
        return objective.loss(unknown, data) + weight * statistics_distance(case.net, case.weights_of(data), inputs, read)

    return replace(objective, loss=loss, data=objective.data | data)


def statistics_distance(net: nn.Module, weights: Data, inputs: Tensor, observed: Mapping[str, Data]) -> Tensor:
    """Distance ``()`` between the statistics of a batch ``(B, C, H, W)`` and the observed ones.

    The mean over layers and channels of ``(mean - m)^2 / (v + e_m) + (variance - v)^2 / (v^2 + e_v)``, with the observed mean
    ``m`` and variance ``v`` and the variances ``e`` of their errors. Unlike DeepInversion's norms it does not depend on the scale
    of a layer's inputs.

    Args:
        net: in training mode, so that it normalises by the batch.
        observed: ``mean``, ``variance``, ``mean_error`` and ``variance_error`` of each layer ``(C,)``, by its name.
    """
    terms: list[Tensor] = []

    def compare(name: str) -> RemovableHandle:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            values = args[0].transpose(0, 1).flatten(1)
            mean, variance, mean_error, variance_error = (observed[what][name] for what in _READ)
            scale = variance.clamp_min(_MIN_VARIANCE)
            off = (values.mean(1) - mean).square() / (scale + mean_error)
            terms.append((off + (values.var(1) - variance).square() / (scale.square() + variance_error)).mean())

        return net.get_submodule(name).register_forward_pre_hook(hook)

    hooks = [compare(name) for name in observed["mean"]]
    try:
        functional_call(net, weights, (inputs,))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(terms).mean()
