"""Divergence-aware weighting (L-DAWA, Rehman et al. 2023, eqs. 2-6): an upload counts by its cosine with the global model."""

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
DIVERGENCE_TEXT = "d_k: none (1), the cosine of the whole model (M-DAWA, eq. 2), or of each layer (L-DAWA, eq. 4)"
NO_LOSS = 65504.0
"""The loss in nats sent by a client that took no step, which gives it weight 0 unless all clients took none. The largest number
in half precision."""
_AUTHORS_WARMUP = 3
_NOTHING_LEFT = 1e-6


@params
class DawaParams:
    """Options of the family: w = sum_k q_k d_k w_k, by layer; d_k is the cosine of w_k with the round's start."""

    base: Base = Field("uniform", description=BASE_TEXT)
    divergence: Literal["none", "model", "layer"] = Field("layer", description=DIVERGENCE_TEXT)
    variant: Variant = Field(
        "paper_exact",
        description="coefficients q_k d_k that sum to less than one (paper); the same after a warm-up, and for buffers too "
        "(authors' code); divided by their sum; or mean d times q_k: the same shrinking without the weighting (ours, both)",
    )
    group: Literal["array", "module"] = Field("array", description="a layer: one tensor (authors' code), or weight with bias")
    warmup: int | None = Field(
        None, ge=0, description="first rounds that are FedAvg by samples; null: 3 for authors_code (not in the paper), else 0"
    )
    buffers: Literal["plain", "same"] | None = Field(
        None,
        description="BatchNorm statistics: averaged by q_k, or scaled by a cosine too; null: same for authors_code, else plain",
    )
    floor: float | None = Field(
        None, ge=-1, le=1, description="smallest d_k; null: 0 for normalised, else none: below zero it flips the sign (sec. 3.1)"
    )


def loss_weights(losses: Tensor) -> Tensor:
    """``softmax(-L)`` of ``(K,)`` losses in nats."""
    return torch.softmax(-losses, 0)


def base_weights(base: Base, uploads: Uploads) -> Tensor:
    """q ``(K,)`` in float64, summing to one.

    Raises:
        UsageError: base ``loss`` and an upload without ``statistic.loss``.
    """
    if base == "loss":
        if any(LOSS not in sent for sent in uploads.statistics):
            raise UsageError(f"base=loss weighs clients by {LOSS}, and an upload has none; do not mask it")
        return loss_weights(torch.stack([sent[LOSS].double().reshape(()) for sent in uploads.statistics]))
    return normalised(client_weights(uploads, base))


def coefficients(cosines: Tensor, base: Tensor, variant: Variant, floor: float | None) -> Tensor:
    """The factor of each upload ``(G, K)``, from its cosines ``(G, K)`` and the weights q ``(K,)``."""
    if floor is None and variant == "normalised":
        floor = 0.0
    scaled = base * (cosines if floor is None else cosines.clamp(min=floor))
    total = scaled.sum(1, keepdim=True)
    if variant == "normalised":
        return torch.where(total < _NOTHING_LEFT, base, scaled / total)
    return total * base if variant == "shrink_control" else scaled


@register("l-dawa")
class LDawa(Aggregation):
    """Each layer of an upload counts by its cosine with the global layer; coefficients do not sum to one."""

    paper = "Rehman et al., ICCV 2023"
    Params = DawaParams
    by_columns = True

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        if params.divergence != "none":
            return {}
        # The variant of the authors' code also says how many rounds warm up.
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
        """q ``(K,)``."""
        weights: list[float] = base_weights("samples" if self._warms_up(uploads) else self.params.base, uploads).tolist()
        return weights

    def _warms_up(self, uploads: Uploads) -> bool:
        usual = _AUTHORS_WARMUP if self.params.variant == "authors_code" else 0
        warmup: int = usual if self.params.warmup is None else self.params.warmup
        return uploads.round <= warmup

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        options, rows, space = self.params, uploads.by_columns, uploads.space
        authors, warming = options.variant == "authors_code", self._warms_up(uploads)
        base = torch.tensor(self.weigh(uploads), dtype=torch.float64, device=rows.device)
        groups, buffers = parameter_groups(space, options.group), buffer_groups(space)
        found = products(rows, uploads.previous, groups)
        cosines, of_model = found.cosines(), found.together().cosines()
        judged = of_model.expand_as(cosines) if options.divergence == "model" else cosines
        if warming or options.divergence == "none":
            row = weighted_mean(rows, base.tolist())
        else:
            row = torch.empty_like(uploads.previous)
            combine(rows, coefficients(judged, base, options.variant, options.floor), groups, row)
            weights = base
            if buffers and (options.buffers or ("same" if authors else "plain")) == "same":
                own = of_model if options.divergence == "model" else products(rows, uploads.previous, buffers).cosines()
                weights = coefficients(own, base, options.variant, options.floor)
            combine(rows, weights, buffers, row)
        report = {"l-dawa/d": float(judged.mean()), "l-dawa/d_model": float(of_model.mean())}
        report |= {"l-dawa/d_min": float(judged.min()), "l-dawa/negative": float((judged < 0).sum())}
        for group, mean, norm in zip(groups, cosines.mean(1).tolist(), norms(row, groups).tolist(), strict=True):
            report |= {f"l-dawa/d/{group.name}": mean, f"l-dawa/norm/{group.name}": norm}
        return Merged(row, memory, report)


@params
class MDawaParams(DawaParams):
    """Options of M-DAWA."""

    divergence: Literal["none", "model", "layer"] = Field("model", description=DIVERGENCE_TEXT)


@register("m-dawa")
class MDawa(LDawa):
    """An upload counts by the cosine of the whole model with the global one."""

    Params = MDawaParams


@params
class LDawaFedAvgParams(DawaParams):
    """Options of L-DAWA on top of FedAvg's weights."""

    base: Base = Field("samples", description=BASE_TEXT)


@register("l-dawa-fedavg")
class LDawaFedAvg(LDawa):
    """L-DAWA times FedAvg's weights."""

    Params = LDawaFedAvgParams


@params
class LDawaLossParams(DawaParams):
    """Options of L-DAWA on top of weights by loss."""

    base: Base = Field("loss", description=BASE_TEXT)


class _TellsItsLoss(LDawa):
    sends = "the client's mean loss of the last local epoch: one number up"
    no_dp = "its clients send the server their loss, which no noise covers"


@register("l-dawa-loss")
class LDawaLoss(_TellsItsLoss):
    """L-DAWA times softmax(-loss)."""

    Params = LDawaLossParams


@params
class LossParams(LDawaLossParams):
    """Options of weighting by loss."""

    divergence: Literal["none", "model", "layer"] = Field("none", description=DIVERGENCE_TEXT)


@register("loss")
class Loss(_TellsItsLoss):
    """The mean weighted by softmax(-loss): the lower a client's loss, the more it counts."""

    Params = LossParams
