"""Divergence-aware weighted aggregation: L-DAWA and its variants (Rehman et al., ICCV 2023, eqs. 2-6).

    w = sum_k q_k d_k w_k        layer by layer, with d_k the cosine similarity of w_k and the model at the start of the round

The factors ``q_k d_k`` need not sum to one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import buffer_groups, combine, norms, parameter_groups, products
from fedpriv.aggregation.mean import client_weights, normalised, weighted_mean
from fedpriv.errors import UsageError
from fedpriv.interfaces import LocalUpdate, params
from fedpriv.wire import Form, statistic

Base = Literal["uniform", "samples", "loss"]
Variant = Literal["paper_exact", "authors_code", "normalised", "shrink_control"]

LOSS = statistic("loss")
BASE_TEXT = "q_k: 1/K, n_k/sum n, or softmax(-L_k) of the clients' losses, which they then send (eqs. 4-6)"
DIVERGENCE_TEXT = "d_k: 1, the cosine similarity of the whole model (M-DAWA, eq. 2), or that of each layer (L-DAWA, eq. 4)"
NO_LOSS = 65504.0
"""The loss that a client sends if it took no step: the largest number in float16, which makes its weight 0."""
_AUTHORS_WARMUP = 3
_NOTHING_LEFT = 1e-6


@params
class DawaParams:
    """Options of divergence-aware weighting."""

    base: Base = Field("uniform", description=BASE_TEXT)
    divergence: Literal["none", "model", "layer"] = Field("layer", description=DIVERGENCE_TEXT)
    variant: Variant = Field(
        "paper_exact",
        description="factors q_k d_k (paper); the same after a warm-up, and for buffers, too (authors' code); divided by their "
        "sum (ours); or q_k times the mean d, which shrinks without weighting (ours)",
    )
    group: Literal["array", "module"] = Field(
        "array", description="a layer is one tensor (authors' code), or a weight with its bias"
    )
    warmup: int | None = Field(
        None,
        ge=0,
        description="number of first rounds with FedAvg's weights; null: 3 for authors_code (not in the paper), else 0",
    )
    buffers: Literal["plain", "same"] | None = Field(
        None,
        description="BatchNorm statistics: averaged with q_k, or weighted like layers; null: same for authors_code, else plain",
    )
    floor: float | None = Field(
        None,
        ge=-1,
        le=1,
        description="lower bound on d_k; null: 0 for normalised, else none (a negative d_k flips the sign, sec. 3.1)",
    )


def loss_weights(losses: Tensor) -> Tensor:
    """``softmax(-L)`` of the clients' losses ``(K,)``."""
    return torch.softmax(-losses, 0)


def base_weights(base: Base, uploads: Uploads) -> Tensor:
    """The weights q ``(K,)`` in float64, summing to one.

    Raises:
        UsageError: the base is ``loss`` and an upload has none.
    """
    if base == "loss":
        if any(LOSS not in sent for sent in uploads.statistics):
            raise UsageError(f"base=loss weights clients by {LOSS}, and an upload has none; do not mask it")
        return loss_weights(torch.stack([sent[LOSS].double().reshape(()) for sent in uploads.statistics]))
    return normalised(client_weights(uploads, base))


def coefficients(cosines: Tensor, base: Tensor, variant: Variant, floor: float | None) -> Tensor:
    """The factors of the uploads ``(G, K)``, from their cosines ``(G, K)`` and the weights q ``(K,)``."""
    if floor is None and variant == "normalised":
        floor = 0.0
    scaled = base * (cosines if floor is None else cosines.clamp(min=floor))
    total = scaled.sum(1, keepdim=True)
    if variant == "normalised":
        return torch.where(total < _NOTHING_LEFT, base, scaled / total)
    return total * base if variant == "shrink_control" else scaled


@register("l-dawa")
class LDawa(Aggregation):
    """Each layer of an upload is weighted by its cosine similarity to the global layer; the weights do not sum to one."""

    paper = "Rehman et al., ICCV 2023"
    Params = DawaParams
    by_columns = True

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        if params.divergence != "none":
            return {}
        # The authors' code also implies a warm-up.
        unused = ("floor", "buffers") if params.variant == "authors_code" else ("floor", "buffers", "variant")
        return dict.fromkeys(unused, "divergence=none")

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        if self.params.base != "loss":
            return {}
        loss = update.mean_loss if math.isfinite(update.mean_loss) else NO_LOSS
        return {**super().statistics(update), LOSS: torch.tensor(loss, dtype=torch.float64)}

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        return {LOSS: Form((), torch.float64)} if self.params.base == "loss" else {}

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The weights q ``(K,)``."""
        weights: list[float] = base_weights("samples" if self._warms_up(uploads) else self.params.base, uploads).tolist()
        return weights

    def _warms_up(self, uploads: Uploads) -> bool:
        default = _AUTHORS_WARMUP if self.params.variant == "authors_code" else 0
        warmup: int = default if self.params.warmup is None else self.params.warmup
        return uploads.round <= warmup

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        options, rows, space = self.params, uploads.by_columns, uploads.space
        authors, warming = options.variant == "authors_code", self._warms_up(uploads)
        base = torch.tensor(self.weigh(uploads), dtype=torch.float64, device=rows.device)
        groups, buffers = parameter_groups(space, options.group), buffer_groups(space)
        inner = products(rows, uploads.previous, groups)
        cosines, model_cosines = inner.cosines(), inner.together().cosines()
        divergence = model_cosines.expand_as(cosines) if options.divergence == "model" else cosines
        if warming or options.divergence == "none":
            row = weighted_mean(rows, base.tolist())
        else:
            row = torch.empty_like(uploads.previous)
            combine(rows, coefficients(divergence, base, options.variant, options.floor), groups, row)
            weights = base
            if buffers and (options.buffers or ("same" if authors else "plain")) == "same":
                by_buffer = options.divergence != "model"
                divergence_of_buffers = products(rows, uploads.previous, buffers).cosines() if by_buffer else model_cosines
                weights = coefficients(divergence_of_buffers, base, options.variant, options.floor)
            combine(rows, weights, buffers, row)
        report = {"l-dawa/d": float(divergence.mean()), "l-dawa/d_model": float(model_cosines.mean())}
        report |= {"l-dawa/d_min": float(divergence.min()), "l-dawa/negative": float((divergence < 0).sum())}
        for group, mean, norm in zip(groups, cosines.mean(1).tolist(), norms(row, groups).tolist(), strict=True):
            report |= {f"l-dawa/d/{group.name}": mean, f"l-dawa/norm/{group.name}": norm}
        return Merged(row, memory, report)


@params
class MDawaParams(DawaParams):
    """Options of M-DAWA."""

    divergence: Literal["none", "model", "layer"] = Field("model", description=DIVERGENCE_TEXT)


@register("m-dawa")
class MDawa(LDawa):
    """An upload is weighted by the cosine similarity of its whole model to the global one."""

    Params = MDawaParams


@params
class LDawaFedAvgParams(DawaParams):
    """Options of L-DAWA times FedAvg's weights."""

    base: Base = Field("samples", description=BASE_TEXT)


@register("l-dawa-fedavg")
class LDawaFedAvg(LDawa):
    """L-DAWA times FedAvg's weights."""

    Params = LDawaFedAvgParams


@params
class LDawaLossParams(DawaParams):
    """Options of L-DAWA times softmax(-loss)."""

    base: Base = Field("loss", description=BASE_TEXT)


class _SendsLoss(LDawa):
    sends = "the client's mean loss of the last local epoch: one number up"
    no_dp = "clients upload their loss, which no noise covers"


@register("l-dawa-loss")
class LDawaLoss(_SendsLoss):
    """L-DAWA times softmax(-loss)."""

    Params = LDawaLossParams


@params
class LossParams(LDawaLossParams):
    """Options of weighting by loss."""

    divergence: Literal["none", "model", "layer"] = Field("none", description=DIVERGENCE_TEXT)


@register("loss")
class Loss(_SendsLoss):
    """The mean weighted by softmax(-loss): the lower a client's loss, the larger its weight."""

    Params = LossParams
