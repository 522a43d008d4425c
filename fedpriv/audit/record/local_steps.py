"""A client's local steps as the server knows them from the config: plain SGD as a schedule, others by what weight decay does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Passes, Schedule
from fedpriv.config import TrainConfig
from fedpriv.interfaces import Phase
from fedpriv.methods import Method
from fedpriv.optim.by_name import torch_optimiser
from fedpriv.optim.rates import rate_of_round, rates_of_steps


@dataclass(frozen=True)
class LocalSteps:
    """The local steps behind a message.

    Attributes:
        sent: the names of the tensors of the model in the message.
        examples: number of samples behind it.
        parts: of how many clients.
        continued: whether the client's optimiser went on from earlier rounds, whose gradients are then in its steps, too.
    """

    train: TrainConfig
    method: Method
    round: int
    sent: Collection[str]
    examples: int
    parts: int
    continued: bool = False

    def schedule(self, plain: frozenset[str]) -> Schedule | None:
        """The SGD steps of the shared layers, by the net's names; ``None`` where a schedule cannot describe them: layers took
        different numbers of steps, learning rates differ, or steps are not those of SGD with momentum that began at zero.

        Args:
            plain: the tensors without momentum.
        """
        train = self.train
        changes = train.warmup_steps or train.local_lr_schedule is not None
        if not train.heavy_ball or self.continued or train.clip_grad_norm is not None or changes or self._alike is None:
            return None
        steps, lr = self._alike
        decay = (train.weight_decay, train.weight_decay_bias)
        return Schedule(lr, steps, min(self._batch, self.examples), train.momentum, *decay, plain)

    def passes(self, buffers: Collection[str]) -> Passes | None:
        """The batches that moved the buffers of these names, such as running means; ``None``: the buffers saw different numbers
        of batches, or the objective does not say how many."""
        objective, accumulate = self.method.objective, self.train.accumulate
        steps = set(self._steps({name.split(".")[0] for name in buffers}).values())
        if objective.passes_per_step is None or len(steps) != 1 or steps == {0}:
            return None
        samples = min(self._batch, self.examples) // (self.parts * objective.batches_per_step * accumulate)
        return Passes(steps.pop() * objective.passes_per_step * accumulate, max(1, samples))

    def without_gradient(self) -> Callable[[Tensor], Tensor] | None:
        """What the steps do to weights whose gradients are all zero; see :class:`fedpriv.attacks.core.observation.Observation`.

        ``None``: the number of steps is not known.
        """
        phases = sum(not self._roles.isdisjoint(phase.trains) for phase in self.method.phases(self.round))
        if self.parts != 1 or phases != 1 or self.continued or self._alike is None:
            return None
        steps, lr = self._alike
        return partial(_decayed, self.train, rates_of_steps(self.train, lr, steps))

    def stand_still(self) -> bool:
        """Whether some layer of the message takes at most one step in each phase: the first of a warm-up, whose rate is 0."""
        if not self.train.warmup_steps:
            return False
        phases = self.method.phases(self.round)
        lengths = [[self._length(phase) for phase in phases if role in phase.trains] for role in self._roles]
        return any(max(steps) <= 1 for steps in lengths if steps)

    @cached_property
    def _alike(self) -> tuple[int, float] | None:
        """The number of steps and the learning rate, if they are the same for all layers."""
        steps = set(self._steps(self._roles).values())
        rates = {phase.lr or self.train.lr for phase in self.method.phases(self.round)}
        if len(steps) != 1 or len(rates) != 1 or steps == {0}:
            return None
        return steps.pop(), rate_of_round(self.train, self.round, rates.pop())

    @property
    def _roles(self) -> set[str]:
        return {name.split(".")[0] for name in self.sent}

    def _steps(self, roles: Collection[str]) -> dict[str, int]:
        phases = self.method.phases(self.round)
        return {role: sum(self._length(phase) for phase in phases if role in phase.trains) for role in roles}

    def _length(self, phase: Phase) -> int:
        return phase.steps or phase.epochs * self._an_epoch

    @property
    def _an_epoch(self) -> int:
        whole, rest = divmod(self.examples, self._batch)
        smallest = max(self.train.min_batch, self.method.objective.smallest_batch)
        return whole + (rest >= self.parts * smallest)  # smaller batches are skipped

    @property
    def _batch(self) -> int:
        return self.train.batch_size * self.method.objective.batches_per_step * self.parts


def _decayed(train: TrainConfig, rates: Sequence[float], start: Tensor) -> Tensor:
    """The change of weights ``start`` in steps of these rates, if all gradients are zero.

    Under Adam the penalty is normalised, so every weight moves by about ``lr`` in every step.
    """
    weights, decay = start.float().clone(), train.weight_decay_bias if start.ndim <= 1 else train.weight_decay
    optimiser = torch_optimiser(train, [{"params": [weights], "weight_decay": decay}], rates[0])
    weights.grad = torch.zeros_like(weights)
    for lr in rates:
        optimiser.param_groups[0]["lr"] = lr
        optimiser.step()
    return weights.double() - start.double()
