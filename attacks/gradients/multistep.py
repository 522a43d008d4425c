"""A weight change of many local steps, read as a gradient (one-step approximation, row ratios).

SGD with heavy-ball momentum ``m`` and L2 penalty ``d`` is linear in the gradients and the first weights::

    v_k = m v_{k-1} + g_k + d W_{k-1},    W_k = W_{k-1} - lr v_k,    v_0 = 0

so after K steps ``W_K - W_0 = shrink W_0 - sum_k c_k g_k`` with coefficients that depend on the schedule alone. Subtracting the
known ``shrink W_0`` is therefore exact whatever the gradients were. To first order in ``d`` it is ``-lr S d W_0`` with
``S = (K - m (1 - m^K) / (1 - m)) / (1 - m)``, which is ``2 lr K d W_0`` for m = 0.5 and large K.
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
    """The effect of K steps on the first weights and a constant gradient: ``change = shrink * W_0 - gain * gradient``."""

    shrink: float
    gain: float


def response(schedule: Schedule, weight_decay: float) -> Response:
    """The coefficients of a change after ``schedule.steps`` steps: exact, by running the recurrence on them.

    ``gain`` is also the sum of the weights ``c_k`` of the gradients, so that dividing by it gives their weighted mean.
    """
    moved_by_w, moved_by_g, v_by_w, v_by_g = 0.0, 0.0, 0.0, 0.0
    for _ in range(schedule.steps):
        v_by_w = schedule.momentum * v_by_w + weight_decay * (1 + moved_by_w)
        v_by_g = schedule.momentum * v_by_g + weight_decay * moved_by_g + 1
        moved_by_w -= schedule.lr * v_by_w
        moved_by_g -= schedule.lr * v_by_g
    return Response(moved_by_w, -moved_by_g)


def noise_gain(schedule: Schedule) -> float:
    """Variance of the change caused by independent noise of variance 1 on every step's gradient: ``sum_k c_k^2``.

    Weight decay, which changes the ``c_k`` by a share of about ``lr K d``, is ignored.
    """
    m = schedule.momentum
    return sum((schedule.lr * (1 - m ** (schedule.steps - k)) / (1 - m)) ** 2 for k in range(schedule.steps))


def is_bias(tensor: Tensor) -> bool:
    """Whether the weight decay of biases applies: to tensors of one dimension, so also to the scales of norms."""
    return tensor.ndim <= 1


def mean_gradient(
    change: Mapping[str, Tensor], weights: Mapping[str, Tensor], schedule: Schedule, undo_decay: bool = True
) -> dict[str, Tensor]:
    """Weighted mean of the K gradients, by name; the gradient itself where it was constant.

    Not exact in one point: with weight decay the ``c_k`` of weights and biases differ by a share of about ``lr K d / (1 - m)``,
    and so do row ratios (1e-4 for the project's defaults).

    Args:
        weights: the weights before the first step; needed where weight decay is not zero.
        undo_decay: ``False`` leaves the penalty in, for comparison.

    Raises:
        Inapplicable: weights are needed that the attacker does not know.
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


def as_gradient(observation: Observation, undo_decay: bool = True) -> Observation:
    """The message with its weight change converted to a gradient.

    Without a known schedule the change is only negated, without what weight decay added if that is known: right up to a factor,
    as that of a clipped message (:attr:`fedpriv.attacks.core.altered.Altered.rescaled`). In a clipped change the weight decay is
    left in (:func:`decay_before_clipping`): it shrank by an unknown factor, and undoing all of it would do more harm.
    """
    if observation.kind == "gradient":
        return observation
    altered, schedule = observation.altered, observation.schedule
    if schedule is None:
        known = penalties(observation) if undo_decay else {}
        shared = {name: known.get(name, 0.0) - tensor for name, tensor in observation.shared.items()}
        return replace(observation, kind="gradient", shared=shared, altered=replace(altered, rescaled=True))
    undo_decay = undo_decay and not altered.rescaled
    shared = mean_gradient(observation.shared, observation.weights, schedule, undo_decay)
    return replace(
        observation,
        kind="gradient",
        shared=shared,
        altered=altered.scaled(lambda name: 1 / response(schedule.of(name), 0.0).gain),
    )


def penalties(observation: Observation) -> dict[str, Tensor]:
    """What weight decay added to a change whose schedule is not known, by name, of the tensors of which that is known."""
    penalty = observation.penalty if observation.kind == "change" and observation.schedule is None else None
    if penalty is None or observation.altered.rescaled:
        return {}
    start = {name: observation.weights[name] for name in observation.shared if name in observation.weights}
    return {name: penalty(weight).to(weight) for name, weight in start.items()}


def rounding(observation: Observation, name: str) -> float:
    """Standard deviation of an entry's error in the mean gradient ``name``, because weights were rounded at every step.

    0 for a gradient, and where the weights are not known. A rounding to the nearest is uniform within half a unit of the last
    place, which is from half of ``eps`` to ``eps`` of the weight.
    """
    if observation.kind == "gradient" or name not in observation.weights:
        return 0.0
    weights, schedule = observation.weights[name], observation.schedule
    unit = 0.75 * torch.finfo(weights.dtype).eps * float(weights.double().square().mean().sqrt())
    if schedule is None:
        return unit / math.sqrt(12)
    return unit * math.sqrt(schedule.steps / 12) / response(schedule.of(name), 0.0).gain


def decay_before_clipping(observation: Observation) -> dict[str, Tensor]:
    """What weight decay added to the mean gradient before a change was clipped, by name; empty for other messages."""
    schedule = observation.schedule
    if observation.kind == "gradient" or schedule is None or not observation.altered.rescaled:
        return {}
    found = {}
    for name, tensor in observation.shared.items():
        decay = schedule.weight_decay_bias if is_bias(tensor) else schedule.weight_decay
        shrink, gain = response(schedule.of(name), decay)
        if shrink and name in observation.weights:
            found[name] = observation.weights[name] * (-shrink / gain)
    return found
