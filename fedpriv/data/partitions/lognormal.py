"""The FEMNIST partition of FedRep and MpFedcon: log-normal sizes, neighbouring classes, 90 / 10 train and test per client."""

from __future__ import annotations

import numpy as np

from fedpriv.data.partition_rules import Indices, PartitionIndices, PartitionTask, join, partition_rule
from fedpriv.errors import UsageError

TRAIN_SHARE = 0.9
MOST = 2**40
"""Images of a client at most, before they are scaled down to what there is."""


@partition_rule("lognormal", uses=["classes_per_client", "size_mean", "size_sigma", "size_offset", "reuse"])
def lognormal(task: PartitionTask) -> PartitionIndices:
    """Log-normal sizes, classes i .. i+S-1 mod C for client i, 90 / 10 train / test per client from the training split (FEMNIST).

    Without ``reuse`` every image goes to one client. Where a class runs short, all clients' shares of it shrink by the same
    factor. With ``reuse`` this is the published generator, in which an inverted comparison makes every client start at the first
    image of a class, so that nearly all test images of a client are training images of another.
    """
    # No Flower partitioner controls both sizes and classes.
    options, n = task.options, task.clients
    per_client = options.classes_per_client
    if per_client > task.classes:
        raise UsageError(f"lognormal: {per_client} classes per client, but the data set has {task.classes}")
    with np.errstate(over="ignore"):
        drawn = task.rng.lognormal(options.size_mean, options.size_sigma, n)
    if not (drawn < MOST).all():
        raise UsageError(
            f"lognormal: size_mean {options.size_mean:g} and size_sigma {options.size_sigma:g} draw a client of "
            f"{drawn.max():.3g} images; the published ones are 4 and 1 or 2"
        )
    sizes = drawn.astype(np.int64) + options.size_offset
    pools = task.pools()
    available = np.array([len(pool) for pool in pools])
    wanted = np.zeros((n, task.classes), dtype=np.int64)
    for place in range(per_client):  # evenly over the S classes; the remainder goes to the first ones
        wanted[np.arange(n), (np.arange(n) + place) % task.classes] = sizes // per_client + (place < sizes % per_client)
    held = np.minimum(wanted, available) if options.reuse else _fitted(wanted, available)
    starts = np.zeros_like(held) if options.reuse else np.cumsum(held, axis=0) - held
    train, test = [], []
    for start, count in zip(starts, held, strict=True):
        mine = task.rng.permutation(join([pool[s : s + k] for pool, s, k in zip(pools, start, count, strict=True)]))
        cut = round(TRAIN_SHARE * len(mine))
        train.append(mine[:cut])
        test.append(mine[cut:])
    if not any(len(part) for part in train):
        raise UsageError(f"lognormal: {len(task.labels)} training samples are too few for {n} clients")
    return PartitionIndices(train, test)


def _fitted(wanted: Indices, available: Indices) -> Indices:
    """``wanted`` ``(n, C)``, scaled down (and floored) in the columns whose sum exceeds ``available``."""
    factor = np.minimum(1, available / np.maximum(wanted.sum(axis=0), 1))
    fitted: Indices = np.floor(wanted * factor + 1e-9).astype(np.int64)
    return fitted
