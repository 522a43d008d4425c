"""Completes a round's matrix where a client has no data for a tensor (such as the image branch), and so did not upload it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fedpriv.aggregation.base import Uploads


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
