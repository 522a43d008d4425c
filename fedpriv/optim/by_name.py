"""torch's optimisers by name, and their states as named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.config import TrainConfig


def torch_optimiser(
    train: TrainConfig, groups: Sequence[Mapping[str, Any]], lr: float, fused: bool = False
) -> torch.optim.Optimizer:
    """``train.optimizer`` over parameter groups, with ``train.optimizer_options``.

    Args:
        groups: each with ``params`` and ``weight_decay``, which rprop ignores.
        fused: the fused implementation where the clients' optimisers use it, equal up to rounding.
    """
    options: dict[str, Any] = dict(train.optimizer_options)
    if train.optimizer == "sgd":
        options["momentum"] = train.momentum
    if fused and train.optimizer in ("sgd", "adam", "adamw"):
        options["fused"] = True
    kind = getattr(torch.optim, train.options.torch_name)
    optimiser: torch.optim.Optimizer = kind([dict(group) for group in groups], lr=lr, **options)
    return optimiser


def state_of(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state by ``"<number of its tensor>/<name>"``; empty before its first step."""
    stored = optimiser.state_dict()["state"]
    return {f"{at}/{name}": value for at, state in stored.items() for name, value in state.items() if isinstance(value, Tensor)}


def restore(optimiser: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state of :func:`state_of`; rates, decays and options stay its own."""
    nested: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        at, _, name = key.partition("/")
        # A counter stays on the processor, unless torch moves it.
        nested.setdefault(int(at), {})[name] = (value.cpu() if name == "step" else value).clone()
    optimiser.load_state_dict({"state": nested, "param_groups": optimiser.state_dict()["param_groups"]})
