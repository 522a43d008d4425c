"""The partitions that papers call "Dirichlet"; they differ in what is drawn and in the treatment of small shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


@partition_rule("class_dir", "dirichlet", uses=["alpha", "capacity", "min_samples"])
def class_dir(task: PartitionTask) -> PartitionIndices:
    """Per class, shares over the clients ~ Dir(alpha); disjoint, clients may be empty (MOON, NIID-Bench).

    With ``capacity`` a client that holds more than N / n samples gets nothing of the remaining classes.
    """
    from flwr_datasets.partitioner import DirichletPartitioner

    at_least_one_each(task)
    options = task.options
    partitioner = DirichletPartitioner(
        task.clients, "label", options.alpha, options.min_samples, options.capacity, seed=flower_seed(task)
    )
    try:
        with np.errstate(invalid="raise"):
            return PartitionIndices(partition_with_flower(partitioner, task))
    except FloatingPointError:  # 0 / 0, for which Flower would give the whole class to the last client
        raise UsageError(
            f"{options.name}: with alpha = {options.alpha:g} a class fell on full clients alone; "
            "raise alpha or set capacity to false"
        ) from None
    except ValueError:
        raise UsageError(
            f"{options.name}: none of eleven draws left every client {options.min_samples} samples; "
            "lower min_samples (0 allows empty clients), raise alpha or take fewer clients"
        ) from None


@partition_rule("class_dir_min1", uses=["alpha"])
def class_dir_min1(task: PartitionTask) -> PartitionIndices:
    """Per class Dir(alpha) over clients, floored, at least one of each class for all, drawn with overlap (FedDUAL's code)."""
    # No Flower partitioner gives a sample to several clients.
    parts: list[list[Indices]] = [[] for _ in range(task.clients)]
    for pool in task.pools():
        if not len(pool):
            continue
        shares = task.rng.dirichlet(np.full(task.clients, task.options.alpha))
        for client, size in enumerate(np.maximum(1, np.floor(shares * len(pool)).astype(int))):
            parts[client].append(task.rng.choice(pool, size, replace=False, shuffle=False))
    return PartitionIndices([join(owned) for owned in parts])


@partition_rule("class_dir_floor", uses=["alpha"])
def class_dir_floor(task: PartitionTask) -> PartitionIndices:
    """Per class, Dir(alpha) over clients, floored; disjoint, a few samples are held by no client (L-DAWA's code)."""
    # The published sizes are those of numpy's legacy generator, which no Flower partitioner uses.
    legacy = np.random.RandomState(task.seed)
    shares = legacy.dirichlet(np.full(task.clients, task.options.alpha), task.classes)
    if not np.isfinite(shares).all():  # that generator divides by a sum of draws that are all below the least number
        raise UsageError(f"class_dir_floor: alpha = {task.options.alpha:g} is too small to draw shares with; raise it")
    parts: list[list[Indices]] = [[] for _ in range(task.clients)]
    for pool, drawn in zip(task.pools(), shares, strict=True):
        bounds = np.cumsum(np.floor(drawn * len(pool)).astype(int))
        for owned, part in zip(parts, np.split(pool, bounds)[:-1], strict=True):
            owned.append(part)
    return PartitionIndices([join(owned) for owned in parts])


@partition_rule("hsu_client", uses=["alpha"])
def hsu_client(task: PartitionTask) -> PartitionIndices:
    """Per client, class proportions ~ Dir(alpha x prior), equal sizes, drawn without replacement (Hsu et al. 2019).

    The prior is the classes' shares of the training data, which sum to one as in the paper, so the concentration of a class is
    about alpha / C, not alpha. When a class runs out, the proportions are renormalised; a client with no class left draws its
    proportions again. N mod n samples are held by no client.
    """
    # Flower's InnerDirichletPartitioner draws sample by sample (minutes at 10,000 clients) and divides by zero where all
    # the classes of a client have run out, which at alpha = 0.01 they do.
    at_least_one_each(task)
    pools = task.pools()
    left = np.array([len(pool) for pool in pools])
    prior = left / left.sum()
    size = len(task.labels) // task.clients
    train = [join([])] * task.clients
    for client in task.rng.permutation(task.clients):  # the last ones get what is left, so the order is random
        taken = np.zeros_like(left)
        wanted = np.zeros(task.classes)
        while (missing := size - taken.sum()) > 0:
            open_ = taken < left
            if not wanted[open_].sum() > 0:
                wanted = _proportions(task, np.where(open_, prior, 0))
            proportions = np.where(open_, wanted, 0)
            draw = task.rng.multinomial(missing, proportions / proportions.sum())
            taken = np.minimum(taken + draw, left)
        left -= taken
        train[client] = join([pool[rest : rest + count] for pool, rest, count in zip(pools, left, taken, strict=True)])
    return PartitionIndices(train)


def _proportions(task: PartitionTask, prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """A draw from Dir(alpha x prior), zero where the prior is zero."""
    proportions = np.zeros(len(prior))
    support = prior > 0
    proportions[support] = task.rng.dirichlet(task.options.alpha * prior[support])
    return proportions


@partition_rule("class_subsets", uses=["classes_per_client", "alpha"])
def class_subsets(task: PartitionTask) -> PartitionIndices:
    """Every client draws S classes; the owners of a class, at least two, share its samples ~ Dir(alpha) (for Banking77).

    Classes with fewer than two owners are given to further clients, drawn at random, which then have more than S.
    """
    # No Flower partitioner draws owners and then unequal shares.
    per_client, n = task.options.classes_per_client, task.clients
    if per_client > task.classes:
        raise UsageError(f"class_subsets: {per_client} classes per client, but the data set has {task.classes}")
    if n < 2:
        raise UsageError("class_subsets: every class has at least two owners, so at least two clients are needed")
    owns = np.zeros((n, task.classes), dtype=bool)
    for row in owns:
        row[task.rng.choice(task.classes, per_client, replace=False)] = True
    for owners in owns.T:
        missing = 2 - owners.sum()
        if missing > 0:
            owners[task.rng.choice(np.flatnonzero(~owners), missing, replace=False)] = True
    parts: list[list[Indices]] = [[] for _ in range(n)]
    for owners, pool in zip(owns.T, task.pools(), strict=True):
        holders = task.rng.permutation(np.flatnonzero(owners))
        shares = task.rng.dirichlet(np.full(len(holders), task.options.alpha))
        bounds = np.floor(np.cumsum(shares)[:-1] * len(pool) + 0.5).astype(int)
        for client, part in zip(holders, np.split(pool, bounds), strict=True):
            parts[client].append(part)
    return PartitionIndices([join(owned) for owned in parts])
