"""Inner products, distances and weighted sums over groups of columns of a round's matrix K x p.

Products and squares are summed in float64: in float32, cosines of nearly equal models exceed one and squared distances become
negative, and even matrix-vector products in float32 blocks have a systematic error of 3e-7. Columns are converted in blocks that
fit a cache, so that there is never a float64 copy of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpriv.aggregation.rows import Rows, pieces
from fedpriv.parameters import ParameterSpace, layer_of

GroupBy = Literal["model", "module", "array"]

_ENTRIES = 2**18
"""Entries of a block; 2 MiB in float64."""
_PLAIN_COLUMNS = 2**14
"""Columns of a block in the matrix's own precision; float32 sums over more columns lose precision."""
_NARROWEST = 2**11


@dataclass(frozen=True)
class Group:
    """Columns that are merged with the same weights."""

    name: str
    slices: tuple[slice, ...]

    @property
    def size(self) -> int:
        return sum(part.stop - part.start for part in self.slices)


def parameter_groups(space: ParameterSpace, by: GroupBy) -> list[Group]:
    """The parameters (no buffers) in groups: all together, by module (weight and bias), or by array."""
    return _groups(space, by, buffers=False)


def buffer_groups(space: ParameterSpace) -> list[Group]:
    """The floating-point buffers, a group for each array."""
    return _groups(space, "array", buffers=True)


def _groups(space: ParameterSpace, by: GroupBy, buffers: bool) -> list[Group]:
    groups: dict[str, list[slice]] = {}
    for entry in space.entries:
        if (entry.kind == "buffer") != buffers:
            continue
        name = {"model": "model", "module": layer_of(entry.name), "array": entry.name}[by]
        parts = groups.setdefault(name, [])
        if parts and parts[-1].stop == entry.start:
            parts[-1] = slice(parts[-1].start, entry.stop)
        else:
            parts.append(slice(entry.start, entry.stop))
    return [Group(name, tuple(parts)) for name, parts in groups.items()]


def blocks(rows: Rows, slices: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
    """Yield the columns of ``rows`` ``(K, p)`` in ``slices``, in blocks: (columns, their values ``(K, b)`` in float64).

    A block is overwritten by the next one.
    """
    width = max(_NARROWEST, _ENTRIES // max(1, len(rows)))
    room = torch.empty(len(rows) * width, dtype=torch.float64, device=rows.device)
    for part in slices:
        for start in range(part.start, part.stop, width):
            where = slice(start, min(start + width, part.stop))
            size = where.stop - where.start
            block = room[: len(rows) * size].view(len(rows), size)
            yield where, block.copy_(rows[:, where])


@dataclass(frozen=True)
class Products:
    """Inner products over G groups of columns, in float64.

    Attributes:
        cross: of each upload with the reference ``(G, K)``.
        own: of each upload with itself ``(G, K)``.
        reference: of the reference with itself ``(G,)``.
    """

    cross: Tensor
    own: Tensor
    reference: Tensor

    def together(self) -> Products:
        """The products over the columns of all groups (G is 1)."""
        return Products(self.cross.sum(0, keepdim=True), self.own.sum(0, keepdim=True), self.reference.sum(0, keepdim=True))

    def cosines(self) -> Tensor:
        """Cosine similarity of each upload and the reference ``(G, K)``, in [-1, 1]; 1 if either is zero."""
        norms = (self.own * self.reference[:, None]).sqrt()
        return torch.where(norms > 0, (self.cross / norms).clamp(-1, 1), 1.0)


def products(rows: Rows, reference: Tensor, groups: Sequence[Group]) -> Products:
    """Inner products of the uploads ``(K, p)`` with a reference ``(p,)``, in one pass over the matrix.

    They are computed in the matrix's own precision within a block, and in float64 across blocks: with float32, cosines are
    correct to 1e-7. Use :func:`exact_products` if differences of cosines matter.
    """
    reference = reference.to(rows.device, rows.dtype)
    cross = torch.zeros(len(groups), len(rows), dtype=torch.float64, device=rows.device)
    own, of_reference = torch.zeros_like(cross), cross.new_zeros(len(groups))
    for index, group in enumerate(groups):
        blocks_of_group = []
        for part in group.slices:
            for start in range(part.start, part.stop, _PLAIN_COLUMNS):
                where = slice(start, min(start + _PLAIN_COLUMNS, part.stop))
                block, other = rows[:, where], reference[where]
                # All three while the block is in the cache; they are summed over the blocks at the end.
                blocks_of_group.append((block @ other, torch.linalg.vector_norm(block, dim=1), torch.linalg.vector_norm(other)))
        dots, lengths, of_other = (torch.stack(column).double() for column in zip(*blocks_of_group, strict=True))
        cross[index], own[index], of_reference[index] = dots.sum(0), lengths.square().sum(0), of_other.square().sum()
    return Products(cross, own, of_reference)


def exact_products(rows: Rows, reference: Tensor, groups: Sequence[Group]) -> Products:
    """:func:`products` entirely in float64, also for a reference in float64; takes three times as long."""
    cross = torch.zeros(len(groups), len(rows), dtype=torch.float64, device=rows.device)
    own, of_reference = torch.zeros_like(cross), cross.new_zeros(len(groups))
    for index, group in enumerate(groups):
        for where, block in blocks(rows, group.slices):
            other = reference[where].double()
            cross[index] += block @ other
            of_reference[index] += other @ other
            own[index] += block.square_().sum(1)
    return Products(cross, own, of_reference)


def squared_distances(rows: Rows, reference: Tensor, groups: Sequence[Group]) -> Tensor:
    """Squared distances of the uploads ``(K, p)`` from a reference ``(p,)``: ``(G, K)`` in float64, in one pass."""
    distances = torch.zeros(len(groups), len(rows), dtype=torch.float64, device=rows.device)
    for index, group in enumerate(groups):
        for where, block in blocks(rows, group.slices):
            distances[index] += block.sub_(reference[where]).square_().sum(1)
    return distances


def norms(row: Tensor, groups: Sequence[Group]) -> Tensor:
    """L2 norms of a model ``(p,)`` by group: ``(G,)`` in float64, correct to float32's precision."""
    norms_of_slices = [torch.stack([torch.linalg.vector_norm(row[part]) for part in group.slices]).double() for group in groups]
    return torch.stack([torch.linalg.vector_norm(parts) for parts in norms_of_slices])


def combine(rows: Rows, weights: Tensor, groups: Sequence[Group], out: Tensor) -> Tensor:
    """Write ``sum_k weights[g, k] rows[k]`` into the columns of each group g of ``out`` ``(p,)``, and return ``out``.

    Args:
        weights: ``(G, K)``, or ``(K,)`` for all groups.
    """
    weights = weights.to(rows.device, rows.dtype).expand(len(groups), len(rows))
    for group, weight in zip(groups, weights, strict=True):
        for part in group.slices:
            for where in pieces(rows, part):
                torch.mv(rows[:, where].T, weight, out=out[where])
    return out


def weighted_sum(rows: Rows, weights: Tensor) -> Tensor:
    """``sum_k weights_k rows_k`` of the uploads ``(K, p)``: ``(p,)``, in their precision."""
    weights = weights.to(rows.device, rows.dtype)
    if isinstance(rows, Tensor):
        return weights @ rows
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return combine(rows, weights, [Group("all", (slice(0, len(out)),))], out)
