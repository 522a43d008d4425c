"""The learning rate of each round and of each step.

Rates are functions of the config and of the round, or the step, alone. So server, clients on any machine, resumed runs and audits
have the same ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import torch
from torch.optim import lr_scheduler

from fedpriv.config import NamedOptions, TrainConfig
from fedpriv.config.optimisers import OneCycle, RateSchedule, schedule_options
from fedpriv.errors import UsageError


def rate_of_round(train: TrainConfig, round: int, base: float | None = None) -> float:
    """The learning rate of a round, counted from 1 (0, before the first, has that of the first).

    Args:
        base: the rate that ``train.lr_schedule`` or ``train.lr_decay`` begins with; ``None``: ``train.lr``.
    """
    base = base or train.lr
    if train.lr_schedule is None:
        return base * train.lr_decay ** (max(round, 1) - 1)
    return _rates(_schedule(train.lr_schedule), base, train.rounds)[max(round, 1) - 1]


def decay_of_round(train: TrainConfig, round: int) -> float:
    """The learning rate of a round as a multiple of ``train.lr``."""
    return rate_of_round(train, round) / train.lr if train.lr_schedule is not None else train.lr_decay ** (max(round, 1) - 1)


def rates_of_steps(train: TrainConfig, lr: float, steps: int) -> Sequence[float]:
    """The learning rate of each step of a phase, and of the first one where there are none.

    The warm-up is ``transformers.get_constant_schedule_with_warmup``; ``train.local_lr_schedule`` begins after it.
    """
    warm = [lr * min(1.0, step / train.warmup_steps) for step in range(min(steps, train.warmup_steps))]
    rest = max(steps, 1) - len(warm)
    if train.local_lr_schedule is None or not rest:
        return [*warm, *[lr] * rest]
    return [*warm, *_rates(_schedule(train.local_lr_schedule), lr, rest)]


def check_rates(train: TrainConfig) -> None:
    """Refuse a schedule that leaves a round without learning.

    Raises:
        UsageError: the learning rate of a round is 0.
    """
    if train.lr_schedule is None:
        return
    still = [round for round in range(1, train.rounds + 1) if not rate_of_round(train, round) > 0]
    if still:
        length = _schedule(train.lr_schedule).length
        longer = f"{length}={train.rounds}, its default, makes it last" if length else "another one does"
        raise UsageError(
            f"train.lr_schedule {train.lr_schedule.name}: the learning rate of round {still[0]} of {train.rounds} is 0, so its "
            f"clients would learn nothing; {longer}"
        )


def _schedule(named: NamedOptions) -> RateSchedule:
    return schedule_options(named.name, named.params)


@lru_cache(maxsize=1024)
def _rates(schedule: RateSchedule, base: float, total: int) -> tuple[float, ...]:
    """The rates that torch's scheduler gives to ``total`` rounds or steps, from a base rate on."""
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=base)
    options = {field.name: getattr(schedule, field.name) for field in fields(schedule)}  # type: ignore[arg-type]
    if schedule.length and options[schedule.length] is None:
        options[schedule.length] = total
    if isinstance(schedule, OneCycle):
        options |= {"max_lr": base, "total_steps": total, "cycle_momentum": False}
    scheduler = getattr(lr_scheduler, schedule.torch_name)(optimiser, **options)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser takes no steps: it has none to take
        for step in range(total):
            rates.append(float(optimiser.param_groups[0]["lr"]))
            if step + 1 < total:
                scheduler.step()
    return tuple(rates)
