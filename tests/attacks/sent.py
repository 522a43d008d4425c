"""Messages of the settings of controls, and messages that went through a defence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.lab.setting import RowSetting, Setting


def messages_of(setting: Setting | RowSetting, seed: int = 0) -> tuple[list[Observation], Tensor, Tensor]:
    """The messages, and the samples and labels behind them."""
    samples, labels = setting.truth(seed)
    return setting.observations(samples, labels, seed), samples, labels


def each(message: Observation, change: Callable[[Tensor], Tensor], **facts: Any) -> Observation:
    """Every shared tensor is changed; ``facts``: other fields of the message."""
    return replace(message, shared={name: change(tensor) for name, tensor in message.shared.items()}, **facts)


def only(message: Observation, part: str) -> Observation:
    """The tensors are shared whose names begin so."""
    return replace(message, shared={name: tensor for name, tensor in message.shared.items() if name.startswith(part)})


def clipped(message: Observation, factor: float) -> Observation:
    """And it is known that the message was scaled, but not by how much."""
    return each(message, lambda tensor: factor * tensor, altered=Altered(rescaled=True))


def pruned(message: Observation, least: Callable[[Tensor], Tensor | float]) -> Observation:
    """The entries are sent that are at least so large; which ones is known. ``least`` gets a tensor's sizes."""
    sizes = {name: tensor.abs() for name, tensor in message.shared.items()}
    kept = {name: size >= least(size) for name, size in sizes.items()}
    return replace(message, shared={name: t * kept[name] for name, t in message.shared.items()}, altered=Altered(kept=kept))


def noisy(message: Observation, deviation: float, seed: int = 0) -> Observation:
    """Gaussian noise of a known deviation is on every entry."""
    draw = torch.Generator().manual_seed(seed)
    altered = Altered(variance=dict.fromkeys(message.shared, deviation**2))
    return each(
        message, lambda tensor: tensor + deviation * torch.randn(tensor.shape, generator=draw).to(tensor), altered=altered
    )


def noised(message: Observation, deviation: float, seed: int = 0) -> Observation:
    """The attacker does not know of the noise."""
    return replace(noisy(message, deviation, seed), altered=message.altered)


def of_unknown_rate(message: Observation, lr: float) -> Observation:
    """The change of one step on a gradient, whose learning rate is not known."""
    variance = {name: lr**2 * value for name, value in message.altered.variance.items()}
    return each(message, lambda tensor: -lr * tensor, kind="change", altered=replace(message.altered, variance=variance))


def in_double(message: Observation) -> Observation:
    shared, weights = (
        {name: t.double() if t.is_floating_point() else t for name, t in group.items()}
        for group in (message.shared, message.weights)
    )
    return replace(message, shared=shared, weights=weights, net=copy.deepcopy(message.net).double())
