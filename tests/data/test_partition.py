from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config import DataConfig
from fedpriv.data.partition_rules import partitions
from fedpriv.data.partitions.partition import _MADE, _MOST_MADE, Partition, make_partition
from fedpriv.errors import FedprivError, UnknownName, UsageError
from fedpriv.files import save_tensors
from tests.marks import slow_but

SHUFFLE = np.random.default_rng(0)
TRAIN = SHUFFLE.permutation(np.repeat(np.arange(10), 600))
TEST = SHUFFLE.permutation(np.repeat(np.arange(10), 100))
CIFAR = SHUFFLE.permutation(np.repeat(np.arange(10), 5000))
CIFAR_TEST = SHUFFLE.permutation(np.repeat(np.arange(10), 1000))
CIFAR100 = np.repeat(np.arange(100), 500)
CIFAR100_TEST = np.repeat(np.arange(100), 100)


def partitioned(
    name: str, clients: int, *, train: Any = TRAIN, tests: Any = TEST, seed: int = 0, validation: float = 0.0, **options: Any
) -> Partition:
    """PartitionIndices now, not kept from an earlier call."""
    _MADE.clear()
    return make_partition(train, tests, int(train.max()) + 1, data(name, clients, validation, **options), seed)


def data(name: str, clients: int, validation: float = 0.0, **options: Any) -> DataConfig:
    return DataConfig.model_validate(
        {"clients": clients, "validation_fraction": validation, "partition": {"name": name, **options}}
    )


def test_a_class_without_samples_is_not_a_question_of_fewer_clients() -> None:
    with pytest.raises(UsageError, match="class 0 has 0 training samples for 2 shards; every class needs some"):
        partitioned("classes", 5, train=np.repeat([1, 2, 3, 4], 20), tests=np.arange(1, 5))


def test_equal_arguments_share_a_partition() -> None:
    def again(train: Any = TRAIN, tests: Any = TEST, classes: int = 10, seed: int = 0, **options: Any) -> Partition:
        return make_partition(train, tests, classes, data(**{"name": "iid", "clients": 10, **options}), seed)

    _MADE.clear()
    first = again()
    assert again(train=TRAIN.copy()) is first
    others = [
        again(TRAIN[::-1]),
        again(tests=TEST[1:]),
        again(classes=11),
        again(seed=1),
        again(clients=9),
    ]
    others += [again(validation=0.1), again(name="shards"), again(test="all_of_class")]
    assert len({one.hash() for one in [first, *others]}) >= 8 and all(one is not first for one in others)
    assert len(_MADE) == _MOST_MADE and again() is not first, "the oldest are given up"


def disjoint(lists: list[np.ndarray]) -> bool:
    flat = np.concatenate(lists)
    return len(np.unique(flat)) == len(flat)


RULES = partitions().keys() - {"given", "by_column"}
"""Those that divide the samples; the others take the clients that the data have."""
SHARED = {"class_dir_min1"}
DRAW_LONG = {"class_dir", "dirichlet", "one_class"}


@pytest.mark.parametrize("name", slow_but(RULES - DRAW_LONG, sorted(RULES)))
def test_every_partition(name: str) -> None:
    first, again, other = (partitioned(name, 20, seed=seed, test="disjoint") for seed in (0, 0, 1))
    assert first.clients == 20
    assert first.hash() == again.hash() != other.hash()
    assert all(array.dtype == np.int64 and (np.diff(array) >= 0).all() for array in first.train + first.test)
    assert disjoint(first.train) or name in SHARED
    if name != "lognormal":  # whose test images are out of the training split
        assert disjoint(first.test) and first.test_split == "test" and first.test_weights is None


@pytest.mark.parametrize(
    "name",
    slow_but({"classes", "iid", "shards"}, sorted(RULES - {"hsu_client", "lognormal", "class_dir_min1", "class_dir_floor"})),
)
def test_nothing_is_lost(name: str) -> None:
    partition = partitioned(name, 20, test="disjoint")
    assert sum(map(len, partition.train)) == len(TRAIN)
    assert sum(map(len, partition.test)) == len(TEST)


@pytest.mark.parametrize("name", ["classes", "class_dir", "hsu_client", "iid"])
def test_test_shares_follow_the_training_proportions(name: str) -> None:
    partition = partitioned(name, 10, alpha=0.5, test="disjoint")
    held = partition.counts(TRAIN, 10)
    tested = partition.counts(TEST, 10, "test")
    shares = held / held.sum(axis=0) * 100
    assert np.abs(tested - shares).max() <= 1 + 1e-9


@pytest.mark.parametrize(("clients", "per_client"), [(50, 2), (100, 2), (100, 5), (1000, 2)])
def test_classes_cifar10(clients: int, per_client: int) -> None:
    partition = partitioned("classes", clients, train=CIFAR, tests=CIFAR_TEST, classes_per_client=per_client, test="disjoint")
    assert {len(indices) for indices in partition.train} == {50000 // clients}
    assert {len(indices) for indices in partition.test} == {10000 // clients}
    held, tested = partition.counts(CIFAR, 10) > 0, partition.counts(CIFAR_TEST, 10, "test") > 0
    assert (held.sum(axis=1) == per_client).all()
    assert (held == tested).all()


@pytest.mark.parametrize(("clients", "per_client"), [(100, 5), (100, 20), (100, 99), (20, 100)])
def test_classes_cifar100(clients: int, per_client: int) -> None:
    partition = partitioned("classes", clients, train=CIFAR100, tests=CIFAR100_TEST, classes_per_client=per_client)
    assert ((partition.counts(CIFAR100, 100) > 0).sum(axis=1) == per_client).all()
    if per_client < 99:
        assert {len(indices) for indices in partition.train} == {500}


@pytest.mark.parametrize("per_client", range(1, 11))
def test_classes_distinct_whatever_their_number(per_client: int) -> None:
    for seed in range(5):
        partition = partitioned("classes", 10, seed=seed, classes_per_client=per_client)
        assert ((partition.counts(TRAIN, 10) > 0).sum(axis=1) == per_client).all()


@pytest.mark.parametrize(("clients", "per_client"), [(7, 3), (8, 2), (13, 9), (3, 2), (1, 1)])
def test_classes_that_cannot_be_cut_alike(clients: int, per_client: int) -> None:
    """Each client has its S classes, a class is held by floor or ceil of n S / C clients, and each of its images is held once."""
    for seed in range(5):
        partition = partitioned("classes", clients, seed=seed, classes_per_client=per_client)
        counts = partition.counts(TRAIN, 10)
        assert ((counts > 0).sum(axis=1) == per_client).all() and disjoint(partition.train)
        holders = (counts > 0).sum(axis=0)
        assert holders.max() - holders.min() == 1
        assert (counts.sum(axis=0) == np.where(holders > 0, 600, 0)).all()


def test_classes_as_published_deals_a_class_twice() -> None:
    """MpFedcon's partition: 9.5 % of the clients have one class at (100, 2); 30 % have five at (100, 5), mean 4.1."""
    two, five = (
        np.concatenate(
            [
                (partitioned("classes", 100, seed=seed, classes_per_client=s, distinct=False).counts(TRAIN, 10) > 0).sum(axis=1)
                for seed in range(30)
            ]
        )
        for s in (2, 5)
    )
    assert abs((two == 1).mean() - 0.095) < 0.02
    assert abs((five == 5).mean() - 0.30) < 0.05 and abs(five.mean() - 4.1) < 0.1


def test_all_test_images_of_the_classes_weighted() -> None:
    partition = partitioned("classes", 100, distinct=False)  # ten test images each: auto takes all of the class
    assert partition.test_weights is not None
    proportions = partition.counts(TRAIN, 10) / 60
    for client, (indices, weights) in enumerate(zip(partition.test, partition.test_weights, strict=True)):
        assert len(indices) == 100 * (proportions[client] > 0).sum()
        assert np.allclose(np.bincount(TEST[indices], weights[TEST[indices]], minlength=10), proportions[client], atol=1e-9)


def test_auto_takes_shares_from_twenty_images_on() -> None:
    assert partitioned("iid", 50).test_weights is None
    assert partitioned("iid", 51).test_weights is not None
    assert partitioned("iid", 51, test="disjoint").test_weights is None
    assert partitioned("iid", 5, test="all_of_class").test_weights is not None


def test_all_of_class_leaves_out_classes_without_test_images() -> None:
    config = DataConfig.model_validate({"clients": 4, "partition": {"name": "iid", "test": "all_of_class"}})
    partition = make_partition(TRAIN, TEST[TEST != 3], 10, config, 0)
    assert partition.test_weights is not None
    for indices, weights in zip(partition.test, partition.test_weights, strict=True):
        assert abs(weights[TEST[TEST != 3][indices]].sum() - 1) < 1e-9


def test_clients_of_the_same_classes_share_one_list_also_in_the_file(tmp_path: Path) -> None:
    partition = partitioned("iid", 100, test="all_of_class")
    partition.save(tmp_path / "partition.safetensors")
    assert (tmp_path / "partition.safetensors").stat().st_size < 10 * 8 * (len(TRAIN) + len(TEST))
    for held in (partition, Partition.load(tmp_path / "partition.safetensors")):
        assert len({id(indices) for indices in held.test}) == len({indices.tobytes() for indices in held.test}) < 10


@pytest.mark.slow
def test_validation_comes_out_of_the_training_data_and_changes_nothing_else() -> None:
    whole, carved = partitioned("class_dir", 20), partitioned("class_dir", 20, validation=0.1)
    for all_of_it, train, held in zip(whole.train, carved.train, carved.validation, strict=True):
        assert len(held) == round(0.1 * len(all_of_it))
        assert np.array_equal(np.sort(np.concatenate([train, held])), all_of_it)
    assert all(np.array_equal(a, b) for a, b in zip(whole.test, carved.test, strict=True))
    assert whole.hash() != carved.hash()


def test_validation_leaves_a_training_sample() -> None:
    partition = partitioned("iid", 3000, validation=0.9)
    assert {len(indices) for indices in partition.train} == {1}


@pytest.mark.slow
def test_dirichlet_retries_and_gives_up() -> None:
    assert min(len(indices) for indices in partitioned("dirichlet", 10, alpha=0.5, min_samples=50).train) >= 50
    with pytest.raises(UsageError, match="min_samples"):
        partitioned("class_dir", 100, alpha=0.01, min_samples=10)
    assert any(not len(indices) for indices in partitioned("class_dir", 100, alpha=0.01).train)


@pytest.mark.slow
def test_dirichlet_capacity() -> None:
    largest = [max(map(len, partitioned("class_dir", 10, alpha=0.1, capacity=capacity).train)) for capacity in (True, False)]
    assert largest[0] <= 600 + 600 < largest[1]  # at most one more class once at the even share


@pytest.mark.slow
def test_dirichlet_says_when_a_class_has_nowhere_to_go() -> None:
    with pytest.raises(UsageError, match="capacity"):  # whatever numpy's stream is, one of so many seeds does it
        [partitioned("class_dir", 2, alpha=0.001, seed=seed) for seed in range(5, 200)]


def test_class_dir_min1_as_released() -> None:
    """FedDUAL 2.2 (alpha 0.01, 100 clients): every client holds every class, many hold ten images, one each."""
    partition = partitioned("class_dir_min1", 100, train=CIFAR, tests=CIFAR_TEST, alpha=0.01)
    assert (partition.counts(CIFAR, 10) >= 1).all()
    sizes = np.array([len(indices) for indices in partition.train])
    assert 25 <= (sizes == 10).sum() <= 60
    assert not disjoint(partition.train)
    assert all(len(np.unique(indices)) == len(indices) for indices in partition.train)


def test_hsu_client_equal_sizes_and_skew() -> None:
    hard, easy = (partitioned("hsu_client", 100, train=CIFAR, tests=CIFAR_TEST, alpha=alpha) for alpha in (0.01, 1000.0))
    assert {len(indices) for indices in hard.train + easy.train} == {500}
    assert (hard.counts(CIFAR, 10).max(axis=1) > 450).mean() > 0.85
    assert np.quantile(easy.counts(CIFAR, 10).max(axis=1), 0.95) < 90  # the last served take what is left


@pytest.mark.slow
def test_shards() -> None:
    partition = partitioned("shards", 100, shards_per_client=2)
    assert {len(indices) for indices in partition.train} == {60}
    assert (partition.counts(TRAIN, 10) > 0).sum(axis=1).max() <= 2
    assert {len(indices) for indices in partitioned("shards", 7).train} == {2 * (6000 // 14)}


@pytest.mark.slow
def test_one_class() -> None:
    held = partitioned("one_class", 25).counts(TRAIN, 10) > 0
    assert (held.argmax(axis=1) == np.arange(25) % 10).all() and (held.sum(axis=1) == 1).all()


@pytest.fixture(scope="module")
def letters() -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(10), 3000))


def test_lognormal(letters: np.ndarray) -> None:
    partition = partitioned("lognormal", 150, train=letters, classes_per_client=3)
    together = [np.concatenate(parts) for parts in zip(partition.train, partition.test, strict=True)]
    sizes = np.array([len(indices) for indices in together])
    assert disjoint(together) and partition.test_split == "train"
    assert sizes.min() >= 50 and 120 < sizes.mean() < 160
    assert all(len(test) == len(both) - round(0.9 * len(both)) for test, both in zip(partition.test, together, strict=True))
    held = partition.counts(letters, 10) > 0
    assert (held == (np.subtract.outer(-np.arange(150), -np.arange(10)) % 10 < 3)).all()


def test_lognormal_shrinks_a_short_class_in_proportion(letters: np.ndarray) -> None:
    short = letters[~((letters == 4) & (np.cumsum(letters == 4) > 600))]
    full, shrunk = (
        (p := partitioned("lognormal", 150, train=labels, classes_per_client=3)).counts(labels, 10) + p.counts(labels, 10, "test")
        for labels in (letters, short)
    )
    others = np.arange(10) != 4
    assert (full[:, others] == shrunk[:, others]).all()
    holders = full[:, 4] > 0
    factor = 600 / full[:, 4].sum()
    assert np.abs(shrunk[holders, 4] - factor * full[holders, 4]).max() <= 1 and shrunk[:, 4].sum() <= 600


def test_lognormal_with_reuse_leaks(letters: np.ndarray) -> None:
    """MpFedcon's released partition: few distinct images, and almost all test images are in another client's training set."""
    partition = partitioned("lognormal", 150, train=letters, classes_per_client=3, reuse=True)
    together = np.concatenate(partition.train + partition.test)
    assert len(np.unique(together)) < 0.15 * len(together)
    leaked = []
    for client, test in enumerate(partition.test):
        others = np.concatenate([train for other, train in enumerate(partition.train) if other != client])
        leaked.append(np.isin(test, others).mean())
    assert np.mean(leaked) > 0.95
    assert partition.hash() != partitioned("lognormal", 150, train=letters, classes_per_client=3).hash()


@pytest.mark.parametrize(
    ("name", "clients", "options", "says"),
    [
        ("classes", 20, {"classes_per_client": 11}, "has 10"),
        ("classes", 10000, {}, "shards"),
        ("iid", 6001, {}, "only 6000 training samples"),
        ("class_dir", 6001, {}, "only 6000 training samples"),
        ("hsu_client", 6001, {}, "only 6000 training samples"),
        ("shards", 4000, {}, "only 6000 training samples"),
        ("one_class", 9, {}, "10 classes"),
        ("one_class", 6001, {}, "too few"),
        ("lognormal", 20, {"classes_per_client": 11}, "has 10"),
    ],
)
def test_what_cannot_be_dealt_is_said_in_one_line(name: str, clients: int, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        partitioned(name, clients, **options)
    assert "\n" not in str(error.value) and str(error.value).startswith(name)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'dirichlet'"):
        partitioned("dirichelt", 10)


def test_the_partition_has_its_own_seed() -> None:
    assert partitioned("iid", 10, seed=3).hash() != partitioned("iid", 10, seed=4).hash()
    fixed = DataConfig.model_validate({"clients": 10, "partition": {"name": "iid", "seed": 3}})
    assert make_partition(TRAIN, TEST, 10, fixed, 4).hash() == partitioned("iid", 10, seed=3).hash()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"test": "disjoint"}, {"test": "all_of_class"}])
def test_file_round_trip(tmp_path: Path, options: dict[str, Any]) -> None:
    partition = partitioned("class_dir", 30, alpha=0.05, validation=0.2, **options)
    partition.save(tmp_path / "partition.safetensors")
    back = Partition.load(tmp_path / "partition.safetensors")
    assert back.hash() == partition.hash() and back.clients == 30
    assert (back.test_weights is None) == (partition.test_weights is None)
    if partition.test_weights is not None and back.test_weights is not None:
        assert np.array_equal(partition.test_weights, back.test_weights)


def test_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "partition.safetensors"
    partitioned("iid", 10).save(path)
    whole = path.read_bytes()
    for damaged in (whole[:100], b"", whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(FedprivError, match=r"partition\.safetensors"):
            Partition.load(path)
    save_tensors(path, {"train": torch.zeros(3)})
    with pytest.raises(FedprivError, match="not a partition"):
        Partition.load(path)
    with pytest.raises(FedprivError, match=r"none\.safetensors"):
        Partition.load(tmp_path / "none.safetensors")


def test_l_dawas_code_gives_these_sizes() -> None:
    """CIFAR-10, 10 clients, alpha 0.1, its seed; 35 images are held by no client."""
    partition = partitioned("class_dir_floor", 10, train=CIFAR, tests=CIFAR_TEST, seed=15, alpha=0.1, test="all_of_class")
    assert [len(held) for held in partition.train] == [5839, 163, 2477, 5706, 8780, 7183, 8519, 6518, 2978, 1802]
    assert partition.distinct() == 49_965 and disjoint(partition.train)


def test_an_alpha_that_its_generator_cannot_draw_is_refused() -> None:
    """All draws of a class are 0, and their shares no numbers; whole classes were held by nobody."""
    with pytest.raises(UsageError, match=r"alpha = 0\.0005 is too small"):
        partitioned("class_dir_floor", 2, alpha=0.0005)
