"""Fills tensors that a client did not upload, because it has no data for them, into a round's matrix."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fedpriv.aggregation.base import Uploads


def complete(uploads: Uploads, sent: Sequence[Collection[str]], weights: Sequence[float]) -> None:
    """Fill ``uploads.rows`` in place: clients that did not send an entry get the weighted mean of those that did.

    So a weighted mean of all rows is that of the senders, and missing tensors do not affect a client's distance to the others.
    Where the senders' weights are all zero, the server's value stays.

    Args:
        sent: names of the tensors that each client sent.
        weights: ``(K,)``, of the mean.
    """
    if all(names >= set(uploads.space.names) for names in map(set, sent)):
        return
    weighed = torch.tensor(weights, dtype=torch.float64)
    for entry in uploads.space.entries:
        has = torch.tensor([entry.name in names for names in sent])
        if has.all() or weighed[has].sum() <= 0:
            continue
        columns = uploads.rows[:, entry.start : entry.stop]
        share = (weighed[has] / weighed[has].sum()).to(columns)
        columns[~has] = share @ columns[has]
