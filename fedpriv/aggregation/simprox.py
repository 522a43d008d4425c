"""The server part of SimProx (El-Niss et al., IEEE OJ-COMS 5, 2024, eqs. 7-14): weights by similarity and update size.

    S_ij  = lam cos(w_i, w_j) + (1 - lam) exp(-|w_i - w_j|^2 / (2 sigma^2)),        g_i = |w_i - w|
    a     = softmax over clients of log((1 + mean_j S_ij) exp(-g_i)),               weights alpha = softmax(a)

The more an upload resembles the others, and the less it moved from the round's start w, the larger its weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import blocks, weighted_sum
from fedpriv.aggregation.rows import Rows
from fedpriv.errors import UsageError
from fedpriv.interfaces import LocalUpdate, params
from fedpriv.wire import Form, statistic

STEPS, MOVED = statistic("steps"), statistic("moved")
_PREVIOUS = "simprox.previous"


@params
class SimProxParams:
    """Options of SimProx, with the paper's symbols."""

    lam0: float = Field(0.7, ge=0, le=1, description="weight of the cosine in the similarity S (eq. 10; paper: best at 0.7)")
    tau: float = Field(
        0.9, gt=0, le=1, description="if the mean cosine sbar with w is below tau, lam is lam0 sbar/tau (value not stated)"
    )
    g_scale: Literal["paper", "mean", "rms", "relative"] = Field(
        "paper", description="g_i (eq. 11), or divided by the mean g, by sqrt(p), or by |w| (ours, for nets of any size)"
    )
    final_softmax: bool = Field(True, description="false: the weights of eq. 13, without the second softmax of eq. 14")
    per_step: bool = Field(False, description="divide g_i by sqrt(local steps), which clients then send (ours)")
    similarity_space: Literal["weights", "updates"] = Field(
        "weights", description="eqs. 8-9 for the uploads, or for their changes (ours)"
    )
    no_similarity: bool = Field(False, description="ablation: S = 0, so that only g matters")
    prev: Literal["global", "own"] = Field(
        "global", description="w_i_prev of eq. 11: the round's start, or the client's last upload (it then sends g_i)"
    )
    min_update: float = Field(
        0.0, ge=0, description="uploads that moved by less are left out (untrained ones would have the largest weight); 0: none"
    )


@dataclass(frozen=True)
class Gram:
    """Inner products of K uploads' changes D_i = w_i - w, and of w, in float64.

    (From products of the weights w_i, distances would be small differences of large numbers.)

    Attributes:
        changes: <D_i, D_j> ``(K, K)``.
        with_start: <D_i, w> ``(K,)``.
        start: |w|^2.
        size: number p of parameters.
    """

    changes: Tensor
    with_start: Tensor
    start: float
    size: int

    @property
    def moved(self) -> Tensor:
        """|D_i| ``(K,)``."""
        return self.changes.diagonal().sqrt()

    @property
    def squared_distances(self) -> Tensor:
        """|w_i - w_j|^2 ``(K, K)``."""
        squares = self.changes.diagonal()
        return (squares[:, None] + squares - 2 * self.changes).clamp(min=0).fill_diagonal_(0)

    @property
    def weights(self) -> Tensor:
        """<w_i, w_j> ``(K, K)``."""
        return self.start + self.with_start[:, None] + self.with_start + self.changes

    @property
    def cosines_with_start(self) -> Tensor:
        """cos(w_i, w) ``(K,)``; 0 if either is zero."""
        norms = self.weights.diagonal().clamp(min=0).sqrt() * math.sqrt(self.start)
        return torch.where(norms > 0, ((self.start + self.with_start) / norms).clamp(-1, 1), 0.0)

    def select(self, chosen: Tensor) -> Gram:
        """The products of some uploads only."""
        return Gram(self.changes[chosen][:, chosen], self.with_start[chosen], self.start, self.size)


def gram(rows: Rows, start: Tensor, slices: Sequence[slice]) -> Gram:
    """The inner products of uploads ``(K, p)`` and the round's start ``(p,)`` in the columns of ``slices``, in one pass."""
    changes = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    with_start, square = changes.new_zeros(len(rows)), changes.new_zeros(())
    for where, block in blocks(rows, slices):
        reference = start[where].double()
        block -= reference
        changes.addmm_(block, block.T)
        with_start += block @ reference
        square += reference @ reference
    # Rounding may make the computed product asymmetric in the last bit.
    changes = (changes + changes.T) / 2
    return Gram(changes.cpu(), with_start.cpu(), float(square), sum(part.stop - part.start for part in slices))


def cosine_matrix(products: Tensor) -> Tensor:
    """Cosine similarities from inner products ``(K, K)``; 0 for a zero vector."""
    norms = products.diagonal().clamp(min=0).sqrt()
    both = norms[:, None] * norms
    return torch.where(both > 0, (products / both).clamp(-1, 1), 0.0)


def mean_similarity(products: Gram, lam: float, space: Literal["weights", "updates"]) -> Tensor:
    """Mean similarity S of each upload to the others ``(K,)`` (eqs. 7-10, 12); 0 for a single upload."""
    count = len(products.with_start)
    if count < 2:
        return torch.zeros(count, dtype=torch.float64)
    squared = products.squared_distances
    sigma = float(squared.sqrt().sum()) / (count * (count - 1))
    kernel = torch.exp(-squared / (2 * sigma**2)) if sigma > 0 else torch.ones_like(squared)
    cosine = cosine_matrix(products.weights if space == "weights" else products.changes)
    similarity = lam * cosine + (1 - lam) * kernel
    return (similarity.sum(1) - similarity.diagonal()) / (count - 1)


def weights(moved: Tensor, similarity: Tensor, final_softmax: bool = True) -> tuple[Tensor, Tensor]:
    """The weights alpha and the scores a ``(K,)`` of eqs. 12-14, computed in logarithms, as exp(-g) could underflow.

    Args:
        moved: g ``(K,)``.
        similarity: mean similarities ``(K,)``, above -1.
    """
    score = torch.softmax(torch.log1p(similarity) - moved, 0)
    return (torch.softmax(score, 0) if final_softmax else score), score


@register("simprox")
class SimProx(Aggregation):
    """An upload is weighted by its similarity to the others and by exp(-|w_i - w|), through two softmaxes."""

    paper = "El-Niss et al., IEEE OJ-COMS 5, 2024"
    Params = SimProxParams
    by_columns = True

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        statistics = {}
        if self.params.per_step:
            statistics[STEPS] = torch.tensor(update.steps, dtype=torch.int64)
        if self.params.prev == "own":
            before = update.start if update.first_time else update.private[_PREVIOUS]
            squared = sum(
                float((update.row[part] - before[part]).double().square().sum()) for part in self._shared_parameters(update)
            )
            statistics[MOVED] = torch.tensor(math.sqrt(squared), dtype=torch.float64)
        return statistics

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        forms = {STEPS: Form((), torch.int64, least=0, most=steps)} if self.params.per_step else {}
        return forms | ({MOVED: Form((), torch.float64, least=0)} if self.params.prev == "own" else {})

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {_PREVIOUS: update.row.clone()} if self.params.prev == "own" else {}

    def _shared_parameters(self, update: LocalUpdate) -> list[slice]:
        """The columns of the received parameters, without those that the client has no data for."""
        names = update.received.keys() - update.unused
        entries = (entry for entry in self.context.space.entries if entry.kind != "buffer" and entry.name in names)
        return [slice(entry.start, entry.stop) for entry in entries]

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        options = self.params
        products = gram(uploads.by_columns, uploads.previous, uploads.space.parameters())
        moved = _statistic(uploads, MOVED, "prev=own") if options.prev == "own" else products.moved
        if options.per_step:
            moved = moved / _statistic(uploads, STEPS, "per_step=true").clamp(min=1).sqrt()
        chosen = (moved >= options.min_update).nonzero().squeeze(1)
        left_out = len(moved) - len(chosen)
        if not len(chosen):
            return Merged(uploads.previous, memory, {"simprox/left_out": float(left_out)})
        products, moved = products.select(chosen), moved[chosen]
        sbar = float(products.cosines_with_start.mean())
        lam = options.lam0 * max(sbar, 0.0) / options.tau if sbar < options.tau else options.lam0
        similarity = mean_similarity(products, lam, options.similarity_space)
        if options.no_similarity:
            similarity = torch.zeros_like(similarity)
        scaled = _scaled(moved, options.g_scale, products)
        alpha, score = weights(scaled, similarity, options.final_softmax)
        without, _ = weights(scaled, torch.zeros_like(similarity), options.final_softmax)
        every = torch.zeros(len(uploads), dtype=torch.float64)
        every[chosen] = alpha
        report = {
            "simprox/tv": float((alpha - 1 / len(alpha)).abs().sum() / 2),
            "simprox/alpha_with_examples": correlation(every, torch.tensor(uploads.examples, dtype=torch.float64)),
            "simprox/similarity_effect": float((alpha - without).abs().max()),
            "simprox/lam": lam,
            "simprox/sbar": sbar,
            "simprox/tau_fired": float(sbar < options.tau),
            "simprox/left_out": float(left_out),
        }
        for name, values in (("alpha", every), ("a", score), ("g", moved), ("similarity", similarity)):
            report |= {f"simprox/{name}_min": float(values.min()), f"simprox/{name}_max": float(values.max())}
        report |= {"simprox/g_mean": float(moved.mean()), "simprox/similarity_mean": float(similarity.mean())}
        row = weighted_sum(uploads.by_columns, every)
        return Merged(row, memory, {name: value for name, value in report.items() if math.isfinite(value)})


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's correlation of two vectors ``(K,)``; NaN if either is constant."""
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / (first.norm() * second.norm()))


def _scaled(moved: Tensor, scale: str, products: Gram) -> Tensor:
    units = {"paper": 1.0, "mean": float(moved.mean()), "rms": math.sqrt(products.size), "relative": math.sqrt(products.start)}
    return moved / units[scale] if units[scale] > 0 else moved


def _statistic(uploads: Uploads, name: str, option: str) -> Tensor:
    if any(name not in sent for sent in uploads.statistics):
        raise UsageError(f"aggregation simprox with {option} needs every client's {name}, and an upload has none; do not mask it")
    return torch.stack([sent[name].double().reshape(()) for sent in uploads.statistics])
