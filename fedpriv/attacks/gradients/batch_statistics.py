"""Batch statistics recovered from BatchNorm's running statistics, and the same statistics of the attacker's samples.

Each batch in training mode updates a layer's running mean and variance with the layer's momentum ``m``,
``r_s = (1 - m) r_{s-1} + m b_s``, where ``b_s`` is the batch's mean or unbiased variance of each channel. So after S batches

    (r_S - (1 - m)^S r_0) / (1 - (1 - m)^S) = sum_s w_s b_s,    w_s = m (1 - m)^(S - s) / (1 - (1 - m)^S)

is a weighted mean over the batches. Everything on the left was sent or is a public setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, copied
from fedpriv.attacks.core.reconstruction import Inapplicable

POINTS = 4
"""Largest number of points on the client's path from initial to final weights at which statistics are computed."""


@dataclass(frozen=True)
class LayerStatistics:
    """Statistics of the inputs of one BatchNorm layer, recovered from a message.

    Attributes:
        mean, variance: ``(C,)`` float64, averaged over the batches; variances are unbiased, as torch stores them.
        weights: of the batches in these averages, in order; they sum to 1.
        mean_error, variance_error: ``(C,)`` variance of the errors by noise and rounding; infinite where nothing was sent.
    """

    mean: Tensor
    variance: Tensor
    weights: tuple[float, ...]
    mean_error: Tensor
    variance_error: Tensor


def layer_statistics(observation: Observation) -> dict[str, LayerStatistics]:
    """The statistics of each BatchNorm layer that sent them, by the layer's name in ``observation.net``.

    Raises:
        Inapplicable: none were sent; the number of batches, the momentum or the initial statistics are not known; or the change
            was clipped.
    """
    layers = {
        name: module
        for name, module in observation.net.named_modules()
        if isinstance(module, _BatchNorm) and module.training and all(tensor in observation.buffers for tensor in _tensors(name))
    }
    if not layers:
        raise Inapplicable("no running statistics of BatchNorm were sent")
    if observation.passes is None:
        raise Inapplicable("it is not known how many batches the client's running statistics are of")
    if observation.altered.rescaled:
        raise Inapplicable("the change was clipped, and it is not known how much of the running statistics' change is left")
    return {name: _of_layer(observation, name, module) for name, module in layers.items()}


def _of_layer(observation: Observation, name: str, layer: _BatchNorm) -> LayerStatistics:
    assert observation.passes is not None
    if layer.momentum is None:  # torch's cumulative average: the counter of batches is an integer, and not sent
        raise Inapplicable(f"{name} has momentum=None: its statistics are averages over a number of batches that is not sent")
    if any(tensor not in observation.weights for tensor in _tensors(name)):
        raise Inapplicable(f"the running statistics with which {name} began are not known")
    number, kept = observation.passes.number, 1 - layer.momentum
    share = 1 - kept**number
    values, errors = [], []
    for tensor in _tensors(name):
        before, after = (tensors[tensor].detach().cpu().double() for tensors in (observation.weights, observation.buffers))
        values.append((after - kept**number * before) / share)
        unit = torch.finfo(observation.buffers[tensor].dtype).eps * torch.maximum(before.abs(), after.abs())
        error = (number * unit.square() / 12 + observation.altered.variance.get(tensor, 0.0)) / share**2
        if (sent := observation.altered.kept.get(tensor)) is not None:
            error = error.masked_fill(~sent.cpu(), math.inf)
        errors.append(error)
    weights = tuple(layer.momentum * kept ** (number - step) / share for step in range(1, number + 1))
    return LayerStatistics(values[0], values[1], weights, errors[0], errors[1])


def _tensors(layer: str) -> tuple[str, str]:
    return f"{layer}.running_mean", f"{layer}.running_var"


@dataclass(frozen=True)
class SampleStatistics:
    """The statistics of one layer's inputs for each of n samples; a batch has their means.

    Attributes:
        means, squares: ``(n, C)`` float64, per channel: mean of the values and of their squares over the positions.
        drift_means, drift_squares: the difference of these between the client's final and initial weights.
        positions: H * W, or 1.
    """

    means: Tensor
    squares: Tensor
    drift_means: Tensor
    drift_squares: Tensor
    positions: int


@torch.no_grad()
def sample_statistics(
    observation: Observation, observed: Mapping[str, LayerStatistics], samples: Callable[[], Iterator[Any]]
) -> dict[str, SampleStatistics]:
    """The statistics of samples at the layers of ``observed``, in call order; layers with unknown inputs are left out.

    BatchNorm layers normalise by the statistics of the client's batches, as they did at the client. So for one batch the inputs
    of every layer are exact. For several, the client's weights are assumed to move evenly from the initial to the final ones,
    unless a defence altered the latter.

    Args:
        samples: yields batches of normalised inputs; called once for each set of weights.
    """
    ends = [_pass(observation, observed, samples, place) for place in (0.0, 1.0)] if _moves(observation) else []
    statistics: dict[str, SampleStatistics] = {}
    parts = [(share, _pass(observation, observed, samples, place)) for share, place in _points_on_path(observation, observed)]
    for name, (*_, positions) in parts[0][1].items():
        means = torch.stack([share * passed[name][0] for share, passed in parts]).sum(0)
        squares = torch.stack([share * passed[name][1] for share, passed in parts]).sum(0)
        drifts = (torch.zeros_like(means), torch.zeros_like(squares))
        if ends:
            drifts = (ends[1][name][0] - ends[0][name][0], ends[1][name][1] - ends[0][name][1])
        if bool(means.isfinite().all() and squares.isfinite().all()):
            statistics[name] = SampleStatistics(means, squares, *drifts, positions)
    return statistics


def _moves(observation: Observation) -> bool:
    """Whether the client's weights moved between its batches and the attacker knows their final values."""
    several = observation.passes is not None and observation.passes.number > 1
    return several and observation.kind == "change" and observation.altered == UNALTERED


def _points_on_path(observation: Observation, observed: Mapping[str, LayerStatistics]) -> list[tuple[float, float]]:
    """(share, place) of at most :data:`POINTS` groups of batches; place 0 means the initial weights, 1 the final ones."""
    weights = np.array(next(iter(observed.values())).weights)
    if not _moves(observation):
        return [(1.0, 0.0)]
    # Groups of nearly equal weight; batch s passes the weights after s - 1 steps.
    group = np.minimum((np.cumsum(weights) - weights / 2) * POINTS, POINTS - 1).astype(int)
    shares = [float(weights[group == index].sum()) for index in range(POINTS)]
    places = np.arange(len(weights)) / len(weights)
    return [(share, float((weights * places)[group == index].sum() / share)) for index, share in enumerate(shares) if share > 0]


def _pass(
    observation: Observation, observed: Mapping[str, LayerStatistics], samples: Callable[[], Iterator[Any]], place: float
) -> dict[str, tuple[Tensor, Tensor, int]]:
    """(means, squares, positions) of each layer, with weights between the client's initial (0) and final (1) ones."""
    net, state = copied(observation.net).eval(), dict(observation.weights)
    if place:
        state |= {name: state[name] + place * change for name, change in observation.shared.items() if name in state}
    passed: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
    assert observation.passes is not None
    batch = observation.passes.samples

    def watch(name: str) -> None:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs = args[0].double().flatten(2) if args[0].ndim > 2 else args[0].double()[..., None]
            passed.setdefault(name, []).append((inputs.mean(2).cpu(), inputs.square().mean(2).cpu(), inputs.shape[2]))
            mean, variance = _normalising(observed[name], batch * inputs.shape[2])
            assert isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
            module.running_mean.copy_(mean)
            module.running_var.copy_(variance)

        net.get_submodule(name).register_forward_pre_hook(hook)

    for name in observed:
        watch(name)
    for part in samples():
        functional_call(net, {name: tensor.clone() for name, tensor in state.items()}, (part,))
    return {
        name: (torch.cat([means for means, *_ in parts]), torch.cat([squares for _, squares, _ in parts]), parts[0][2])
        for name, parts in passed.items()
    }


def _normalising(statistics: LayerStatistics, values: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance ``(C,)`` that normalised a batch with ``values`` per channel; clipped at 0 under noise."""
    return statistics.mean, (statistics.variance * (values - 1) / values).clamp_min(0)
