"""Ditto (Li et al. 2021): each client also trains a personal model, with a proximal term to the received global one."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import Learner
from fedpriv.methods import register
from fedpriv.methods.base import Context, LocalUpdate, Method, Private, params, phase
from fedpriv.objectives.cross_entropy import Plain, cross_entropy

PERSONAL = "ditto.personal"


@params
class DittoParams:
    """Options of Ditto."""

    lam: float = Field(1.0, ge=0, description="pull of the received model on the personal one (usual grid: 0.1, 0.5, 1, 2)")
    personal_epochs: int | None = Field(
        None, ge=1, description="epochs of the personal model; null: as long as the global one (train.local_epochs, local_steps)"
    )


class Pull(Plain):
    """Adds ``lam (v - w)`` to a step's gradient, ``w`` being what the client received this round."""

    def __init__(self, lam: float, towards: Tensor, smallest_batch: int) -> None:
        super().__init__(smallest_batch)
        self.lam, self.towards = lam, towards

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        if self.lam:
            learner.grad.add_(learner.row - self.towards, alpha=self.lam)


@register("ditto")
class Ditto(Method):
    """The global model, and a personal one that is kept and tested, with a proximal term to the received global one.

    A local update trains two models: twice the local compute.
    """

    paper = "Li et al., ICML 2021"
    Params = DittoParams
    needs_labels = "its personal model is trained on them"
    keeps = "its personal model: p floats"
    no_dp = "the personal model is trained on the same samples in steps that the privacy accountant does not count"

    def __init__(self, params: DittoParams, context: Context, *halves: Any) -> None:
        super().__init__(params, context, *halves)
        self.tested_names = context.space.names

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        return {**super().initial_private(client, initial), PERSONAL: initial.clone()}

    def local_update(self, update: LocalUpdate) -> None:
        super().local_update(update)
        shared, loss, steps = update.row.clone(), update.mean_loss, update.steps
        update.row.copy_(update.private[PERSONAL])
        epochs = self.params.personal_epochs
        stretch = phase(epochs=epochs or self.train.local_epochs, steps=None if epochs else self.train.local_steps)
        update.train(stretch, cross_entropy, Pull(self.params.lam, update.start, self.objective.smallest_batch))
        update.memo[PERSONAL] = update.row.clone()
        # Uploads, weights and reports are those of the global model.
        update.row.copy_(shared)
        update.mean_loss, update.steps = loss, steps
        update.phase_results.pop()

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {**super().keep(update), PERSONAL: update.memo[PERSONAL]}

    def client_state(self, row: Tensor, private: Private) -> dict[str, Tensor]:
        return self.context.space.unpack(private[PERSONAL])
