"""The server part of FedNova (Wang et al., NeurIPS 2020): updates are normalised by local steps.

With ``D_k = x_g - x_k``, weights ``p_k`` and step weights ``a_k`` (of plain SGD, the number of local steps):

    tau_eff = sum_k p_k a_k,      x_g <- x_g - tau_eff sum_k p_k D_k / a_k

So clients with more local steps do not have more influence.
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
"""Lower bound on a step weight that is not 0, a single step's. The server divides by it, so a smaller one would scale a change
beyond any bound on its norm."""


def step_weight(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """The step weight a_k: how far ``steps`` steps with learning rate 1 move along a constant gradient of 1.

    This is ``tau`` for plain SGD, ``(tau - m (1 - m^tau) / (1 - m)) / (1 - m)`` with heavy-ball momentum m, and
    ``(1 - (1 - q)^tau) / q`` with a proximal term, whose ``pull`` q is the learning rate times mu.

    Raises:
        ValueError: momentum and a proximal term together, for which the paper has no formula.
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
        description="tau_eff: the mean of a_k (paper), or of the numbers of steps, which clients then send, too (authors' code "
        "with a proximal term)",
    )


@register("fednova")
class FedNova(Mean):
    """The mean of updates that are normalised by the clients' numbers of local steps.

    ``a_k`` accounts for the client's momentum or its proximal term (such as FedProx's), but not both. For Adam and others, whose
    steps are not linear in the gradients, it is the number of steps. Clients that took no step are left out. Buffers are
    averaged. With uniform weights, a client with few steps can have many times its share: see the effective weights
    ``p_k tau_eff / a_k`` in the record (``fednova/weight_sum``, ``fednova/weight_max``).
    """

    paper = "Wang et al., NeurIPS 2020"
    Params = FedNovaParams
    linear = True
    single_upload_metrics = frozenset({"fednova/weight_sum", "fednova/weight_max"})
    sends = "up, the step weight a_k: one float"
    no_dp = "clients upload their step counts, which no noise covers"

    def start(self, row: Tensor) -> dict[str, Tensor]:
        return {_VELOCITY: torch.zeros_like(row)} if self.params.server_momentum else {}

    def begin(self, update: LocalUpdate) -> None:
        train = self.context.config.train
        if train.warmup_steps or train.local_lr_schedule is not None:
            key = "train.warmup_steps=0" if train.warmup_steps else "train.local_lr_schedule=null"
            raise UsageError(
                f"aggregation fednova: step weights assume a learning rate that is constant within a local update; use {key}"
            )
        if train.optimizer == "sgd" and (not train.heavy_ball or train.carries_steps):
            key = "no train.optimizer_options" if not train.heavy_ball else "train.keep_optimizer=false"
            raise UsageError(
                f"aggregation fednova: step weights are known of plain momentum that begins anew in each round; use {key}"
            )
        if PROXIMAL in update.memo and train.optimizer == "sgd" and train.momentum:
            raise UsageError(
                f"aggregation fednova: there is no step weight for momentum {train.momentum:g} and a proximal term together; "
                "use train.momentum=0, or an objective without a proximal term"
            )

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        statistics = {STEP_WEIGHT: torch.tensor(self._step_weight(update), dtype=torch.float64)}
        if self.params.tau == "steps":
            statistics[STEPS] = torch.tensor(int(self._step_weight(update, steps=True)), dtype=torch.int64)
        return statistics

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        train = self.context.config.train
        longest = steps / (1 - train.momentum) if train.optimizer == "sgd" else steps
        forms = {STEP_WEIGHT: Form((), torch.float64, least=_SHORTEST, most=longest, or_zero=True)}
        if self.params.tau == "steps":
            forms[STEPS] = Form((), torch.int64, least=0, most=steps)
        return forms

    def _step_weight(self, update: LocalUpdate, steps: bool = False) -> float:
        """a_k over all phases that train shared roles, or (``steps``) their number of steps.

        Raises:
            UsageError: shared roles took different steps, so there is no common a_k.
        """
        space, train = self.context.space, self.context.config.train
        proximal = float(update.memo[PROXIMAL]) if PROXIMAL in update.memo else 0.0
        by_role = {space[name].role: 0.0 for name in update.received if name in space}
        for phase in update.phase_results:
            plain = steps or train.optimizer != "sgd"  # Adam: the number of steps
            weight = step_weight(phase.steps, *((0.0, 0.0) if plain else (train.momentum, phase.lr * proximal)))
            for role in phase.roles & by_role.keys():
                by_role[role] += weight
        if len(set(by_role.values())) > 1:
            raise UsageError(
                f"aggregation fednova: the shared roles {', '.join(by_role)} take different steps, but a client has one weight"
            )
        return next(iter(by_role.values()), 0.0)

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """``w_k D_k / a_k``, and ``(w_k a_k, w_k)`` as the step weight (zeros if no step was taken); buffers as for the mean."""
        if self.params.tau == "steps":
            raise UsageError("aggregation fednova: a sum over the clients has only step weights; use tau=step_weights")
        a = float(upload[STEP_WEIGHT])
        addend = super().addend({name: tensor for name, tensor in upload.items() if name != STEP_WEIGHT}, received, weight)
        for name in self._parameters(addend):
            change = upload[name].double() - received[name].double().to(upload[name].device)
            addend[name] = change * (weight / a) if a else torch.zeros_like(change)
        return {**addend, STEP_WEIGHT: torch.tensor([weight * a, weight if a else 0.0], dtype=torch.float64)}

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        weighted_steps, moved = sums[STEP_WEIGHT].tolist()
        tau_eff = weighted_steps / moved if moved else 0.0
        mean = super().mean_upload({name: t for name, t in sums.items() if name != STEP_WEIGHT}, received, weight, count)
        for name in self._parameters(mean):
            start = received[name].double().to(sums[name].device)
            mean[name] = start + sums[name] * (tau_eff / moved) if moved else start
        return {**mean, STEP_WEIGHT: torch.tensor(tau_eff, dtype=torch.float64)}

    def _steps(self, uploads: Uploads, clients: Sequence[int]) -> Tensor:
        """The numbers of steps of some clients of the round, in float64."""
        if not all(STEPS in uploads.statistics[index] for index in clients):
            raise UsageError(f"aggregation fednova with tau=steps needs {STEPS} of every client; a mask removes it")
        return torch.tensor([float(uploads.statistics[index][STEPS]) for index in clients], dtype=torch.float64)

    def _parameters(self, names: Iterable[str]) -> list[str]:
        """The names of parameters, without those of statistics and buffers."""
        space = self.context.space
        return [name for name in names if name in space and space[name].kind != "buffer"]

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        if not all(STEP_WEIGHT in sent for sent in uploads.statistics):
            raise UsageError(f"aggregation fednova needs {STEP_WEIGHT} of every client; a mask removes it")
        weights = self.weigh(uploads)
        step_weights = [float(sent[STEP_WEIGHT]) for sent in uploads.statistics]
        moved = [index for index, a in enumerate(step_weights) if a > 0]
        mean = weighted_mean(uploads.rows, weights)
        if not moved:
            return Merged(mean, memory)
        a = torch.tensor([step_weights[index] for index in moved], dtype=torch.float64)
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
