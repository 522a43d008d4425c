"""A weight change of several local steps, converted to a mean gradient.

SGD with heavy-ball momentum ``m`` and weight decay ``d`` is linear in the gradients and the initial weights::

    v_k = m v_{k-1} + g_k + d W_{k-1},    W_k = W_{k-1} - lr v_k,    v_0 = 0

so after K steps ``W_K - W_0 = shrink W_0 - sum_k c_k g_k``, with coefficients that depend on the schedule alone. Subtracting
``shrink W_0`` therefore undoes weight decay exactly, whatever the gradients were. To first order in ``d`` it is ``-lr S d W_0``
with ``S = (K - m (1 - m^K) / (1 - m)) / (1 - m)``, about ``2 lr K d W_0`` for m = 0.5 and large K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable


class Response(NamedTuple):
    """The change after K steps with a constant gradient: ``change = shrink * W_0 - gain * gradient``."""

    shrink: float
    gain: float


def response(schedule: Schedule, weight_decay: float) -> Response:
    """The coefficients of a change after ``schedule.steps`` steps, exact, by running the recurrence.

    ``gain`` is also the sum of the ``c_k``, so that dividing by it gives the weighted mean of the gradients.
    """
    moved_by_w, moved_by_g, v_by_w, v_by_g = 0.0, 0.0, 0.0, 0.0
    for _ in range(schedule.steps):
        v_by_w = schedule.momentum * v_by_w + weight_decay * (1 + moved_by_w)
        v_by_g = schedule.momentum * v_by_g + weight_decay * moved_by_g + 1
        moved_by_w -= schedule.lr * v_by_w
        moved_by_g -= schedule.lr * v_by_g
    return Response(moved_by_w, -moved_by_g)


def noise_gain(schedule: Schedule) -> float:
    """Variance of the change that independent unit-variance noise on every step's gradient causes: ``sum_k c_k^2``.

    Ignores weight decay, which changes the ``c_k`` by a share of about ``lr K d``.
    """
    m = schedule.momentum
    return sum((schedule.lr * (1 - m ** (schedule.steps - k)) / (1 - m)) ** 2 for k in range(schedule.steps))


def is_bias(tensor: Tensor) -> bool:
    """Whether the weight decay of biases applies: to one-dimensional tensors, including the scales of norms."""
    return tensor.ndim <= 1


def mean_gradient(
    change: Mapping[str, Tensor], weights: Mapping[str, Tensor], schedule: Schedule, undo_decay: bool = True
) -> dict[str, Tensor]:
    """Weighted mean of the K gradients, by name.

    If weights and biases decay differently, their ``c_k`` differ by a share of about ``lr K d / (1 - m)``, and row ratios are off
    by as much.

    Args:
        weights: the weights before the first step; needed if there is weight decay.
        undo_decay: ``False`` leaves the weight decay in.

    Raises:
        Inapplicable: the weights of a tensor with weight decay are not known.
    """
    gradients = {}
    for name, tensor in change.items():
        decay = schedule.weight_decay_bias if is_bias(tensor) else schedule.weight_decay
        shrink, gain = response(schedule.of(name), decay if undo_decay else 0.0)
        if shrink:
            if name not in weights:
                raise Inapplicable(f"undoing the weight decay of {name!r} needs the weights at which the client began")
            tensor = tensor - shrink * weights[name]
        gradients[name] = tensor / -gain
    return gradients


def as_gradient(observation: Observation) -> Observation:
    """The observation with its weight change converted to a gradient.

    With an unknown schedule the change is negated and known weight decay undone: the result is right up to a factor
    (:attr:`fedpriv.attacks.core.altered.Altered.rescaled`). In a clipped change the weight decay is left in, since clipping
    scaled it by an unknown factor (:func:`decay_before_clipping`).
    """
    if observation.kind == "gradient":
        return observation
    altered, schedule = observation.altered, observation.schedule
    if schedule is None:
        known = penalties(observation)
        shared = {name: known.get(name, 0.0) - tensor for name, tensor in observation.shared.items()}
        return replace(observation, kind="gradient", shared=shared, altered=replace(altered, rescaled=True))
    shared = mean_gradient(observation.shared, observation.weights, schedule, undo_decay=not altered.rescaled)
    altered = altered.scaled(lambda name: 1 / response(schedule.of(name), 0.0).gain)
    return replace(observation, kind="gradient", shared=shared, altered=altered)


def penalties(observation: Observation) -> dict[str, Tensor]:
    """The part of a change with unknown schedule that is due to weight decay, by name, where that is known."""
    penalty = observation.penalty if observation.kind == "change" and observation.schedule is None else None
    if penalty is None or observation.altered.rescaled:
        return {}
    start = {name: observation.weights[name] for name in observation.shared if name in observation.weights}
    return {name: penalty(weight).to(weight) for name, weight in start.items()}


def rounding(observation: Observation, name: str) -> float:
    """Standard deviation of an entry's rounding error in the mean gradient ``name``; weights are rounded after every step.

    0 for a gradient, and if the weights are not known. The error of one rounding is uniform within half a unit in the last place,
    which is between ``eps / 2`` and ``eps`` times the weight.
    """
    if observation.kind == "gradient" or name not in observation.weights:
        return 0.0
    weights, schedule = observation.weights[name], observation.schedule
    unit = 0.75 * torch.finfo(weights.dtype).eps * float(weights.double().square().mean().sqrt())
    if schedule is None:
        return unit / math.sqrt(12)
    return unit * math.sqrt(schedule.steps / 12) / response(schedule.of(name), 0.0).gain


def decay_before_clipping(observation: Observation) -> dict[str, Tensor]:
    """The part of the mean gradient that was due to weight decay before clipping, by name; empty for other messages."""
    schedule = observation.schedule
    if observation.kind == "gradient" or schedule is None or not observation.altered.rescaled:
        return {}
    decays = {}
    for name, tensor in observation.shared.items():
        decay = schedule.weight_decay_bias if is_bias(tensor) else schedule.weight_decay
        shrink, gain = response(schedule.of(name), decay)
        if shrink and name in observation.weights:
            decays[name] = observation.weights[name] * (-shrink / gain)
    return decays
