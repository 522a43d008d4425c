"""The client part of FedSiam-DA (arXiv 2211.09421, Algorithm 1, lines 13-25): Siamese local training.

Three models process each batch: L, which is sent; the anchor A, a copy of the received model that is trained, too, and then
discarded; and the history model H, an earlier L, which is constant. With projection z, prediction p, D the mean cosine similarity
over the batch, and sg a stopped gradient,

    A takes a step on  - mu/2 D(p_A, sg z_L)                                             (eq. 8)
    L takes a step on  cross-entropy - mu/2 D(p_L, sg z_A) + mu D(sg z_H, z_L)           (eq. 9, with the new A)

So L is pulled to the anchor and pushed away from its history. (The paper writes D for both signs; see its eqs. 3-4.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import Batch, LocalUpdate, Loss, Step, params
from fedpriv.objectives import Objective, register
from fedpriv.objectives.cross_entropy import label_loss
from fedpriv.seeding import global_rng

PREVIOUS = "siamese.previous"
"""Private state: the client's last upload, before defences."""
_HISTORY, _TARGET, _PAST, _PROJECTION, _ANCHOR_STEPS = (
    f"siamese.{name}" for name in ("history", "target", "past", "seen", "taken")
)


def mean_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Mean cosine similarity of the rows of two ``(B, k)``; 0 for a zero row."""
    return F.cosine_similarity(first, second, dim=1, eps=1e-8).mean()


@params
class SiameseParams:
    """Options of the Siamese local training."""

    mu: float = Field(0.1, ge=0, description="weight of the pulls and the push (eq. 11; paper: best of 0.05, 0.1, 0.2, 1)")
    pull: bool = Field(True, description="pull the prediction to the anchor's projection (eq. 7); false: no anchor")
    push: bool = Field(True, description="push the projection away from the history model's (eq. 10)")
    history: Literal["epoch", "round", "step", "none"] = Field(
        "epoch",
        description="the history model: L after the last epoch, and in a round's first epoch the last upload (our reading of eq. "
        "10); always the last upload (eq. 3); L before the last step (eq. 10 taken literally); or none",
    )
    order: Literal["alternating", "simultaneous"] = Field(
        "alternating",
        description="L is pulled to the anchor after the anchor's step (eqs. 8-9), or to the anchor's projection from before its "
        "step, which saves a forward pass",
    )
    anchor: Literal["trained", "frozen"] = Field(
        "trained", description="the anchor is trained (eq. 8), or stays the received model (ablation)"
    )
    local_init: Literal["global", "persistent"] = Field(
        "global", description="training starts from the received model, or from the client's last upload (ablation)"
    )
    loss_grouping: Literal["algorithm", "eq11", "eq5"] = Field(
        "algorithm",
        description="weights of each pull and of the push: mu/2 and mu (Algorithm 1), 1/2 and mu (the bracket of eq. 11), "
        "mu/2 and mu/2 (eq. 5)",
    )


@register("siamese")
class Siamese(Objective):
    """Cross-entropy, a pull to a copy of the received model that is trained, too, and a push away from the client's past."""

    paper = "FedSiam-DA, arXiv 2211.09421"
    Params = SiameseParams
    required_roles = frozenset({"projector", "predictor"})
    suggests: ClassVar[Mapping[str, Any]] = {"model.predictor": 64}  # a quarter of the projection's width of 256, as in SimSiam
    keeps = "its last upload, which is the first history model"
    smallest_batch = 2  # the predictor's BatchNorm
    uses_companion = True
    no_dp = "its step trains a second model, whose gradients are not clipped; use objective cross-entropy"
    weighs_classes = True

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        return {"history": "mu=0 or push=false"} if not (params.mu and params.push) else {}

    @property
    def _pull(self) -> float:
        """Weight of each of the two pulls."""
        if not self.params.pull:
            return 0.0
        return 0.5 if self.params.loss_grouping == "eq11" else float(self.params.mu) / 2

    @property
    def _push(self) -> float:
        if not self.params.push or self.params.history == "none":
            return 0.0
        return float(self.params.mu) / (2 if self.params.loss_grouping == "eq5" else 1)

    # --- what a client keeps -----------------------------------------------------------------------------------------

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {PREVIOUS: update.row} if self._looks_back else {}

    @property
    def _looks_back(self) -> bool:
        return self._push > 0 or self.params.local_init == "persistent"

    # --- local training ----------------------------------------------------------------------------------------------

    def begin(self, update: LocalUpdate) -> None:
        previous = update.private.get(PREVIOUS)
        if previous is None:  # the client trains for the first time
            return
        if self._push > 0:
            self._set_history(update, previous)
        if self.params.local_init == "persistent":
            update.row.copy_(previous)

    def epoch(self, update: LocalUpdate, epoch: int) -> None:
        has_trained = epoch > 0 or update.steps > 0
        if has_trained and self._push > 0 and self.params.history == "epoch":
            self._set_history(update, update.row)

    def _set_history(self, update: LocalUpdate, row: Tensor) -> None:
        update.freeze(_HISTORY, row)
        update.memo[_HISTORY] = torch.ones(())

    def loss(self, step: Step) -> Tensor:
        """The loss of L (eq. 9)."""
        total = label_loss(step)
        prediction = step.outputs.prediction
        if _TARGET in step.memo and prediction is not None:
            total = total - self._pull * mean_cosine(prediction, step.memo[_TARGET])
        if _PAST in step.memo:
            total = total + self._push * mean_cosine(step.memo[_PAST], step.outputs.projection)
        return total

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        learner, memo = update.learner, update.memo
        inputs = batch.forward(learner)
        if self._pull > 0:
            memo[_TARGET] = self._target(update, batch, inputs.outputs.projection.detach())
        if _HISTORY in memo:
            memo[_PAST] = inputs.teacher(_HISTORY).projection
        memo[_PROJECTION] = inputs.outputs.projection.detach()
        value = loss(inputs)
        learner.backward(value)
        self.correct(update, learner)
        before = update.row.clone() if self._push > 0 and self.params.history == "step" else None
        learner.descend()
        if before is not None:
            self._set_history(update, before)
        return value.detach()

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        """Sends nothing, but reports metrics of the last batch: the cosines of z_L with z_A and with z_H, and the spread of z_L.

        The spread is the standard deviation of the normalised projections, averaged over the k dimensions: 0 if they have
        collapsed, about ``1 / sqrt(k)`` if not.
        """
        projection = update.memo.get(_PROJECTION)
        if projection is not None:
            update.report("siamese/spread", float(F.normalize(projection, dim=1).std(0, correction=0).mean()))
            for name, other in (("siamese/cosine_anchor", _TARGET), ("siamese/cosine_past", _PAST)):
                if other in update.memo:
                    update.report(name, float(mean_cosine(projection, update.memo[other])))
        return {}

    def _target(self, update: LocalUpdate, batch: Batch, projection: Tensor) -> Tensor:
        """Train the anchor for a step towards L's ``projection`` ``(B, k)``, and return its projection ``(B, k)``, constant."""
        anchor = update.companion
        # With its own random numbers (dropout), so that L's are the same as without an anchor.
        anchor_steps = update.memo.setdefault(_ANCHOR_STEPS, torch.zeros((), dtype=torch.int64))
        anchor_steps += 1
        with global_rng(self.context.config.seed, update.round, update.client, "anchor", int(anchor_steps)):
            if self.params.anchor == "frozen":
                return batch.forward_no_grad(anchor).projection
            outputs = batch.forward(anchor).outputs
            assert outputs.prediction is not None
            anchor.backward(-self._pull * mean_cosine(outputs.prediction, projection))
            anchor.descend()
            if self.params.order == "simultaneous":
                return outputs.projection.detach()
            return batch.forward_no_grad(anchor).projection
