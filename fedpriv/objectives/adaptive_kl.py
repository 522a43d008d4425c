"""FedDUAL's adaptive loss (Sahoo et al. 2024, eqs. 3-9): cross-entropy, and a KL term between the models' own softmaxes.

    L = (1 - beta) CE + beta KL(p || q),  p = softmax(all weights),  q = softmax(the received weights)
    beta = sigmoid(local accuracy - accuracy of the received model), both on the client's training data

"All weights" are those of the model's row. The released code also takes in those of a frozen pretrained base, which would add a
constant to both normalisers; here they are no part of the row, and are left out.

With delta = weights - received weights, log(p_i / q_i) = delta_i - log E_q[exp(delta)], hence

    KL = E_p[delta] - log E_q[exp(delta)]        gradient: p (delta - E_p[delta])

The closed form is used because differentiating through the log-softmax of millions of weights in float32 is mostly rounding
error: the spacing of floats at log p, about -log d, exceeds the size of the KL.

As p is about 1/d in each of the d entries, the term is approximately FedProx with mu = beta/d: far too small to affect a net.
The round's record has its size as ``adaptive_kl/kl``.
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
_HITS, _SEEN = "adaptive_kl.hits", "adaptive_kl.seen"
LAST_ACCURACY = "adaptive-kl.accuracy"
"""Private state with ``beta_mode: stale``: the last model's accuracy on its training data."""


def kl_of_softmax(weights: Tensor, reference: Tensor) -> Tensor:
    """``KL(softmax(weights) || softmax(reference))`` of two vectors ``(d,)``, in nats; a scalar.

    Exact up to rounding even for close vectors: the part that cancels (the mean of delta) is removed beforehand.
    """
    delta = weights - reference
    p, q = torch.softmax(weights, -1), torch.softmax(reference, -1)
    centred = delta - (q * delta).sum()
    if float(centred.abs().max()) > 1:  # nothing cancels, and exp may overflow
        return (p * centred).sum() - torch.logsumexp(torch.log_softmax(reference, -1) + centred, -1)
    return (p * centred).sum() - torch.log1p((q * torch.expm1(centred)).sum())


def kl_gradient(weights: Tensor, reference: Tensor) -> Tensor:
    """The KL's gradient by ``weights``: ``p (delta - E_p[delta])``, over the last dimension; shape of ``weights``."""
    p, delta = torch.softmax(weights, -1), weights - reference
    return p * (delta - (p * delta).sum(-1, keepdim=True))


def weight_of_kl(local: float, received: float, sign: int = 1) -> float:
    """``beta = sigmoid(sign (local - received))`` of two accuracies (eq. 6); between 0.269 and 0.731.

    Raises:
        ValueError: an accuracy outside [0, 1], such as percent.
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
        description="when the local accuracy is measured: before each local epoch (not stated by FedDUAL), on the batches of the "
        "last epoch, on the client's last own model, or never (beta = 0.5, the released code)",
    )
    beta_sign: Literal[1, -1] = Field(
        1, description="1: beta grows with local - global accuracy (eq. 6); -1: the paper's later prose"
    )
    kl_scope: Literal["all", "trainable", "per_layer"] = Field(
        "all",
        description="one softmax over all weights but those of a frozen pretrained base (released code: over these too), over "
        "the trained ones, or one per trained tensor, summed",
    )
    kl_scale: Literal[1, "dim"] = Field(
        1, description="`dim`: the KL times its number of weights, an effective proximal term; not in the paper"
    )
    kl_grad: bool = Field(True, description="false: the KL has no gradient (released code)")


@register("adaptive-kl")
class AdaptiveKL(Objective):
    """Cross-entropy and the KL between the softmaxes of all weights, weighted by the gain in accuracy from training."""

    paper = "Sahoo et al., arXiv:2412.04416 (FedDUAL)"
    Params = AdaptiveKLParams
    no_dp = "it weighs its terms by an accuracy on the client's data, which no noise covers"

    def __init__(self, params: AdaptiveKLParams, context: Context) -> None:
        super().__init__(params, context)
        self._parts: dict[frozenset[str], list[Tensor | slice]] = {}

    def begin(self, update: LocalUpdate) -> None:
        if self.params.beta_mode != "half":
            update.memo[_GLOBAL] = torch.tensor(update.accuracy(), dtype=torch.float64)

    def epoch(self, update: LocalUpdate, epoch: int) -> None:
        beta = torch.tensor([self._beta(update, epoch)], dtype=torch.float64)
        update.memo[_BETA] = beta
        update.memo[_BETAS] = torch.cat([update.memo[_BETAS], beta]) if _BETAS in update.memo else beta
        update.memo[_HITS] = update.memo[_SEEN] = torch.zeros((), dtype=torch.int64)

    def _beta(self, update: LocalUpdate, epoch: int) -> float:
        mode = self.params.beta_mode
        if mode == "half":
            return 0.5
        received = float(update.memo[_GLOBAL])
        if mode == "stale":
            local = received if update.first_time else float(update.private[LAST_ACCURACY])
        elif epoch == 0 and not update.steps:
            local = received  # the client still has the received model
        elif mode == "epoch_running" and int(update.memo[_SEEN]):
            local = int(update.memo[_HITS]) / int(update.memo[_SEEN])
        else:
            local = update.accuracy()
        return weight_of_kl(local, received, self.params.beta_sign)

    def loss(self, step: Step) -> Tensor:
        """The weighted cross-entropy; :meth:`correct` adds the KL's gradient.

        Without a received model, as in fine-tuning before a test, there is no KL, and the cross-entropy has weight 1.
        """
        if _BETA not in step.memo:
            return cross_entropy(step)
        return (1 - float(step.memo[_BETA])) * cross_entropy(step)

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        if self.params.beta_mode != "epoch_running":
            return super().step(update, batch, loss)

        def counted(step: Step) -> Tensor:
            update.memo[_HITS] = update.memo[_HITS] + (step.outputs.logits.argmax(1) == step.labels).sum().cpu()
            update.memo[_SEEN] = update.memo[_SEEN] + len(step.labels)
            return loss(step)

        return super().step(update, batch, counted)

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
        # Not read in a client's first local update; but a client's private state has the same names from the start.
        return {LAST_ACCURACY: torch.zeros((), dtype=torch.float64)} if self.params.beta_mode == "stale" else {}

    def _softmaxes(self, trains: frozenset[str]) -> list[Tensor | slice]:
        """The entries of the row in each softmax: a slice, or indices where there are buffers in between."""
        if trains not in self._parts:
            entries = [entry for entry in self.context.space.entries if entry.kind != "buffer"]
            if self.params.kl_scope != "all":
                entries = [entry for entry in entries if entry.role in trains]
            spans = [(entry.start, entry.stop) for entry in entries]
            if self.params.kl_scope == "per_layer":
                self._parts[trains] = [slice(*span) for span in spans]
            elif all(one[1] == other[0] for one, other in pairwise(spans)):
                self._parts[trains] = [slice(spans[0][0], spans[-1][1])]
            else:
                self._parts[trains] = [torch.cat([torch.arange(*span) for span in spans])]
        return self._parts[trains]
