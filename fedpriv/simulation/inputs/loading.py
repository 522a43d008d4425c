"""Loads the data that a config names, partitions them, and makes them inputs of the run's nets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fedpriv.attacks.core.threads import with_threads
from fedpriv.config import RunConfig, filled
from fedpriv.config.device import check_device
from fedpriv.data.dataset import Dataset
from fedpriv.data.federated import FederatedData
from fedpriv.data.partitions.partition import Partition, check_numbers, make_partition
from fedpriv.data.sources import read_data
from fedpriv.data.user_data.owners import owners_of, with_clients
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.methods import find_method
from fedpriv.methods.build import with_options
from fedpriv.samples import Modality
from fedpriv.scores.catalogue import score_named
from fedpriv.seeding import generator
from fedpriv.server.statistics import Gathered
from fedpriv.simulation.inputs.from_dataset import prepare
from fedpriv.simulation.inputs.prepared import Prepared
from fedpriv.simulation.inputs.statistics import measured, note_on_statistics
from fedpriv.simulation.open_keys import resolve, with_default_share

Partitioning = Callable[[Dataset, RunConfig], Partition]


@dataclass(frozen=True)
class Read:
    """The data that a config names, partitioned, but not yet scaled and coded.

    Attributes:
        config: with every open key filled in that does not depend on the net's inputs.
    """

    config: RunConfig
    dataset: Dataset
    partition: Partition
    device: torch.device


@dataclass(frozen=True)
class Loaded:
    """The data that a config names, as inputs of its nets.

    Attributes:
        config: with every open key filled in, except the noise of a private run.
        device: of the data.
        statistics: what the clients send of their training rows before round 1; ``None``: nothing.
    """

    config: RunConfig
    dataset: Dataset
    prepared: Prepared
    data: FederatedData
    device: torch.device
    statistics: Gathered | None = None


def load(config: RunConfig) -> Loaded:
    """Load the data set of a config, partition it, and scale and code it by what its clients measure.

    Raises:
        UsageError: a name or a value cannot be right.
    """
    parts = read(config)
    dataset, statistics = measured(parts.dataset, parts.partition, parts.config)
    if statistics is not None and not find_method(parts.config.method.name).pools:  # where nothing is sent
        notes = (*dataset.notes, note_on_statistics(statistics, parts.config))
        dataset = replace(dataset, notes=notes)
    return prepared_inputs(replace(parts, dataset=dataset), statistics)


def read(config: RunConfig, partitioning: Partitioning | None = None, every_column: bool = False) -> Read:
    """As :func:`load`, before any samples are scaled or coded.

    Args:
        partitioning: makes the partition of a data set; ``None``: the one of the config.
        every_column: as of :func:`fedpriv.data.sources.read_data`.
    """
    config = with_options(config)
    if config.eval.metric is not None:
        score_named(config.eval.metric)
    device = _device(config.device)
    build_transforms(config.wire.transforms)  # raises before data are read
    if config.data.task == "regression" and "name" in config.data.partition.model_fields_set:
        check_numbers(config.data)
    dataset = read_data(config.data, every_column)
    config = config.with_values("data", name=dataset.name, dir=config.data.dir and config.data.dir.absolute())
    config = filled(config, dataset.suggests)
    if partitioning is None:
        config = with_clients(config, owners_of(config.data, dataset.owners))
    config = resolve(config, dataset.default_model)
    return Read(config, dataset, (partitioning or partition_dataset)(dataset, config), device)


def prepared_inputs(parts: Read, statistics: Gathered | None = None) -> Loaded:
    """The data as inputs of the run's nets.

    Args:
        parts: whose data set is encoded.
        statistics: of all clients.

    Raises:
        UsageError: the net or the options do not fit the samples.
    """
    config, dataset, device = parts.config, parts.dataset, parts.device
    with with_threads(config.threads):  # features of a frozen encoder are computed here
        prepared = prepare(config, dataset, device)
    prepared = replace(prepared, notes=(*dataset.notes, *prepared.notes))
    config = prepared.config
    data = FederatedData(dataset, parts.partition, device, prepared.train, prepared.test, lacking_modalities(config))
    return Loaded(with_default_share(config, len(data.nonempty)), dataset, prepared, data, device, statistics)


def partition_dataset(dataset: Dataset, config: RunConfig) -> Partition:
    """The partition of a data set as the config says."""
    train, test = (strata.numpy() for strata in dataset.strata)
    owners = owners_of(config.data, dataset.owners)
    names = dataset.classes
    return make_partition(train, test, len(names), config.data, config.data.partition.seed or 0, owners, names)


def lacking_modalities(config: RunConfig) -> dict[int, Modality]:
    """Client -> the modality that it lacks, of image-text pairs: shares of the config, drawn by the partition's seed."""
    data, rng = config.data, generator(config.data.partition.seed or 0, "modalities")
    order = torch.randperm(data.clients, generator=rng).tolist()
    images, texts = (round(share * data.clients) for share in (data.image_only, data.text_only))
    lacking: dict[int, Modality] = dict.fromkeys(order[:images], "text")
    return lacking | dict.fromkeys(order[images : images + texts], "image")


def _device(name: str) -> torch.device:
    check_device(name)
    try:
        device = torch.device(name)
        if device.type == "cuda":  # for equal bits in each run; cuBLAS reads its setting when it starts
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
            # TF32 has 10 bits of mantissa, too few for attacks on the gradients of convolutions.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        float(torch.zeros(1, device=device))  # fails for `meta`, whose tensors hold no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # the rest of torch's message is long
        raise UsageError(f"device {name!r} is not available here: {reason}; try --device cpu") from None
    return device
