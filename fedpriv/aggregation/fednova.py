"""FedNova (Wang et al. 2020): updates are normalised by a client's local steps, so that more steps do not weigh more.

With ``D_k = x_g - x_k``, weights ``p_k`` and step weights ``a_k``:

    tau_eff = sum_k p_k a_k,      x_g <- x_g - tau_eff sum_k p_k D_k / a_k
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Memory, Merged, Uploads, register
from fedpriv.aggregation.mean import Mean, MeanParams, normalised, weighted_mean, with_plain_buffers
from fedpriv.errors import UsageError
from fedpriv.interfaces import PROXIMAL, LocalUpdate, params
from fedpriv.wire import Form, statistic

STEP_WEIGHT, STEPS = statistic("step_weight"), statistic("steps")
_VELOCITY = "fednova.velocity"
_SHORTEST = 1 - 1e-6
"""Of a step weight, that of one step; a pull of at most one leaves those of more at 1 or above. The server divides by it, so a
smaller one would carry a change over any bound on its norm."""


def step_weight(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """a_k: the change that a constant gradient of one causes in ``steps`` steps of learning rate one.

    ``tau`` for plain SGD; ``(tau - m (1 - m^tau) / (1 - m)) / (1 - m)`` with heavy-ball momentum m from rest;
    ``(1 - (1 - q)^tau) / q`` with a pull q (learning rate times mu) back to the start.

    Raises:
        ValueError: momentum and pull together, for which the paper has no formula.
    """
    if momentum and pull:
        raise ValueError("there is no step weight for momentum and a proximal term together")
    if momentum:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    total = 0.0
    for _ in range(steps):
        total = total * (1 - pull) + 1
    return total


@params
class FedNovaParams(MeanParams):
    """Options of FedNova."""

    server_momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum of the server's step (authors' code: gmf)")
    tau: Literal["step_weights", "steps"] = Field(
        "step_weights",
        description="tau_eff: the mean of a_k (paper), or of the numbers of steps, which clients then send too (authors' code, "
        "where there is a proximal term)",
    )


@register("fednova")
class FedNova(Mean):
    """The mean of updates normalised by their numbers of steps.

    ``a_k`` covers the client's momentum or its proximal term (such as FedProx's), not both. For Adam, whose steps are not linear
    in the gradients, it is the number of steps. A client that took none is left out. Buffers are averaged. With uniform weights,
    a client with few steps may weigh many times its share: the record's ``fednova/weight_sum`` and ``fednova/weight_max`` show
    the effective weights ``p_k tau_eff / a_k``.
    """

    paper = "Wang et al., NeurIPS 2020"
    Params = FedNovaParams
    linear = True
    single_upload_metrics = frozenset({"fednova/weight_sum", "fednova/weight_max"})
    sends = "the step weight a_k up: one float"
    no_dp = "clients upload their step counts, which no noise covers"

    def start(self, row: Tensor) -> dict[str, Tensor]:
        return {_VELOCITY: torch.zeros_like(row)} if self.params.server_momentum else {}

    def begin(self, update: LocalUpdate) -> None:
        train = self.context.config.train
        if train.warmup_steps:
            raise UsageError(
                "aggregation fednova: step weights assume a constant learning rate, which train.warmup_steps changes; use "
                "train.warmup_steps=0"
            )
        if PROXIMAL in update.memo and train.optimizer == "sgd" and train.momentum:
            raise UsageError(
                f"aggregation fednova: there is no step weight for momentum {train.momentum:g} and a proximal term together; "
                "use train.momentum=0, or an objective without a proximal term"
            )

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        found = {STEP_WEIGHT: torch.tensor(self._reach(update), dtype=torch.float64)}
        if self.params.tau == "steps":
            found[STEPS] = torch.tensor(int(self._reach(update, steps=True)), dtype=torch.int64)
        return found

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        train = self.context.config.train
        longest = steps / (1 - train.momentum) if train.optimizer == "sgd" else steps
        found = {STEP_WEIGHT: Form((), torch.float64, least=_SHORTEST, most=longest, or_zero=True)}
        if self.params.tau == "steps":
            found[STEPS] = Form((), torch.int64, least=0, most=steps)
        return found

    def _reach(self, update: LocalUpdate, steps: bool = False) -> float:
        """a_k over the phases that train shared roles, or their number of steps.

        Raises:
            UsageError: shared roles took different numbers of steps, so there is no common a_k.
        """
        space, train = self.context.space, self.context.config.train
        proximal = float(update.memo[PROXIMAL]) if PROXIMAL in update.memo else 0.0
        reach = {space[name].role: 0.0 for name in update.received if name in space}
        for phase in update.phase_results:
            plain = steps or train.optimizer != "sgd"  # Adam: the number of steps
            weight = step_weight(phase.steps, *((0.0, 0.0) if plain else (train.momentum, phase.lr * proximal)))
            for role in phase.roles & reach.keys():
                reach[role] += weight
        if len(set(reach.values())) > 1:
            raise UsageError(
                f"aggregation fednova: the shared roles {', '.join(reach)} take different steps, but a client has one weight"
            )
        return next(iter(reach.values()), 0.0)

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """``w_k D_k / a_k``, and ``(w_k a_k, w_k)`` for the step weight, where the client took a step; buffers as models."""
        if self.params.tau == "steps":
            raise UsageError("aggregation fednova: a sum has the mean of step weights alone; use tau=step_weights")
        a = float(upload[STEP_WEIGHT])
        found = super().addend({name: tensor for name, tensor in upload.items() if name != STEP_WEIGHT}, received, weight)
        for name in self._normalised(found):
            change = upload[name].double() - received[name].double().to(upload[name].device)
            found[name] = change * (weight / a) if a else torch.zeros_like(change)
        return {**found, STEP_WEIGHT: torch.tensor([weight * a, weight if a else 0.0], dtype=torch.float64)}

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        reach, moved = sums[STEP_WEIGHT].tolist()
        tau_eff = reach / moved if moved else 0.0
        found = super().mean_upload({name: t for name, t in sums.items() if name != STEP_WEIGHT}, received, weight, count)
        for name in self._normalised(found):
            start = received[name].double().to(sums[name].device)
            found[name] = start + sums[name] * (tau_eff / moved) if moved else start
        return {**found, STEP_WEIGHT: torch.tensor(tau_eff, dtype=torch.float64)}

    def _steps(self, uploads: Uploads, clients: Sequence[int]) -> Tensor:
        """The numbers of steps of some clients, in float64."""
        if not all(STEPS in uploads.statistics[index] for index in clients):
            raise UsageError(f"aggregation fednova with tau=steps needs {STEPS} of every client; a mask removes it")
        return torch.tensor([float(uploads.statistics[index][STEPS]) for index in clients], dtype=torch.float64)

    def _normalised(self, names: Iterable[str]) -> list[str]:
        """Those that are neither statistics nor buffers."""
        space = self.context.space
        return [name for name in names if name in space and space[name].kind != "buffer"]

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        if not all(STEP_WEIGHT in sent for sent in uploads.statistics):
            raise UsageError(f"aggregation fednova needs {STEP_WEIGHT} of every client; a mask removes it")
        weights = self.weigh(uploads)
        reach = [float(sent[STEP_WEIGHT]) for sent in uploads.statistics]
        moved = [index for index, a in enumerate(reach) if a > 0]
        mean = weighted_mean(uploads.rows, weights)
        if not moved:
            return Merged(mean, memory)
        a = torch.tensor([reach[index] for index in moved], dtype=torch.float64)
        p = normalised([weights[index] for index in moved])
        tau_eff = p @ (a if self.params.tau == "step_weights" else self._steps(uploads, moved))
        effective = torch.zeros(len(uploads), dtype=torch.float64)
        effective[moved] = p * tau_eff / a
        total = float(effective.sum())
        row = effective.to(uploads.rows) @ uploads.rows + (1 - total) * uploads.previous
        if self.params.server_momentum:
            velocity = memory[_VELOCITY]
            row = row + self.params.server_momentum * uploads.restrict(velocity)
            step = with_plain_buffers(row - uploads.previous, torch.zeros_like(row), uploads.space)
            memory = {_VELOCITY: uploads.expand(step, velocity)}
        report = {
            "fednova/weight_sum": total,
            "fednova/weight_max": float(effective.max()),
            "fednova/tau_eff": float(tau_eff),
        }
        return Merged(with_plain_buffers(row, mean, uploads.space), memory, report)
