"""The partition of Banking77: every client draws S classes, the owners of a class share its samples unevenly."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.config import DataConfig
from fedpriv.data.partitions.partition import Partition, make_partition
from fedpriv.errors import UsageError

RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.repeat(np.arange(77), RNG.integers(35, 188, 77)))  # as many an intent as Banking77 has
TEST = np.repeat(np.arange(77), 40)


def partitioned(clients: int, per_client: int, seed: int = 0, labels: np.ndarray = LABELS, alpha: float = 0.5) -> Partition:
    options = {"name": "class_subsets", "classes_per_client": per_client, "alpha": alpha}
    config = DataConfig.model_validate({"clients": clients, "partition": options})
    return make_partition(labels, np.arange(labels.max() + 1), int(labels.max()) + 1, config, seed)


@pytest.mark.parametrize(("clients", "per_client"), [(20, 20), (20, 1), (2, 5), (50, 77)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_sample_is_shared_and_none_is_lost(clients: int, per_client: int, seed: int) -> None:
    held = np.sort(np.concatenate(partitioned(clients, per_client, seed).train))
    assert np.array_equal(held, np.arange(len(LABELS)))


@pytest.mark.parametrize("seed", range(4))
def test_every_class_has_two_owners_and_every_client_its_classes(seed: int) -> None:
    counts = partitioned(20, 20, seed, alpha=100.0).counts(LABELS, 77)  # nearly even shares: every owner gets some
    assert ((counts > 0).sum(0) >= 2).all()
    classes = (counts > 0).sum(1)
    assert (classes >= 20).all() and (classes <= 30).all() and classes.min() == 20


def test_with_few_draws_classes_that_no_client_drew_get_two_owners() -> None:
    counts = partitioned(4, 1, alpha=100.0).counts(LABELS, 77)
    assert ((counts > 0).sum(0) == 2).sum() >= 73 and counts.sum() == len(LABELS)


def test_shares_follow_alpha() -> None:
    spreads = []
    for alpha in (0.1, 0.5, 100.0):
        counts = partitioned(20, 20, alpha=alpha).counts(LABELS, 77)
        spreads.append((counts.max(0) / counts.sum(0)).mean())
    assert spreads[0] > spreads[1] + 0.1 > spreads[2] + 0.2


def test_it_is_a_function_of_the_seed() -> None:
    assert partitioned(20, 20).hash() == partitioned(20, 20).hash() != partitioned(20, 20, seed=1).hash()


def test_what_cannot_be_dealt() -> None:
    with pytest.raises(UsageError, match="class_subsets: 78 classes per client, but the data set has 77"):
        partitioned(20, 78)
    with pytest.raises(UsageError, match="at least two owners, so at least two clients are needed"):
        partitioned(1, 5)
