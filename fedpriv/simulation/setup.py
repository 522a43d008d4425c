"""Set-up of a simulation: loads and partitions the data, and builds net, method and transforms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.agreement import Agreement, Declared
from fedpriv.attacks.core.threads import with_threads
from fedpriv.client.client import Client
from fedpriv.client.corrupt import CorruptClient, FlippedLabels, corrupt_clients, note_on_corruption
from fedpriv.client.resident import Resident
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig, filled, usual_share
from fedpriv.config.device import check_device
from fedpriv.data.augmentation.augment import Augment, augmentation
from fedpriv.data.dataset import Dataset
from fedpriv.data.federated import ClientData, FederatedData
from fedpriv.data.partitions.partition import Partition, check_numbers, make_partition
from fedpriv.data.sources import read_data
from fedpriv.data.user_data.owners import owners_of, with_clients
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import check_probe
from fedpriv.methods import find_method
from fedpriv.methods.base import Method
from fedpriv.methods.build import with_options
from fedpriv.plugins import load_plugins
from fedpriv.samples import Modality
from fedpriv.scores.catalogue import ACCURACY, score_named, usual_score
from fedpriv.secure.protocol_checks import check_trains
from fedpriv.seeding import generator
from fedpriv.server.best import check_patience
from fedpriv.server.sampling import participants, read_schedule
from fedpriv.server.statistics import Gathered
from fedpriv.simulation.executor_choice import ExecutorChoice, choose
from fedpriv.simulation.inputs.from_dataset import prepare
from fedpriv.simulation.inputs.prepared import Prepared
from fedpriv.simulation.inputs.statistics import measured, note_on_statistics
from fedpriv.simulation.run_setup import settle

Partitioning = Callable[[Dataset, RunConfig], Partition]


@dataclass
class Federation:
    """What a simulation works with: the agreement of server and clients, and the data of all clients."""

    agreement: Agreement
    prepared: Prepared
    dataset: Dataset
    data: FederatedData
    resident: Resident
    augment: Augment | None = None
    choice: ExecutorChoice | None = None
    """The executor of the clients; ``None``: the sequential one."""
    statistics: Gathered | None = None
    """What the clients sent of their training rows before round 1; ``None``: nothing."""
    pooled: FederatedData | None = None
    """The data with all training samples at client 0, if the method pools them."""

    @property
    def places(self) -> FederatedData:
        """The data as they are trained on: those of the clients, or pooled."""
        return self.data if self.pooled is None else self.pooled

    @property
    def config(self) -> RunConfig:
        """The config, with every open key filled in."""
        return self.agreement.config

    @cached_property
    def corrupt(self) -> frozenset[int]:
        """The bad clients."""
        return corrupt_clients(self.config)

    @property
    def method(self) -> Method:
        """The method of the run."""
        return self.agreement.method

    @property
    def initial(self) -> Tensor:
        """``(p,)`` the initial model."""
        return self.agreement.initial

    def client(self, number: int, store: ClientStore | None) -> Client:
        """A client of the run.

        Args:
            store: where it keeps its private state; ``None``: it keeps none.
        """
        data, corruption = ClientData(self.places, number), self.config.data.corruption
        if number not in self.corrupt:
            return Client(number, self.agreement, data, store, self.augment)
        own = FlippedLabels(data, len(self.dataset.classes)) if corruption == "labels" else data
        return CorruptClient(corruption, number, self.agreement, own, store, self.augment)


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


@dataclass(frozen=True)
class Read:
    """The data that a config names, partitioned, before it is known by what they are scaled and coded.

    Attributes:
        config: with every open key filled in that does not depend on the net's inputs.
    """

    config: RunConfig
    dataset: Dataset
    partition: Partition
    device: torch.device


def _disjoint_labels(dataset: Dataset) -> str:
    """A phrase for the error, if test and training labels have no class in common; test samples go to clients by their class."""
    trained, tested = (set(labels.tolist()) for labels in dataset.strata)
    if not tested or trained & tested:
        return ""
    in_training, in_test = (", ".join(dataset.classes[label] for label in sorted(labels)[:10]) for labels in (trained, tested))
    return f": its labels ({in_test}) are none of those of the training data ({in_training})"


def build(config: RunConfig, begun: bool = False) -> Federation:
    """Build the federation of a config: load and partition the data, and initialise the model.

    Args:
        begun: as for :func:`settle`.

    Raises:
        UsageError: a name or a value cannot be right; nothing was written.
    """
    load_plugins(config.plugins, of="the config")
    loaded = load(config)
    config, data, prepared = loaded.config, loaded.data, loaded.prepared
    if not any(len(data.indices(config.eval.split, client)) for client in range(config.data.clients)):
        hint = "; set data.validation_fraction" if config.eval.split == "validation" else _disjoint_labels(loaded.dataset)
        raise UsageError(f"no client holds {config.eval.split} data to be scored on{hint}")
    pooled = _pooled(loaded) if find_method(config.method.name).pools else None
    places = pooled or data
    sizes, classes, target = list(places.sizes.values()), len(loaded.dataset.classes), loaded.dataset.target
    counts = None
    if target is None:
        counts = tuple(data.partition.counts(loaded.dataset.train_labels.numpy(), classes).sum(0).tolist())
    declared = Declared(
        classes, places.nonempty, sum(sizes) / len(sizes), max(sizes), lacking_modalities(config), counts, target=target
    )
    if loaded.statistics is not None:
        declared = replace(declared, statistics_noise=loaded.statistics.noise)
    agreement, net = settle(config, prepared.build, declared, places.sizes, places.partition, loaded.device, begun)
    resident = Resident(net, agreement.space, loaded.device)
    if uses_labels := agreement.method.objective.labels:
        loaded.dataset.check_classes()
    if config.eval.probe != "none":
        check_probe(config, agreement.method)
    check_patience(config, agreement.method)
    if config.eval.before_merge:
        _check_before_merge(config, agreement.method)
    if config.data.corrupt_clients and not agreement.method.shared_names:
        raise UsageError(f"data.corrupt_clients: method {config.method.name} merges nothing that they could spoil")
    if pooled is not None and (config.train.dropout or config.train.late):
        raise UsageError(f"train.dropout, train.late: method {config.method.name} trains in one place, and no client can fail")
    if config.eval.fresh_head and pooled is not None:
        raise UsageError(f"eval.fresh_head trains heads at the clients, and with method {config.method.name} none trains")
    if config.eval.fresh_head and not agreement.method.objective.labels:
        why = f"objective {agreement.method.objective.name} learns without labels"
        raise UsageError(f"eval.fresh_head tests clients on their labels, and {why}; eval.probe=linear tests its encoder")
    note = None if begun else check_trains(agreement, places.sizes)
    agreement.config = with_metric(agreement.config, declared)
    imbalance = note_on_imbalance(agreement.config, declared, loaded.dataset.classes) if uses_labels else None
    further = [agreement.given.note, note, imbalance, note_on_corruption(config)]
    notes = [*prepared.notes, *agreement.method.notes, *filter(None, further)]
    prepared = replace(prepared, notes=tuple(notes))
    dataset = loaded.dataset
    augment = augmentation(config.data.augment or "none", dataset.mean, dataset.std)
    sizes = [places.size(client) for client in participants(agreement, 1)]
    choice = choose(config, net, places.train(places.nonempty[0]).inputs, sizes, agreement.method.phases(round=1))
    agreement.config = agreement.config.model_copy(update={"executor": choice.config})
    return Federation(agreement, prepared, dataset, data, resident, augment, choice, statistics=loaded.statistics, pooled=pooled)


def with_metric(config: RunConfig, declared: Declared) -> RunConfig:
    """The config with ``eval.metric``, the score that the run is ranked by: where the numbers of samples of each class are not
    known, accuracy; of a regression, the RMSE.

    Raises:
        UsageError: the score that the config names does not suit the data.
    """
    score = declared.task.score(config.eval.metric, declared.class_counts)
    return config.model_copy(update={"eval": config.eval.model_copy(update={"metric": score.name})})


def note_on_imbalance(config: RunConfig, declared: Declared, names: Sequence[str]) -> str | None:
    """A line on imbalanced classes, if the run is ranked as is usual for them.

    Args:
        config: with ``eval.metric``.
        names: of the classes.
    """
    counts = declared.class_counts
    if counts is None or ACCURACY is (score := usual_score(counts)) or config.eval.metric != score.name:
        return None
    return (
        f"{max(counts) / sum(counts):.1%} of the training labels are {names[counts.index(max(counts))]!r}: the run is ranked by "
        f"{score.title} and not by accuracy (--set eval.metric=accuracy)"
    )


def _pooled(loaded: Loaded) -> FederatedData:
    """The data with all training samples in one place, which is client 0.

    Raises:
        UsageError: clients lack modalities, or a schedule names the clients of each round.
    """
    config, data = loaded.config, loaded.data
    if lacking_modalities(config):
        raise UsageError(f"method {config.method.name} has whole pairs in one place; leave out data.image_only and text_only")
    if config.train.selection == "schedule":
        raise UsageError(f"method {config.method.name} trains in one place, without the clients of train.schedule: leave it out")
    prepared = loaded.prepared
    return FederatedData(loaded.dataset, data.partition.pooled(), loaded.device, prepared.train, prepared.test)


def _check_before_merge(config: RunConfig, method: Method) -> None:
    """Raise :class:`UsageError` unless the server receives single, whole models that can be scored."""
    why = None
    if not method.objective.labels:
        why = f"objective {method.objective.name} learns without labels"
    elif not method.has_global_model:
        why = f"method {method.name} leaves {method.private_names[0]} with the clients, so that no upload is a whole model"
    elif not method.shared_names:
        why = f"method {method.name} sends none"
    elif config.wire.secure_aggregation:
        why = "the server reads no single upload under wire.secure_aggregation"
    if why is not None:
        raise UsageError(f"eval.before_merge tests the models that clients send; {why}")


def load(config: RunConfig, partitioning: Partitioning | None = None) -> Loaded:
    """Load the data set of a config, partition it, and scale and code it by what its clients measure.

    Args:
        partitioning: makes the partition of a data set; ``None``: the one of the config.

    Raises:
        UsageError: a name or a value cannot be right.
    """
    parts = read(config, partitioning)
    dataset, statistics = measured(parts.dataset, parts.partition, parts.config)
    if statistics is not None and not find_method(parts.config.method.name).pools:  # where nothing is sent
        notes = (*dataset.notes, note_on_statistics(statistics, parts.config))
        dataset = replace(dataset, notes=notes)
    return prepared_inputs(replace(parts, dataset=dataset), statistics)


def read(config: RunConfig, partitioning: Partitioning | None = None, every_column: bool = False) -> Read:
    """As :func:`load`, before any samples are scaled or coded.

    Args:
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
    located = {"name": dataset.name, "dir": config.data.dir and config.data.dir.absolute()}
    config = config.model_copy(update={"data": config.data.model_copy(update=located)})
    config = filled(config, dataset.suggests)
    if partitioning in (None, partition_dataset):
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


def resolve(config: RunConfig, default_model: str | None, suggestions: Mapping[str, Any] | None = None) -> RunConfig:
    """The config with its open keys filled in by what the data set suggests, and by defaults.

    Only ``train.participation`` may stay open, as it depends on how many clients hold data (:func:`with_default_share`).
    """
    config = with_schedule(filled(config, suggestions or {}))
    partition, train = config.data.partition, config.train
    seed = config.seed if partition.seed is None else partition.seed
    data = {"partition": partition.model_copy(update={"seed": seed}), "augment": config.data.augment or "none"}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"name": config.model.name or default_model}),
            "train": train.model_copy(update={"selection": train.selection or "uniform"}),
            "data": config.data.model_copy(update=data),
        }
    )


def with_default_share(config: RunConfig, holders: int) -> RunConfig:
    """The config with ``train.participation``, the share of clients that take part in a round.

    Args:
        holders: number of clients that hold training data, on which the default depends.
    """
    if config.train.participation is not None:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"participation": usual_share(holders)})})


def with_schedule(config: RunConfig) -> RunConfig:
    """The config with the content of the file ``train.schedule``, so that a run does not depend on a file that may change."""
    train = config.train
    if not isinstance(train.schedule, Path):
        return config
    schedule = read_schedule(train.schedule, config.data.clients, train.rounds)
    return config.model_copy(update={"train": train.model_copy(update={"schedule": schedule})})


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
