"""Ditto (Li et al., ICML 2021, alg. 1): each client also trains a personal model, with a proximal term to the global one.

    min_v  L_k(v) + lam/2 ||v - w||^2        with w the global model that the client received this round

The global model is trained as in FedAvg, and the personal one never leaves the client.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import Learner
from fedpriv.methods import register
from fedpriv.methods.base import Context, LocalUpdate, Method, Private, params, phase
from fedpriv.objectives.cross_entropy import Plain, label_loss

PERSONAL = "ditto.personal"
"""Private state: the personal model as a row ``(p,)``."""


@params
class DittoParams:
    """Options of Ditto."""

    lam: float = Field(1.0, ge=0, description="weight of the proximal term (usual grid: 0.1, 0.5, 1, 2)")
    personal_epochs: int | None = Field(
        None, ge=1, description="epochs for the personal model; null: train.local_epochs or local_steps, as for the global one"
    )


class ProximalStep(Plain):
    """A step that adds ``lam (v - w)``, the gradient of the proximal term, to the gradient."""

    def __init__(self, lam: float, anchor: Tensor, smallest_batch: int) -> None:
        super().__init__(smallest_batch)
        self.lam, self.anchor = lam, anchor

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        if self.lam:
            learner.grad.add_(learner.row - self.anchor, alpha=self.lam)


@register("ditto")
class Ditto(Method):
    """A global model, and a personal model for each client, with a proximal term to the received global one.

    Clients are tested with their personal model. Training two models doubles the local compute.
    """

    paper = "Li et al., ICML 2021"
    Params = DittoParams
    needs_labels = "its personal model is trained on them"
    keeps = "its personal model: p floats"
    no_dp = "the privacy accountant does not count the steps of the personal model, which is trained on the same samples"

    def __init__(self, params: DittoParams, context: Context, *parts: Any) -> None:
        super().__init__(params, context, *parts)
        self.tested_names = context.space.names

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        return {**super().initial_private(client, initial), PERSONAL: initial.clone()}

    def local_update(self, update: LocalUpdate) -> None:
        super().local_update(update)
        shared, loss, steps = update.row.clone(), update.mean_loss, update.steps
        update.row.copy_(update.private[PERSONAL])
        epochs = self.params.personal_epochs
        personal = phase(epochs=epochs or self.train.local_epochs, steps=None if epochs else self.train.local_steps)
        update.train(personal, label_loss, ProximalStep(self.params.lam, update.start, self.objective.smallest_batch))
        update.memo[PERSONAL] = update.row.clone()
        # The upload, the reported loss and the number of steps (FedNova weighs by it) are the global model's.
        update.row.copy_(shared)
        update.mean_loss, update.steps = loss, steps
        update.phase_results.pop()

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {**super().keep(update), PERSONAL: update.memo[PERSONAL]}

    def client_state(self, row: Tensor, private: Private) -> dict[str, Tensor]:
        return self.context.space.unpack(private[PERSONAL])
