"""Partitions by class, and iid."""

from __future__ import annotations

import numpy as np

from fedpriv.data.dealing import Deal, Dealt, Indices, at_least_one_each, deal_with_flower, dealer, flower_seed, join
from fedpriv.errors import UsageError


@dealer("iid")
def iid(deal: Deal) -> Dealt:
    """A random permutation cut into equal parts (sizes differ by at most one)."""
    # Flower's IidPartitioner cuts the rows in order, without a permutation, so it would not save any code.
    at_least_one_each(deal)
    return Dealt(np.array_split(deal.rng.permutation(len(deal.labels)), deal.clients))


@dealer("classes", uses=["classes_per_client", "distinct"])
def classes(deal: Deal) -> Dealt:
    """S classes per client: every class cut into S n / C equal shards, one shard per assigned class (FedRep's protocol).

    With ``distinct`` every client has exactly S classes; without it a client can be dealt a class twice, as published
    (9.5 % of the clients then have a single class at n = 100, S = 2, C = 10). Where S n is no multiple of C, some classes,
    drawn at random, are cut into one shard more than the others; with S n < C some classes are dealt to no client.
    """
    # Flower's PathologicalPartitioner draws classes per client independently, so its shards are unequal.
    per_client, n = deal.options.classes_per_client, deal.clients
    if per_client > deal.classes:
        raise UsageError(f"classes: {per_client} classes per client, but the data set has {deal.classes}")
    each, rest = divmod(n * per_client, deal.classes)
    pools = deal.pools()
    shards = np.full(deal.classes, each)
    if rest:
        shards[deal.rng.permutation(deal.classes)[:rest]] += 1
    for c, pool in enumerate(pools):
        if len(pool) < shards[c]:
            hint = (
                "fewer clients would do"
                if len(pool)
                else "every class needs some; other partitions, such as iid, do not ask for it"
            )
            raise UsageError(f"classes: class {deal.named(c)} has {len(pool)} training samples for {shards[c]} shards; {hint}")
    slots = deal.rng.permutation(np.repeat(np.arange(deal.classes), shards)).reshape(n, per_client)
    if deal.options.distinct:
        slots = _without_duplicates(slots, deal)
    parts: list[list[Indices]] = [[] for _ in range(n)]
    for c, pool in enumerate(pools):
        holders = deal.rng.permutation(np.nonzero(slots == c)[0])  # otherwise the first clients would get every remainder
        for client, part in zip(holders, np.array_split(pool, shards[c]) if shards[c] else [], strict=True):
            parts[client].append(part)
    return Dealt([join(owned) for owned in parts])


def _without_duplicates(slots: Indices, deal: Deal) -> Indices:
    """Swap every class that a row of ``(n, S)`` slots holds twice with a random slot of a row that lacks it.

    The swapped class is one that the first row lacks, so each swap removes a duplicate and adds none.
    """
    n, per_client = slots.shape
    held = np.zeros((n, deal.classes), dtype=np.int64)
    np.add.at(held, (np.repeat(np.arange(n), per_client), slots.ravel()), 1)
    while (held > 1).any():
        stuck = True
        for client, cls in np.argwhere(held > 1):
            while held[client, cls] > 1 and (found := _partner(slots, held, client, cls, deal.rng)) is not None:
                other, place = divmod(found, per_client)
                back = slots[other, place]
                mine = np.flatnonzero(slots[client] == cls)[-1]
                slots[client, mine], slots[other, place] = back, cls
                held[client, cls] -= 1
                held[client, back] += 1
                held[other, cls] += 1
                held[other, back] -= 1
                stuck = False
        if stuck:  # no row has a class to swap: deal again
            deal.rng.shuffle(slots.reshape(-1))
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


@dealer("one_class")
def one_class(deal: Deal) -> Dealt:
    """One class per client: client i holds a share of class i mod C."""
    from flwr_datasets.partitioner import PathologicalPartitioner

    if deal.clients < deal.classes:
        raise UsageError(f"one_class: {deal.clients} clients cannot hold all {deal.classes} classes, one each")
    _, counts = np.unique(deal.labels, return_counts=True)
    if len(counts) < deal.classes or deal.clients > deal.classes * counts.min():
        raise UsageError(f"one_class: the smallest class has too few training samples for {deal.clients} clients")
    partitioner = PathologicalPartitioner(deal.clients, "label", 1, "deterministic", seed=flower_seed(deal))
    return Dealt(deal_with_flower(partitioner, deal))


@dealer("shards", uses=["shards_per_client"])
def shards(deal: Deal) -> Dealt:
    """Sort by class and cut into equal shards, a number of them per client (McMahan et al. 2017); a remainder is left out."""
    from flwr_datasets.partitioner import ShardPartitioner

    wanted = deal.clients * deal.options.shards_per_client
    if wanted > len(deal.labels):
        raise UsageError(
            f"shards: {deal.clients} clients x {deal.options.shards_per_client} shards, "
            f"but only {len(deal.labels)} training samples"
        )
    size = len(deal.labels) // wanted
    partitioner = ShardPartitioner(deal.clients, "label", deal.options.shards_per_client, size, seed=flower_seed(deal))
    return Dealt(deal_with_flower(partitioner, deal))
