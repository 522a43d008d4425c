"""A client's local steps as the server knows them from the config: plain SGD as a schedule, others by what weight decay does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Passes, Schedule
from fedpriv.config import TrainConfig
from fedpriv.methods import Method


def schedule_of(
    train: TrainConfig, method: Method, round: int, sent: Collection[str], examples: int, parts: int, plain: frozenset[str]
) -> Schedule | None:
    """The local SGD steps of the shared layers; ``None`` where a schedule cannot describe them: layers took different numbers of
    steps, learning rates differ, or the optimiser is not linear in the gradients. Its names are the net's.

    Args:
        sent: the names of the tensors of the model in the message.
        examples: number of samples behind it.
        parts: of how many clients.
        plain: the tensors without momentum.
    """
    if train.optimizer != "sgd" or train.clip_grad_norm is not None or train.warmup_steps:
        return None
    if (alike := _alike(train, method, round, sent, examples, parts)) is None:
        return None
    steps, lr = alike
    decay = (train.weight_decay, train.weight_decay_bias)
    return Schedule(lr, steps, min(_batch(train, method, parts), examples), train.momentum, *decay, plain)


def passes_of(
    train: TrainConfig, method: Method, round: int, buffers: Collection[str], examples: int, parts: int
) -> Passes | None:
    """The batches that moved the buffers, such as running means, in a client's local update; ``None``: not as many for each of
    them, or not known of the objective. ``buffers`` are their names; the other arguments are those of :func:`schedule_of`.
    """
    objective, an_epoch = method.objective, _an_epoch(train, method, examples, parts)
    steps = {
        sum(phase.steps or phase.epochs * an_epoch for phase in method.phases(round) if role in phase.trains)
        for role in {name.split(".")[0] for name in buffers}
    }
    if objective.passes_per_step is None or len(steps) != 1 or steps == {0}:
        return None
    samples = min(_batch(train, method, parts), examples) // (parts * objective.batches_per_step * train.accumulate)
    return Passes(steps.pop() * objective.passes_per_step * train.accumulate, max(1, samples))


def idle_of(
    train: TrainConfig, method: Method, round: int, sent: Collection[str], examples: int, parts: int
) -> Callable[[Tensor], Tensor] | None:
    """What the steps do to weights whose gradients are all zero; see :class:`fedpriv.attacks.core.observation.Observation`.

    ``None``: it is not known how many there are. The arguments are those of :func:`schedule_of`.
    """
    roles = {name.split(".")[0] for name in sent}
    if parts != 1 or sum(not roles.isdisjoint(phase.trains) for phase in method.phases(round)) != 1:
        return None
    alike = _alike(train, method, round, sent, examples, parts)
    return None if alike is None else partial(_decayed, train, *alike)


def stands_still(train: TrainConfig, method: Method, round: int, sent: Collection[str], examples: int, parts: int) -> bool:
    """Whether layers of the message took no step: warm-up begins every phase with a learning rate of 0, and theirs has no further
    step. The arguments are those of :func:`schedule_of`."""
    if not train.warmup_steps:
        return False
    an_epoch, phases = _an_epoch(train, method, examples, parts), method.phases(round)
    taken = {
        role: max(phase.steps or phase.epochs * an_epoch for phase in phases if role in phase.trains)
        for role in {name.split(".")[0] for name in sent}
        if any(role in phase.trains for phase in phases)
    }
    return any(steps <= 1 for steps in taken.values())


def _alike(
    train: TrainConfig, method: Method, round: int, sent: Collection[str], examples: int, parts: int
) -> tuple[int, float] | None:
    """The number of steps and the learning rate, if they are the same for all layers."""
    an_epoch, phases = _an_epoch(train, method, examples, parts), method.phases(round)
    roles = {name.split(".")[0] for name in sent}
    steps = {sum(phase.steps or phase.epochs * an_epoch for phase in phases if role in phase.trains) for role in roles}
    rates = {phase.lr or train.lr for phase in phases}
    if len(steps) != 1 or len(rates) != 1 or steps == {0}:
        return None
    return steps.pop(), rates.pop() * train.lr_decay ** (round - 1)


def _an_epoch(train: TrainConfig, method: Method, examples: int, parts: int) -> int:
    whole, rest = divmod(examples, _batch(train, method, parts))
    return whole + (rest >= parts * max(train.min_batch, method.objective.smallest_batch))  # smaller batches are skipped


def _batch(train: TrainConfig, method: Method, parts: int) -> int:
    return train.batch_size * method.objective.batches_per_step * parts


def _decayed(train: TrainConfig, steps: int, lr: float, start: Tensor) -> Tensor:
    """The change of weights ``start``. Adam divides a penalty by its own size, so all move by about ``lr`` in every step."""
    weights, decay = start.float().clone(), train.weight_decay_bias if start.ndim <= 1 else train.weight_decay
    optimiser: torch.optim.Optimizer
    if train.optimizer == "sgd":
        optimiser = torch.optim.SGD([weights], lr=lr, momentum=train.momentum, weight_decay=decay)
    else:
        optimiser = (torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam)([weights], lr=lr, weight_decay=decay)
    weights.grad = torch.zeros_like(weights)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * min(1.0, step / train.warmup_steps) if train.warmup_steps else lr
        optimiser.step()
    return weights.double() - start.double()
