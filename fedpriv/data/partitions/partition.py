"""The partition of a data set over the clients, with their test samples, and its file."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpriv.config import DataConfig
from fedpriv.data.partition_rules import REGISTRY, Indices, NamedPartition, PartitionTask, share_by_counts
from fedpriv.data.user_data.clients import looks_like_clients
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from fedpriv.data.user_data.owners import Owners

__all__ = ["SMALLEST_SHARE", "Partition", "SplitName", "class_counts", "make_partition"]

SplitName: TypeAlias = Literal["train", "validation", "test"]

#: With fewer test images per client than this, `test: auto` tests each client on all test images of its classes.
SMALLEST_SHARE = 20

_MADE: OrderedDict[object, Partition] = OrderedDict()
"""The last partitions of this process, oldest first: runs that are compared have the same one."""
_MOST_MADE = 8


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices per client, sorted; client ``i`` trains on ``train[i]``.

    ``train`` and ``validation`` index the training split, ``test`` indexes the split ``test_split``. With
    ``test_weights`` ``(n, C)`` a client's local accuracy is a weighted mean: each of its test images counts with the weight of
    its class (the weights of a client's images sum to one).
    """

    train: list[Indices]
    validation: list[Indices]
    test: list[Indices]
    test_weights: NDArray[np.float64] | None = None
    test_split: Literal["train", "test"] = "test"

    @property
    def clients(self) -> int:
        return len(self.train)

    def hash(self) -> str:
        """SHA-256 (hex) over every size and index: equal exactly when every client holds the same images."""
        digest = hashlib.sha256(self.test_split.encode())
        for lists in (self.train, self.validation, self.test):
            for array in (_offsets(lists), *lists):
                digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def holders(self) -> list[tuple[int, ...]]:
        """The distinct sets of clients that hold the same sample; without shared samples, one set per client.

        A client that holds a sample several times occurs as often in its set.
        """
        owner = np.repeat(np.arange(self.clients), [len(held) for held in self.train])
        sample = _flat(self.train)
        order = np.lexsort((owner, sample))
        owner, (_, first, copies) = owner[order], np.unique(sample[order], return_index=True, return_counts=True)
        alone = {(int(client),) for client in np.unique(owner[first[copies == 1]])}
        shared = zip(first[copies > 1], copies[copies > 1], strict=True)
        return sorted(alone | {tuple(owner[start : start + count].tolist()) for start, count in shared})

    def distinct(self) -> int:
        """How many different training samples all clients hold together."""
        return len(np.unique(_flat(self.train)))

    def repeated(self) -> int:
        """How many different training samples are held more than once, by several clients or by one."""
        return int((np.unique(_flat(self.train), return_counts=True)[1] > 1).sum())

    def pooled(self) -> Partition:
        """The partition with all training samples at client 0, each once; clients keep their validation and test samples."""
        nothing = np.zeros(0, np.int64)
        return replace(self, train=[np.unique(_flat(self.train)), *(nothing for _ in range(self.clients - 1))])

    def counts(self, labels: NDArray[Any], classes: int, split: SplitName = "train") -> Indices:
        """``(n, C)``: number of images of each class per client in ``split``; ``labels`` are those of the indexed split."""
        return class_counts(getattr(self, split), labels, classes)

    def save(self, path: Path) -> None:
        """Write the partition to ``path`` atomically (safetensors: flat indices with offsets)."""
        import torch

        arrays: dict[str, NDArray[Any]] = {"test_on_train": np.array([self.test_split == "train"])}
        for name in ("train", "validation", "test"):
            distinct = {id(held): held for held in getattr(self, name)}  # clients tested on the same images share the list
            number = {key: i for i, key in enumerate(distinct)}
            arrays[name], arrays[name + ".offsets"] = _flat(list(distinct.values())), _offsets(list(distinct.values()))
            arrays[name + ".of"] = np.array([number[id(held)] for held in getattr(self, name)], dtype=np.int64)
        if self.test_weights is not None:
            arrays["test_weights"] = self.test_weights
        save_tensors(path, {name: torch.from_numpy(array) for name, array in arrays.items()})

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Read what :meth:`save` wrote.

        Raises:
            FedprivError: the file is missing, damaged, or no partition.
        """
        arrays = {name: tensor.numpy() for name, tensor in load_tensors(path).items()}
        try:
            lists = {}
            for name in ("train", "validation", "test"):
                distinct = np.split(arrays[name], arrays[name + ".offsets"][1:-1])
                lists[name] = [distinct[number] for number in arrays[name + ".of"]]
            on_train = bool(arrays["test_on_train"][0])
        except KeyError as error:
            raise FedprivError(f"{path} is not a partition: it has no {error}") from None
        return cls(**lists, test_weights=arrays.get("test_weights"), test_split="train" if on_train else "test")


def class_counts(lists: list[Indices], labels: NDArray[Any], classes: int) -> Indices:
    """``(n, C)`` class counts of ``n`` index arrays into ``labels``."""
    owner = np.repeat(np.arange(len(lists)), [len(indices) for indices in lists])
    cell = owner * classes + np.asarray(labels, dtype=np.int64)[_flat(lists)]
    return np.bincount(cell, minlength=len(lists) * classes).reshape(len(lists), classes).astype(np.int64)


def make_partition(
    train_labels: NDArray[Any],
    test_labels: NDArray[Any],
    classes: int,
    config: DataConfig,
    seed: int,
    owners: Owners | None = None,
    names: Sequence[str] = (),
) -> Partition:
    """Partition a data set among ``config.clients`` clients; the labels, the config and the seed determine the result.

    Runs of a process with the same arguments share the partition: its arrays are not to be written into.

    Args:
        train_labels: ``(N,)`` class ids of the training split.
        test_labels: ``(N_test,)`` class ids of the test split.
        classes: 0: labels are numbers, and here all samples are of class 0.
        seed: used unless ``config.partition.seed`` is set.
        owners: the client of each sample, where the partition takes its clients from the data. A client is then tested on test
            samples of its own, if the data have them.
        names: of the classes, for messages.

    Raises:
        UsageError: the partition is unknown, or its options do not fit the data.
    """
    named = REGISTRY.find(config.partition.name)
    if not len(train_labels):
        raise UsageError("there are no training samples to partition")
    if not classes:
        check_numbers(config)
        classes = 1
    if config.partition.seed is not None:
        seed = config.partition.seed
    if owners is not None:
        return _build(named, train_labels, test_labels, classes, config, seed, owners, names)
    digests = [hashlib.sha256(labels.tobytes()).digest() for labels in (train_labels, test_labels)]
    key = (named, *digests, classes, config.clients, config.validation_fraction, config.partition.model_dump_json(), seed)
    if key not in _MADE:
        _MADE[key] = _build(named, train_labels, test_labels, classes, config, seed, None, names)
        if len(_MADE) > _MOST_MADE:
            _MADE.popitem(last=False)
    return _MADE[key]


def check_numbers(config: DataConfig) -> None:
    """Raise :class:`UsageError` if a config partitions samples by their labels, or flips these, where they are numbers."""
    if config.corrupt_clients and config.corruption == "labels":
        raise UsageError("data.corruption labels flips classes, and the labels are numbers to predict; use sign, scale or noise")
    if REGISTRY.find(name := config.partition.name).by_label:
        raise UsageError(
            f"partition {name} assigns samples by their classes, and the labels are numbers to predict; --partition iid, or "
            "by_column for clients that a column names"
        )


def _build(
    named: NamedPartition,
    train_labels: NDArray[Any],
    test_labels: NDArray[Any],
    classes: int,
    config: DataConfig,
    seed: int,
    owners: Owners | None,
    names: Sequence[str],
) -> Partition:
    options = config.partition
    # Separate random streams, so that validation data or another test mode do not change the rest of the partition.
    task_rng, test_rng, validation_rng = (np.random.default_rng([seed, stream]) for stream in range(3))
    task = PartitionTask(
        np.asarray(train_labels, dtype=np.int64), classes, config.clients, options, task_rng, owners, seed, names
    )
    try:
        indices = named.rule(task)
    except UsageError as error:  # perhaps as clients were read as classes; the note that says so is not shown after an error
        if (hint := looks_like_clients(Path(config.name).expanduser())) is None:
            raise
        raise UsageError(f"{error}; {hint}") from None
    counts = class_counts(indices.train, train_labels, classes)

    weights: NDArray[np.float64] | None = None
    test_split: Literal["train", "test"] = "test"
    own_test = None if owners is None or owners.test is None else owners.held(owners.test)
    crowded = indices.test is None and own_test is None and len(test_labels) / config.clients < SMALLEST_SHARE
    if options.test == "all_of_class" or (options.test == "auto" and crowded):
        test, weights = _all_of_class(np.asarray(test_labels), counts)
    elif indices.test is not None:
        test, test_split = indices.test, "train"
    elif own_test is not None:
        test = own_test
    else:
        test = share_by_counts(np.asarray(test_labels), counts, test_rng)
    carved = [_carve(indices, config.validation_fraction, validation_rng) for indices in indices.train]
    trained = _flat([train for train, _ in carved])  # a sample that several clients hold may be
    return Partition(
        train=[np.sort(train) for train, _ in carved],
        validation=[np.sort(held[~np.isin(held, trained)]) if len(held) else held for _, held in carved],
        test=test if weights is not None else [np.sort(indices) for indices in test],
        test_weights=weights,
        test_split=test_split,
    )


def _all_of_class(labels: NDArray[Any], counts: Indices) -> tuple[list[Indices], NDArray[np.float64]]:
    """Per client all test images of its classes, and weights that give each class its proportion in the client's data."""
    available = np.bincount(labels, minlength=counts.shape[1])
    held = np.where(available > 0, counts, 0)
    weights = held / np.maximum(held.sum(axis=1, keepdims=True), 1) / np.maximum(available, 1)
    shared: dict[bytes, Indices] = {}  # clients of the same classes share one array: a thousand iid clients, one copy
    test = []
    for row in weights > 0:
        if row.tobytes() not in shared:
            shared[row.tobytes()] = np.flatnonzero(row[labels]).astype(np.int64)
        test.append(shared[row.tobytes()])
    return test, weights


def _carve(indices: Indices, fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Hold out ``fraction`` (rounded) of a client's data; a client with data keeps at least one training sample."""
    shuffled = rng.permutation(indices)
    held = min(round(fraction * len(indices)), max(len(indices) - 1, 0))
    return shuffled[held:], shuffled[:held]


def _flat(lists: list[Indices]) -> Indices:
    return np.concatenate(lists).astype(np.int64) if lists else np.zeros(0, np.int64)


def _offsets(lists: list[Indices]) -> Indices:
    return np.cumsum([0, *(len(indices) for indices in lists)], dtype=np.int64)
