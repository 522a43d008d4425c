"""A round in which some client has no data for a tensor (such as the image branch), and so did not upload it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedpriv.aggregation.base import Uploads
from fedpriv.aggregation.rows import Rows


def complete(uploads: Uploads, sent: Sequence[Collection[str]], weights: Sequence[float]) -> None:
    """Replace missing tensors in ``uploads.rows`` by the weighted mean of the clients that sent them, in place.

    The weighted mean of all rows is then that of the senders, and missing tensors do not affect a client's distance from the
    mean. If the senders' weights are all zero, the server's values remain.

    Args:
        sent: names of the tensors that each client sent.
        weights: weights of the mean ``(K,)``.
    """
    if all(names >= set(uploads.space.names) for names in map(set, sent)):
        return
    weight = torch.tensor(weights, dtype=torch.float64)
    for entry in uploads.space.entries:
        has = torch.tensor([entry.name in names for names in sent])
        if has.all() or weight[has].sum() <= 0:
            continue
        columns = uploads.rows[:, entry.start : entry.stop]
        share = (weight[has] / weight[has].sum()).to(columns)
        columns[~has] = share @ columns[has]


def by_senders(uploads: Uploads) -> list[tuple[Tensor, tuple[slice, ...]]]:
    """The columns of a round's matrix by the clients that sent them: the numbers of these clients' rows ``(k,)``, and the
    columns. Merges that hold against bad clients read no other rows: a mean that stands in for a tensor is not bounded."""
    if uploads.senders is None:
        return [(torch.arange(len(uploads)), (slice(0, uploads.space.size),))]
    columns: dict[tuple[int, ...], list[slice]] = {}
    for entry in uploads.space.entries:
        rows = tuple(row for row, names in enumerate(uploads.senders) if entry.name in names)
        columns.setdefault(rows, []).append(slice(entry.start, entry.stop))
    return [(torch.tensor(rows), tuple(slices)) for rows, slices in columns.items()]


def completed(uploads: Uploads, values: Tensor) -> Rows:
    """The uploads ``(K, p)`` with entries of ``values`` ``(p,)`` in place of what a client did not send."""
    if uploads.senders is None:
        return uploads.by_columns
    rows = values.expand(len(uploads), -1).clone()
    for clients, columns in by_senders(uploads):
        for part in columns:
            rows[clients, part] = uploads.rows[clients, part]
    return rows
