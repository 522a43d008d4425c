"""Inner products, distances and weighted sums over groups of columns of a round's K x p matrix, in blocks that fit a cache.

Products and squares are summed in float64: in float32, cosines of nearly equal models come out above one and squared distances
below zero, and a matrix-vector product in float32 blocks would still be off by 3e-7, always in the same direction. Blocks are
converted one at a time, so there is never a float64 copy of the matrix.
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
"""Columns of a block in the matrix's own precision; float32 sums over more of them lose precision."""
_NARROWEST = 2**11


@dataclass(frozen=True)
class Group:
    """Columns that have a common weight."""

    name: str
    slices: tuple[slice, ...]

    @property
    def size(self) -> int:
        return sum(part.stop - part.start for part in self.slices)


def parameter_groups(space: ParameterSpace, by: GroupBy) -> list[Group]:
    """The parameters (no buffers) of a space in groups: all in one, one per module (weight and bias), or one per array."""
    return _groups(space, by, buffers=False)


def buffer_groups(space: ParameterSpace) -> list[Group]:
    """The floating-point buffers, one group per array."""
    return _groups(space, "array", buffers=True)


def _groups(space: ParameterSpace, by: GroupBy, buffers: bool) -> list[Group]:
    found: dict[str, list[slice]] = {}
    for entry in space.entries:
        if (entry.kind == "buffer") != buffers:
            continue
        name = {"model": "model", "module": layer_of(entry.name), "array": entry.name}[by]
        parts = found.setdefault(name, [])
        if parts and parts[-1].stop == entry.start:
            parts[-1] = slice(parts[-1].start, entry.stop)
        else:
            parts.append(slice(entry.start, entry.stop))
    return [Group(name, tuple(parts)) for name, parts in found.items()]


def blocks(rows: Rows, slices: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over the columns of ``rows`` ``(K, p)`` in ``slices``: (columns, block ``(K, b)`` in float64), where the next block
    overwrites the last one."""
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
        cross: ``(G, K)``, each upload with the reference.
        own: ``(G, K)``, each upload with itself.
        reference: ``(G,)``, the reference with itself.
    """

    cross: Tensor
    own: Tensor
    reference: Tensor

    def together(self) -> Products:
        """The products over all groups together."""
        return Products(self.cross.sum(0, keepdim=True), self.own.sum(0, keepdim=True), self.reference.sum(0, keepdim=True))

    def cosines(self) -> Tensor:
        """``(G, K)`` cosine of each upload with the reference, in [-1, 1]; 1 where either of them is zero."""
        norms = (self.own * self.reference[:, None]).sqrt()
        return torch.where(norms > 0, (self.cross / norms).clamp(-1, 1), 1.0)


def products(rows: Rows, reference: Tensor, groups: Sequence[Group]) -> Products:
    """Inner products of the uploads ``(K, p)`` with a reference ``(p,)``; one pass over the matrix.

    In the matrix's own precision within a block and in float64 across blocks: from float32, cosines are right to 1e-7, which is
    float32's precision. Use :func:`exact_products` where differences of cosines matter.
    """
    reference = reference.to(rows.device, rows.dtype)
    cross = torch.zeros(len(groups), len(rows), dtype=torch.float64, device=rows.device)
    own, of_reference = torch.zeros_like(cross), cross.new_zeros(len(groups))
    for index, group in enumerate(groups):
        found = []
        for part in group.slices:
            for start in range(part.start, part.stop, _PLAIN_COLUMNS):
                where = slice(start, min(start + _PLAIN_COLUMNS, part.stop))
                block, other = rows[:, where], reference[where]
                # Both products while the block is in the cache; their sums over all blocks come at the end.
                found.append((block @ other, torch.linalg.vector_norm(block, dim=1), torch.linalg.vector_norm(other)))
        dots, lengths, of_other = (torch.stack(column).double() for column in zip(*found, strict=True))
        cross[index], own[index], of_reference[index] = dots.sum(0), lengths.square().sum(0), of_other.square().sum()
    return Products(cross, own, of_reference)


def exact_products(rows: Rows, reference: Tensor, groups: Sequence[Group]) -> Products:
    """:func:`products` in float64 throughout, also for references in float64; takes three times as long."""
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
    """``(G, K)`` in float64: squared distances of the uploads ``(K, p)`` from a reference ``(p,)``; one pass over the matrix."""
    found = torch.zeros(len(groups), len(rows), dtype=torch.float64, device=rows.device)
    for index, group in enumerate(groups):
        for where, block in blocks(rows, group.slices):
            found[index] += block.sub_(reference[where]).square_().sum(1)
    return found


def norms(row: Tensor, groups: Sequence[Group]) -> Tensor:
    """``(G,)`` L2 norms of a model ``(p,)`` by group, to float32's precision, in float64."""
    found = [torch.stack([torch.linalg.vector_norm(row[part]) for part in group.slices]).double() for group in groups]
    return torch.stack([torch.linalg.vector_norm(parts) for parts in found])


def combine(rows: Rows, weights: Tensor, groups: Sequence[Group], out: Tensor) -> Tensor:
    """``sum_k weights[g, k] rows[k]`` in the columns of each group, written into ``out`` ``(p,)``, which is returned.

    Args:
        weights: ``(G, K)``, or ``(K,)`` the same for all groups.
    """
    weights = weights.to(rows.device, rows.dtype).expand(len(groups), len(rows))
    for group, weight in zip(groups, weights, strict=True):
        for part in group.slices:
            for where in pieces(rows, part):
                torch.mv(rows[:, where].T, weight, out=out[where])
    return out


def weighted_sum(rows: Rows, weights: Tensor) -> Tensor:
    """``sum_k weights_k rows_k`` of the uploads ``(K, p)``, in their precision: ``(p,)``."""
    weights = weights.to(rows.device, rows.dtype)
    if isinstance(rows, Tensor):
        return weights @ rows
    out = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return combine(rows, weights, [Group("all", (slice(0, len(out)),))], out)
