"""SimProx (El-Niss et al. 2024, eqs. 7-14): uploads weigh by how alike they are to the others and by how little they moved."""

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
    """Options of SimProx; symbols as in the paper."""

    lam0: float = Field(0.7, ge=0, le=1, description="share of the cosine in the similarity S (eq. 10; paper: best at .7)")
    tau: float = Field(0.9, gt=0, le=1, description="lam is lam0 sbar/tau where the mean cosine sbar with w is less (not stated)")
    g_scale: Literal["paper", "mean", "rms", "relative"] = Field(
        "paper", description="g_i as it is (eq. 11), over the mean g, over sqrt(p), or over |w| (ours, safe for any size of net)"
    )
    final_softmax: bool = Field(True, description="false: the weights of eq. 13 without the second softmax of eq. 14")
    per_step: bool = Field(False, description="g_i over sqrt(local steps), which clients then send (ours)")
    similarity_space: Literal["weights", "updates"] = Field(
        "weights", description="eqs. 8-9 on the uploads, or on their changes (ours)"
    )
    no_similarity: bool = Field(False, description="ablation: S = 0, so that only g counts")
    prev: Literal["global", "own"] = Field(
        "global", description="w_i_prev of eq. 11: the round's start, or the client's own last upload (it then sends g_i)"
    )
    min_update: float = Field(
        0.0, ge=0, description="uploads that moved by less are left out (idle ones would weigh the most); 0: none"
    )


@dataclass(frozen=True)
class Gram:
    """Inner products of K uploads' changes D_i = w_i - w and of w, in float64.

    Of the changes, because distances of uploads from products of the weights would be small differences of large numbers.

    Attributes:
        changes: ``(K, K)`` <D_i, D_j>.
        with_start: ``(K,)`` <D_i, w>.
        start: |w|^2.
        size: number p of parameters.
    """

    changes: Tensor
    with_start: Tensor
    start: float
    size: int

    @property
    def moved(self) -> Tensor:
        """``(K,)`` |D_i|."""
        return self.changes.diagonal().sqrt()

    @property
    def squared_distances(self) -> Tensor:
        """``(K, K)`` |w_i - w_j|^2."""
        own = self.changes.diagonal()
        return (own[:, None] + own - 2 * self.changes).clamp(min=0).fill_diagonal_(0)

    @property
    def weights(self) -> Tensor:
        """``(K, K)`` <w_i, w_j>."""
        return self.start + self.with_start[:, None] + self.with_start + self.changes

    @property
    def cosines_with_start(self) -> Tensor:
        """``(K,)`` cos(w_i, w); 0 where either is zero."""
        norms = self.weights.diagonal().clamp(min=0).sqrt() * math.sqrt(self.start)
        return torch.where(norms > 0, ((self.start + self.with_start) / norms).clamp(-1, 1), 0.0)

    def of(self, chosen: Tensor) -> Gram:
        """The products of some of the uploads."""
        return Gram(self.changes[chosen][:, chosen], self.with_start[chosen], self.start, self.size)


def gram(rows: Rows, start: Tensor, slices: Sequence[slice]) -> Gram:
    """The products of uploads ``(K, p)`` and the round's start ``(p,)`` over the columns in ``slices``, in one pass."""
    changes = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    with_start, own = changes.new_zeros(len(rows)), changes.new_zeros(())
    for where, block in blocks(rows, slices):
        reference = start[where].double()
        block -= reference
        changes.addmm_(block, block.T)
        with_start += block @ reference
        own += reference @ reference
    # Rounding may make the computed product asymmetric in the last bit.
    changes = (changes + changes.T) / 2
    return Gram(changes.cpu(), with_start.cpu(), float(own), sum(part.stop - part.start for part in slices))


def cosine_matrix(products: Tensor) -> Tensor:
    """``(K, K)`` cosines from inner products; 0 with a zero vector."""
    norms = products.diagonal().clamp(min=0).sqrt()
    both = norms[:, None] * norms
    return torch.where(both > 0, (products / both).clamp(-1, 1), 0.0)


def mean_similarity(found: Gram, lam: float, space: Literal["weights", "updates"]) -> Tensor:
    """Sbar ``(K,)``: mean over the other uploads of lam C_ij + (1 - lam) G_ij (eqs. 7-10, 12); 0 for a single upload."""
    count = len(found.with_start)
    if count < 2:
        return torch.zeros(count, dtype=torch.float64)
    squared = found.squared_distances
    sigma = float(squared.sqrt().sum()) / (count * (count - 1))
    alike = torch.exp(-squared / (2 * sigma**2)) if sigma > 0 else torch.ones_like(squared)
    cosine = cosine_matrix(found.weights if space == "weights" else found.changes)
    similarity = lam * cosine + (1 - lam) * alike
    return (similarity.sum(1) - similarity.diagonal()) / (count - 1)


def weights(moved: Tensor, similarity: Tensor, final_softmax: bool = True) -> tuple[Tensor, Tensor]:
    """(alpha, a), each ``(K,)``: eqs. 12-14 in logarithms, so that exp(-g) cannot underflow.

    Args:
        moved: ``(K,)`` g_i.
        similarity: ``(K,)`` Sbar_i > -1.
    """
    score = torch.softmax(torch.log1p(similarity) - moved, 0)
    return (torch.softmax(score, 0) if final_softmax else score), score


@register("simprox")
class SimProx(Aggregation):
    """Uploads weigh by their similarity to the others and exp(-|w_i - w|), through two softmaxes."""

    paper = "El-Niss et al., IEEE OJ-COMS 5, 2024"
    Params = SimProxParams
    by_columns = True

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        found = {}
        if self.params.per_step:
            found[STEPS] = torch.tensor(update.steps, dtype=torch.int64)
        if self.params.prev == "own":
            before = update.start if update.first_time else update.private[_PREVIOUS]
            squared = sum(
                float((update.row[part] - before[part]).double().square().sum()) for part in self._shared_parameters(update)
            )
            found[MOVED] = torch.tensor(math.sqrt(squared), dtype=torch.float64)
        return found

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        found = {STEPS: Form((), torch.int64, least=0, most=steps)} if self.params.per_step else {}
        return found | ({MOVED: Form((), torch.float64, least=0)} if self.params.prev == "own" else {})

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        return {_PREVIOUS: update.row.clone()} if self.params.prev == "own" else {}

    def _shared_parameters(self, update: LocalUpdate) -> list[slice]:
        """Those that the client trains: the branch of what it lacks moves at the server alone, between its local updates."""
        names = update.received.keys() - update.unused
        entries = (entry for entry in self.context.space.entries if entry.kind != "buffer" and entry.name in names)
        return [slice(entry.start, entry.stop) for entry in entries]

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        options = self.params
        found = gram(uploads.by_columns, uploads.previous, uploads.space.parameters())
        moved = _told(uploads, MOVED, "prev=own") if options.prev == "own" else found.moved
        if options.per_step:
            moved = moved / _told(uploads, STEPS, "per_step=true").clamp(min=1).sqrt()
        chosen = (moved >= options.min_update).nonzero().squeeze(1)
        left_out = len(moved) - len(chosen)
        if not len(chosen):
            return Merged(uploads.previous, memory, {"simprox/left_out": float(left_out)})
        found, moved = found.of(chosen), moved[chosen]
        sbar = float(found.cosines_with_start.mean())
        lam = options.lam0 * max(sbar, 0.0) / options.tau if sbar < options.tau else options.lam0
        similarity = mean_similarity(found, lam, options.similarity_space)
        if options.no_similarity:
            similarity = torch.zeros_like(similarity)
        scaled = _scaled(moved, options.g_scale, found)
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


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's correlation of two ``(K,)``; NaN where either is constant."""
    one, other = one - one.mean(), other - other.mean()
    return float(one @ other / (one.norm() * other.norm()))


def _scaled(moved: Tensor, scale: str, found: Gram) -> Tensor:
    unit = {"paper": 1.0, "mean": float(moved.mean()), "rms": math.sqrt(found.size), "relative": math.sqrt(found.start)}[scale]
    return moved / unit if unit > 0 else moved


def _told(uploads: Uploads, name: str, option: str) -> Tensor:
    if any(name not in sent for sent in uploads.statistics):
        raise UsageError(f"aggregation simprox with {option} needs every client's {name}, and an upload has none; do not mask it")
    return torch.stack([sent[name].double().reshape(()) for sent in uploads.statistics])
