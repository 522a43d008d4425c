"""The partitions that papers call "Dirichlet"; they differ in what is drawn and in the treatment of small shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.dealing import Deal, Dealt, Indices, at_least_one_each, deal_with_flower, dealer, flower_seed, join
from fedpriv.errors import UsageError


@dealer("class_dir", "dirichlet", uses=["alpha", "capacity", "min_samples"])
def class_dir(deal: Deal) -> Dealt:
    """Per class, shares over the clients ~ Dir(alpha); disjoint, clients may be empty (MOON, NIID-Bench).

    With ``capacity`` a client that holds more than N / n samples gets nothing of the remaining classes.
    """
    from flwr_datasets.partitioner import DirichletPartitioner

    at_least_one_each(deal)
    options = deal.options
    partitioner = DirichletPartitioner(
        deal.clients, "label", options.alpha, options.min_samples, options.capacity, seed=flower_seed(deal)
    )
    try:
        with np.errstate(invalid="raise"):
            return Dealt(deal_with_flower(partitioner, deal))
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


@dealer("class_dir_min1", uses=["alpha"])
def class_dir_min1(deal: Deal) -> Dealt:
    """Per class Dir(alpha) over clients, floored, at least one of each class for all, drawn with overlap (FedDUAL's code)."""
    # No Flower partitioner deals a sample to several clients.
    parts: list[list[Indices]] = [[] for _ in range(deal.clients)]
    for pool in deal.pools():
        if not len(pool):
            continue
        shares = deal.rng.dirichlet(np.full(deal.clients, deal.options.alpha))
        for client, size in enumerate(np.maximum(1, np.floor(shares * len(pool)).astype(int))):
            parts[client].append(deal.rng.choice(pool, size, replace=False, shuffle=False))
    return Dealt([join(owned) for owned in parts])


@dealer("class_dir_floor", uses=["alpha"])
def class_dir_floor(deal: Deal) -> Dealt:
    """Per class, Dir(alpha) over clients, floored; disjoint, a few samples are held by no client (L-DAWA's code)."""
    # The published sizes are those of numpy's legacy generator, which no Flower partitioner uses.
    legacy = np.random.RandomState(deal.seed)
    shares = legacy.dirichlet(np.full(deal.clients, deal.options.alpha), deal.classes)
    if not np.isfinite(shares).all():  # that generator divides by a sum of draws that are all below the least number
        raise UsageError(f"class_dir_floor: alpha = {deal.options.alpha:g} is too small to draw shares with; raise it")
    parts: list[list[Indices]] = [[] for _ in range(deal.clients)]
    for pool, drawn in zip(deal.pools(), shares, strict=True):
        bounds = np.cumsum(np.floor(drawn * len(pool)).astype(int))
        for owned, part in zip(parts, np.split(pool, bounds)[:-1], strict=True):
            owned.append(part)
    return Dealt([join(owned) for owned in parts])


@dealer("hsu_client", uses=["alpha"])
def hsu_client(deal: Deal) -> Dealt:
    """Per client, class proportions ~ Dir(alpha x prior), equal sizes, drawn without replacement (Hsu et al. 2019).

    The prior is the classes' shares of the training data, which sum to one as in the paper, so the concentration of a class is
    about alpha / C, not alpha. When a class runs out, the proportions are renormalised; a client with no class left draws its
    proportions again. N mod n samples are held by no client.
    """
    # Flower's InnerDirichletPartitioner draws sample by sample (minutes at 10,000 clients) and divides by zero where all
    # the classes of a client have run out, which at alpha = 0.01 they do.
    at_least_one_each(deal)
    pools = deal.pools()
    left = np.array([len(pool) for pool in pools])
    prior = left / left.sum()
    size = len(deal.labels) // deal.clients
    train = [join([])] * deal.clients
    for client in deal.rng.permutation(deal.clients):  # the last ones get what is left, so the order is random
        taken = np.zeros_like(left)
        wanted = np.zeros(deal.classes)
        while (missing := size - taken.sum()) > 0:
            open_ = taken < left
            if not wanted[open_].sum() > 0:
                wanted = _proportions(deal, np.where(open_, prior, 0))
            proportions = np.where(open_, wanted, 0)
            draw = deal.rng.multinomial(missing, proportions / proportions.sum())
            taken = np.minimum(taken + draw, left)
        left -= taken
        train[client] = join([pool[rest : rest + count] for pool, rest, count in zip(pools, left, taken, strict=True)])
    return Dealt(train)


def _proportions(deal: Deal, prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """A draw from Dir(alpha x prior), zero where the prior is zero."""
    proportions = np.zeros(len(prior))
    support = prior > 0
    proportions[support] = deal.rng.dirichlet(deal.options.alpha * prior[support])
    return proportions


@dealer("class_subsets", uses=["classes_per_client", "alpha"])
def class_subsets(deal: Deal) -> Dealt:
    """Every client draws S classes; the owners of a class, at least two, share its samples ~ Dir(alpha) (for Banking77).

    Classes with fewer than two owners are given to further clients, drawn at random, which then have more than S.
    """
    # No Flower partitioner draws owners and then unequal shares.
    per_client, n = deal.options.classes_per_client, deal.clients
    if per_client > deal.classes:
        raise UsageError(f"class_subsets: {per_client} classes per client, but the data set has {deal.classes}")
    if n < 2:
        raise UsageError("class_subsets: every class has at least two owners, so at least two clients are needed")
    owns = np.zeros((n, deal.classes), dtype=bool)
    for row in owns:
        row[deal.rng.choice(deal.classes, per_client, replace=False)] = True
    for owners in owns.T:
        missing = 2 - owners.sum()
        if missing > 0:
            owners[deal.rng.choice(np.flatnonzero(~owners), missing, replace=False)] = True
    parts: list[list[Indices]] = [[] for _ in range(n)]
    for owners, pool in zip(owns.T, deal.pools(), strict=True):
        holders = deal.rng.permutation(np.flatnonzero(owners))
        shares = deal.rng.dirichlet(np.full(len(holders), deal.options.alpha))
        bounds = np.floor(np.cumsum(shares)[:-1] * len(pool) + 0.5).astype(int)
        for client, part in zip(holders, np.split(pool, bounds), strict=True):
            parts[client].append(part)
    return Dealt([join(owned) for owned in parts])
