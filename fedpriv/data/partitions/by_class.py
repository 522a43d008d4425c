"""Partitions by class, and iid."""

from __future__ import annotations

import numpy as np

from fedpriv.data.partition_rules import (
    Indices,
    PartitionIndices,
    PartitionTask,
    at_least_one_each,
    flower_seed,
    join,
    partition_rule,
    partition_with_flower,
)
from fedpriv.errors import UsageError


@partition_rule("iid", by_label=False)
def iid(task: PartitionTask) -> PartitionIndices:
    """A random permutation cut into equal parts (sizes differ by at most one)."""
    # Flower's IidPartitioner cuts the rows in order, without a permutation, so it would not save any code.
    at_least_one_each(task)
    return PartitionIndices(np.array_split(task.rng.permutation(len(task.labels)), task.clients))


@partition_rule("classes", uses=["classes_per_client", "distinct"])
def classes(task: PartitionTask) -> PartitionIndices:
    """S classes per client: every class cut into S n / C equal shards, one shard per assigned class (FedRep's protocol).

    With ``distinct`` every client has exactly S classes; without it a client can get a class twice, as published
    (9.5 % of the clients then have a single class at n = 100, S = 2, C = 10). Where S n is no multiple of C, some classes,
    drawn at random, are cut into one shard more than the others; with S n < C no client gets some of the classes.
    """
    # Flower's PathologicalPartitioner draws classes per client independently, so its shards are unequal.
    per_client, n = task.options.classes_per_client, task.clients
    if per_client > task.classes:
        raise UsageError(f"classes: {per_client} classes per client, but the data set has {task.classes}")
    each, rest = divmod(n * per_client, task.classes)
    pools = task.pools()
    shards = np.full(task.classes, each)
    if rest:
        shards[task.rng.permutation(task.classes)[:rest]] += 1
    for c, pool in enumerate(pools):
        if len(pool) < shards[c]:
            hint = (
                "fewer clients would do"
                if len(pool)
                else "every class needs some; other partitions, such as iid, do not ask for it"
            )
            raise UsageError(f"classes: class {task.named(c)} has {len(pool)} training samples for {shards[c]} shards; {hint}")
    slots = task.rng.permutation(np.repeat(np.arange(task.classes), shards)).reshape(n, per_client)
    if task.options.distinct:
        slots = _without_duplicates(slots, task)
    parts: list[list[Indices]] = [[] for _ in range(n)]
    for c, pool in enumerate(pools):
        holders = task.rng.permutation(np.nonzero(slots == c)[0])  # otherwise the first clients would get every remainder
        for client, part in zip(holders, np.array_split(pool, shards[c]) if shards[c] else [], strict=True):
            parts[client].append(part)
    return PartitionIndices([join(owned) for owned in parts])


def _without_duplicates(slots: Indices, task: PartitionTask) -> Indices:
    """Swap every class that a row of ``(n, S)`` slots holds twice with a random slot of a row that lacks it.

    The swapped class is one that the first row lacks, so each swap removes a duplicate and adds none.
    """
    n, per_client = slots.shape
    held = np.zeros((n, task.classes), dtype=np.int64)
    np.add.at(held, (np.repeat(np.arange(n), per_client), slots.ravel()), 1)
    while (held > 1).any():
        stuck = True
        for client, cls in np.argwhere(held > 1):
            while held[client, cls] > 1 and (swap := _partner(slots, held, client, cls, task.rng)) is not None:
                other, place = divmod(swap, per_client)
                back = slots[other, place]
                mine = np.flatnonzero(slots[client] == cls)[-1]
                slots[client, mine], slots[other, place] = back, cls
                held[client, cls] -= 1
                held[client, back] += 1
                held[other, cls] += 1
                held[other, back] -= 1
                stuck = False
        if stuck:  # no row has a class to swap: draw again
            task.rng.shuffle(slots.reshape(-1))
            held[:] = 0
            np.add.at(held, (np.repeat(np.arange(n), per_client), slots.ravel()), 1)
    return slots


def _partner(slots: Indices, held: Indices, client: int, cls: int, rng: np.random.Generator) -> int | None:
    """A random flat slot whose class ``client`` lacks and whose owner lacks ``cls``; ``None`` where there is none."""
    flat = slots.ravel()
    for tries in (64, flat.size):  # a few random slots nearly always hold one
        probe = rng.integers(flat.size, size=tries) if tries == 64 else rng.permutation(flat.size)
        fits = np.flatnonzero((held[client, flat[probe]] == 0) & (held[probe // slots.shape[1], cls] == 0))
        if len(fits):
            return int(probe[fits[0]])
    return None


@partition_rule("one_class")
def one_class(task: PartitionTask) -> PartitionIndices:
    """One class per client: client i holds a share of class i mod C."""
    from flwr_datasets.partitioner import PathologicalPartitioner

    if task.clients < task.classes:
        raise UsageError(f"one_class: {task.clients} clients cannot hold all {task.classes} classes, one each")
    _, counts = np.unique(task.labels, return_counts=True)
    if len(counts) < task.classes or task.clients > task.classes * counts.min():
        raise UsageError(f"one_class: the smallest class has too few training samples for {task.clients} clients")
    partitioner = PathologicalPartitioner(task.clients, "label", 1, "deterministic", seed=flower_seed(task))
    return PartitionIndices(partition_with_flower(partitioner, task))


@partition_rule("shards", uses=["shards_per_client"])
def shards(task: PartitionTask) -> PartitionIndices:
    """Sort by class and cut into equal shards, a number of them per client (McMahan et al. 2017); a remainder is left out."""
    from flwr_datasets.partitioner import ShardPartitioner

    wanted = task.clients * task.options.shards_per_client
    if wanted > len(task.labels):
        raise UsageError(
            f"shards: {task.clients} clients x {task.options.shards_per_client} shards, "
            f"but only {len(task.labels)} training samples"
        )
    size = len(task.labels) // wanted
    partitioner = ShardPartitioner(task.clients, "label", task.options.shards_per_client, size, seed=flower_seed(task))
    return PartitionIndices(partition_with_flower(partitioner, task))
