"""What BatchNorm's running statistics say of a client's batches, and the same statistics of samples that the attacker has.

Each batch that passes a layer in training mode moves its running mean and variance by the layer's momentum ``m``,
``r_s = (1 - m) r_{s-1} + m b_s``, where ``b_s`` is the batch's mean or unbiased variance of each channel. So after S batches

    (r_S - (1 - m)^S r_0) / (1 - (1 - m)^S) = sum_s w_s b_s,    w_s = m (1 - m)^(S - s) / (1 - (1 - m)^S)

is a weighted mean over the batches: all on the left was sent, or is a public option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.observation import Observation, copied
from fedpriv.attacks.core.reconstruction import Inapplicable

POINTS = 4
"""Weights on the client's way at which samples pass the net, at most."""


@dataclass(frozen=True)
class LayerStatistics:
    """What a message says of the inputs of one BatchNorm layer.

    Attributes:
        mean, variance: ``(C,)`` double, averaged over the batches; the variances are unbiased, as torch stores them.
        weights: of the batches in these averages, in their order; they sum to 1.
        mean_error, variance_error: ``(C,)`` variance of an entry's error, by noise and rounding; infinite where it was not sent.
    """

    mean: Tensor
    variance: Tensor
    weights: tuple[float, ...]
    mean_error: Tensor
    variance_error: Tensor


def layer_statistics(observation: Observation) -> dict[str, LayerStatistics]:
    """The statistics of each BatchNorm layer of which they were sent, by the layer's name in ``observation.net``.

    Raises:
        Inapplicable: there is none; or it is not known how many batches passed, or what a layer makes of them.
    """
    layers = {
        name: module
        for name, module in observation.net.named_modules()
        if isinstance(module, _BatchNorm) and module.training and all(of in observation.buffers for of in _tensors(name))
    }
    if not layers:
        raise Inapplicable("no running statistics of BatchNorm were sent")
    if observation.passes is None:
        raise Inapplicable("it is not known how many batches the client's running statistics are of")
    if observation.altered.rescaled:
        raise Inapplicable("the change was clipped, and it is not known how much of the running statistics' is left")
    return {name: _of_layer(observation, name, module) for name, module in layers.items()}


def _of_layer(observation: Observation, name: str, layer: _BatchNorm) -> LayerStatistics:
    assert observation.passes is not None
    if layer.momentum is None:  # torch's cumulative average: the counter of batches is an integer, and not sent
        raise Inapplicable(f"{name} has momentum=None: its statistics are averages over a number of batches that is not sent")
    if any(of not in observation.weights for of in _tensors(name)):
        raise Inapplicable(f"the running statistics with which {name} began are not known")
    number, kept = observation.passes.number, 1 - layer.momentum
    share = 1 - kept**number
    values, errors = [], []
    for of in _tensors(name):
        before, after = (tensors[of].detach().cpu().double() for tensors in (observation.weights, observation.buffers))
        values.append((after - kept**number * before) / share)
        unit = torch.finfo(observation.buffers[of].dtype).eps * torch.maximum(before.abs(), after.abs())
        error = (number * unit.square() / 12 + observation.altered.variance.get(of, 0.0)) / share**2
        if (sent := observation.altered.kept.get(of)) is not None:
            error = error.masked_fill(~sent.cpu(), math.inf)
        errors.append(error)
    weights = tuple(layer.momentum * kept ** (number - step) / share for step in range(1, number + 1))
    return LayerStatistics(values[0], values[1], weights, errors[0], errors[1])


def _tensors(layer: str) -> tuple[str, str]:
    return f"{layer}.running_mean", f"{layer}.running_var"


@dataclass(frozen=True)
class SampleStatistics:
    """The statistics of one layer's inputs for each of n samples; a batch's are their means over its samples.

    Attributes:
        means, squares: ``(n, C)`` double: of each channel, the mean over its positions, and the mean of the squares.
        drift_means, drift_squares: how far these move from the client's first weights to its last.
        positions: H * W, or 1.
    """

    means: Tensor
    squares: Tensor
    drift_means: Tensor
    drift_squares: Tensor
    positions: int


@torch.no_grad()
def sample_statistics(
    observation: Observation, seen: Mapping[str, LayerStatistics], samples: Callable[[], Iterator[Any]]
) -> dict[str, SampleStatistics]:
    """The statistics of samples at the layers that ``seen`` names, by layer in the order in which the net calls them; those whose
    inputs are not known are left out.

    Layers of BatchNorm normalise as the client's did: by the statistics of its batches, which the message gives away. So for one
    batch the inputs of every layer are exact. Over several, the client's weights are taken to move evenly from those that it
    was sent to those that it sent back, unless a defence altered the latter.

    Args:
        samples: inputs of the net, normalised, in consecutive parts; called once for each set of weights.
    """
    ends = [_pass(observation, seen, samples, at) for at in (0.0, 1.0)] if _moves(observation) else []
    found: dict[str, SampleStatistics] = {}
    parts = [(share, _pass(observation, seen, samples, at)) for share, at in _on_the_way(observation, seen)]
    for name, (*_, positions) in parts[0][1].items():
        means = torch.stack([share * one[name][0] for share, one in parts]).sum(0)
        squares = torch.stack([share * one[name][1] for share, one in parts]).sum(0)
        drifts = (torch.zeros_like(means), torch.zeros_like(squares))
        if ends:
            drifts = (ends[1][name][0] - ends[0][name][0], ends[1][name][1] - ends[0][name][1])
        if bool(means.isfinite().all() and squares.isfinite().all()):
            found[name] = SampleStatistics(means, squares, *drifts, positions)
    return found


def _moves(observation: Observation) -> bool:
    """Whether the client's weights moved between its batches, in a way that the attacker knows about."""
    several = observation.passes is not None and observation.passes.number > 1
    return several and observation.kind == "change" and observation.altered == UNALTERED


def _on_the_way(observation: Observation, seen: Mapping[str, LayerStatistics]) -> list[tuple[float, float]]:
    """(share, place) of at most :data:`POINTS` groups of the client's batches: place 0 is the first weights, 1 the last."""
    weights = np.array(next(iter(seen.values())).weights)
    if not _moves(observation):
        return [(1.0, 0.0)]
    # Groups of nearly equal weight; batch s passes the weights after s - 1 steps.
    group = np.minimum((np.cumsum(weights) - weights / 2) * POINTS, POINTS - 1).astype(int)
    shares = [float(weights[group == one].sum()) for one in range(POINTS)]
    places = np.arange(len(weights)) / len(weights)
    return [(share, float((weights * places)[group == one].sum() / share)) for one, share in enumerate(shares) if share > 0]


def _pass(
    observation: Observation, seen: Mapping[str, LayerStatistics], samples: Callable[[], Iterator[Any]], at: float
) -> dict[str, tuple[Tensor, Tensor, int]]:
    """(means, squares, positions) of each layer with the client's weights at a place on its way, 0 at first and 1 at last."""
    net, state = copied(observation.net).eval(), dict(observation.weights)
    if at:
        state |= {name: state[name] + at * change for name, change in observation.shared.items() if name in state}
    found: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
    assert observation.passes is not None
    batch = observation.passes.samples

    def watch(name: str) -> None:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            fed = args[0].double().flatten(2) if args[0].ndim > 2 else args[0].double()[..., None]
            found.setdefault(name, []).append((fed.mean(2).cpu(), fed.square().mean(2).cpu(), fed.shape[2]))
            mean, variance = _normalising(seen[name], batch * fed.shape[2])
            assert isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
            module.running_mean.copy_(mean)
            module.running_var.copy_(variance)

        net.get_submodule(name).register_forward_pre_hook(hook)

    for name in seen:
        watch(name)
    for part in samples():
        functional_call(net, {name: tensor.clone() for name, tensor in state.items()}, (part,))
    return {
        name: (torch.cat([means for means, *_ in one]), torch.cat([squares for _, squares, _ in one]), one[0][2])
        for name, one in found.items()
    }


def _normalising(seen: LayerStatistics, values: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance ``(C,)`` by which a batch of so many values a channel was normalised; noise may have made the
    variance negative, which none is."""
    return seen.mean, (seen.variance * (values - 1) / values).clamp_min(0)
