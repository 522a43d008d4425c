"""The adaptive loss of FedDUAL (Sahoo et al., arXiv:2412.04416, eqs. 3-9).

    L = (1 - beta) CE + beta KL(p || q),        p = softmax(weights),  q = softmax(received weights)
    beta = sigmoid(accuracy of the local model - accuracy of the received model), both on the client's training data

The softmaxes are over the weights of the model, not over its outputs. The released code includes the weights of a frozen
pretrained base, which adds a constant to both normalisers; here only weights that are trained or sent are included.

With delta = weights - received weights, log(p_i / q_i) = delta_i - log E_q[exp(delta)], hence

    KL = E_p[delta] - log E_q[exp(delta)]        gradient: p (delta - E_p[delta])

The gradient is computed in closed form: differentiating through the log-softmax of millions of weights in float32 gives mostly
rounding error, since the spacing of floats near log p, about -log d, exceeds the KL.

Since p is about 1/d for each of d weights, the term is close to FedProx with mu = beta / d, which is far too small to affect a
net. The round's record has its size as ``adaptive_kl/kl``.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import Batch, Context, Learner, LocalUpdate, Loss, Step, params
from fedpriv.objectives import Objective, register
from fedpriv.objectives.cross_entropy import cross_entropy

_BETA, _BETAS, _GLOBAL = "adaptive_kl.beta", "adaptive_kl.betas", "adaptive_kl.global"
_CORRECT, _SAMPLES = "adaptive_kl.hits", "adaptive_kl.seen"
LAST_ACCURACY = "adaptive-kl.accuracy"
"""Private state with ``beta_mode: stale``: the accuracy of the client's last model on the client's training data."""


def kl_of_softmax(weights: Tensor, reference: Tensor) -> Tensor:
    """``KL(softmax(weights) || softmax(reference))`` of two vectors ``(d,)``, in nats.

    Accurate even for close vectors, because the mean of delta, which cancels, is removed first.
    """
    delta = weights - reference
    p, q = torch.softmax(weights, -1), torch.softmax(reference, -1)
    centred = delta - (q * delta).sum()
    if float(centred.abs().max()) > 1:  # no cancellation, and exp could overflow
        return (p * centred).sum() - torch.logsumexp(torch.log_softmax(reference, -1) + centred, -1)
    return (p * centred).sum() - torch.log1p((q * torch.expm1(centred)).sum())


def kl_gradient(weights: Tensor, reference: Tensor) -> Tensor:
    """The gradient of the KL with respect to ``weights``, ``p (delta - E_p[delta])`` over the last dimension."""
    p, delta = torch.softmax(weights, -1), weights - reference
    return p * (delta - (p * delta).sum(-1, keepdim=True))


def weight_of_kl(local: float, received: float, sign: int = 1) -> float:
    """``beta = sigmoid(sign (local - received))`` of two accuracies in [0, 1] (eq. 6); between 0.269 and 0.731.

    Raises:
        ValueError: an accuracy is outside [0, 1], such as a percentage.
    """
    for accuracy in (local, received):
        if not 0 <= accuracy <= 1:
            raise ValueError(f"an accuracy is a share in [0, 1], got {accuracy:g}; percent would saturate beta")
    return 1 / (1 + math.exp(-sign * (local - received)))


@params
class AdaptiveKLParams:
    """Options of the adaptive loss."""

    beta_mode: Literal["epoch", "epoch_running", "stale", "half"] = Field(
        "epoch",
        description="the local accuracy. epoch: before each local epoch (FedDUAL does not say when); epoch_running: on the "
        "batches of the last epoch; stale: of the client's last model; half: none (beta = 0.5, the released code)",
    )
    beta_sign: Literal[1, -1] = Field(
        1, description="1: beta grows with local - global accuracy (eq. 6); -1: it falls, as the paper's text says"
    )
    kl_scope: Literal["all", "trainable", "per_layer"] = Field(
        "all",
        description="one softmax over all weights except those of a frozen pretrained base (which the released code includes), "
        "over the trained weights, or one for each trained tensor, summed",
    )
    kl_scale: Literal[1, "dim"] = Field(
        1, description="`dim`: the KL times the number of weights, which makes it effective; not in the paper"
    )
    kl_grad: bool = Field(True, description="false: the KL has no gradient (released code)")


@register("adaptive-kl")
class AdaptiveKL(Objective):
    """Cross-entropy and a KL term to the received weights, weighted by how much training improved the accuracy."""

    paper = "Sahoo et al., arXiv:2412.04416 (FedDUAL)"
    Params = AdaptiveKLParams
    weighs_classes = True
    needs_classes = "its terms are weighted by accuracies"
    no_dp = "its terms are weighted by an accuracy on the client's data, which no noise covers"

    def __init__(self, params: AdaptiveKLParams, context: Context) -> None:
        super().__init__(params, context)
        self._softmax_entries: dict[frozenset[str], list[Tensor | slice]] = {}

    def begin(self, update: LocalUpdate) -> None:
        if self.params.beta_mode != "half":
            update.memo[_GLOBAL] = torch.tensor(update.accuracy(), dtype=torch.float64)

    def epoch(self, update: LocalUpdate, epoch: int) -> None:
        beta = torch.tensor([self._beta(update, epoch)], dtype=torch.float64)
        update.memo[_BETA] = beta
        update.memo[_BETAS] = torch.cat([update.memo[_BETAS], beta]) if _BETAS in update.memo else beta
        update.memo[_CORRECT] = update.memo[_SAMPLES] = torch.zeros((), dtype=torch.int64)

    def _beta(self, update: LocalUpdate, epoch: int) -> float:
        mode = self.params.beta_mode
        if mode == "half":
            return 0.5
        received = float(update.memo[_GLOBAL])
        if mode == "stale":
            local = received if update.first_time else float(update.private[LAST_ACCURACY])
        elif epoch == 0 and not update.steps:
            local = received  # the model is still the received one
        elif mode == "epoch_running" and int(update.memo[_SAMPLES]):
            local = int(update.memo[_CORRECT]) / int(update.memo[_SAMPLES])
        else:
            local = update.accuracy()
        return weight_of_kl(local, received, self.params.beta_sign)

    def loss(self, step: Step) -> Tensor:
        """The weighted cross-entropy; :meth:`correct` adds the gradient of the KL.

        In fine-tuning before a test there is no received model, so this is the plain cross-entropy.
        """
        if _BETA not in step.memo:
            return cross_entropy(step)
        return (1 - float(step.memo[_BETA])) * cross_entropy(step)

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        if self.params.beta_mode != "epoch_running":
            return super().step(update, batch, loss)

        def counting_loss(step: Step) -> Tensor:
            update.memo[_CORRECT] = update.memo[_CORRECT] + (step.outputs.logits.argmax(1) == step.labels).sum().cpu()
            update.memo[_SAMPLES] = update.memo[_SAMPLES] + len(step.labels)
            return loss(step)

        return super().step(update, batch, counting_loss)

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        if not self.params.kl_grad:
            return
        beta = float(update.memo[_BETA])
        for part in self._softmaxes(learner.trains):
            weights = learner.row[..., part]
            scale = beta * (weights.shape[-1] if self.params.kl_scale == "dim" else 1)
            learner.grad[..., part] += scale * kl_gradient(weights, update.start[..., part])

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        if _BETAS in update.memo:
            update.report("adaptive_kl/beta", float(update.memo[_BETAS].mean()))
            parts = self._softmaxes(self.trained_roles)
            update.report(
                "adaptive_kl/kl", sum(float(kl_of_softmax(update.row[p].double(), update.start[p].double())) for p in parts)
            )
        if self.params.beta_mode != "stale":
            return {}
        return {LAST_ACCURACY: torch.tensor(update.accuracy(), dtype=torch.float64)}

    def initial_private(self, initial: Tensor) -> dict[str, Tensor]:
        # Placeholder, never read: private state must have the same names in every round.
        return {LAST_ACCURACY: torch.zeros((), dtype=torch.float64)} if self.params.beta_mode == "stale" else {}

    def _softmaxes(self, trains: frozenset[str]) -> list[Tensor | slice]:
        """The entries of the row for each softmax: a slice, or indices if there are buffers in between."""
        if trains not in self._softmax_entries:
            entries = [entry for entry in self.context.space.entries if entry.kind != "buffer"]
            if self.params.kl_scope != "all":
                entries = [entry for entry in entries if entry.role in trains]
            spans = [(entry.start, entry.stop) for entry in entries]
            if self.params.kl_scope == "per_layer":
                self._softmax_entries[trains] = [slice(*span) for span in spans]
            elif all(stop == start for (_, stop), (start, _) in pairwise(spans)):
                self._softmax_entries[trains] = [slice(spans[0][0], spans[-1][1])]
            else:
                self._softmax_entries[trains] = [torch.cat([torch.arange(*span) for span in spans])]
        return self._softmax_entries[trains]
