"""Set-up of a simulation: its data, and the agreement of server and clients, with all checks of its config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from fedpriv.agreement import Agreement, Declared
from fedpriv.client.client import Client
from fedpriv.client.corrupt import CorruptClient, FlippedLabels, corrupt_clients, note_on_corruption
from fedpriv.client.resident import Resident
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.data.augmentation.augment import Augment, augmentation
from fedpriv.data.dataset import Dataset
from fedpriv.data.federated import ClientData, FederatedData
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import check_probe
from fedpriv.methods import find_method
from fedpriv.methods.base import Method
from fedpriv.plugins import load_plugins
from fedpriv.secure.protocol_checks import check_trains
from fedpriv.server.best import check_patience
from fedpriv.server.sampling import participants
from fedpriv.server.statistics import Gathered
from fedpriv.simulation.choice.executor import ExecutorChoice, choose
from fedpriv.simulation.inputs.loading import Loaded, lacking_modalities, load
from fedpriv.simulation.inputs.prepared import Prepared
from fedpriv.simulation.open_keys import note_on_imbalance, with_metric
from fedpriv.simulation.run_setup import settle


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


def build(config: RunConfig, begun: bool = False) -> Federation:
    """Build the federation of a config: load and partition the data, and initialise the model.

    Args:
        begun: as for :func:`settle`.

    Raises:
        UsageError: a name or a value cannot be right; nothing was written.
    """
    load_plugins(config.plugins, of="the config")
    loaded = load(config)
    config, dataset, data, prepared = loaded.config, loaded.dataset, loaded.data, loaded.prepared
    if not any(len(data.indices(config.eval.split, client)) for client in range(config.data.clients)):
        hint = "; set data.validation_fraction" if config.eval.split == "validation" else _disjoint_labels(dataset)
        raise UsageError(f"no client holds {config.eval.split} data to be scored on{hint}")
    pooled = _pooled(loaded) if find_method(config.method.name).pools else None
    places = pooled or data
    declared = _declared(loaded, places)
    agreement, net = settle(config, prepared.build, declared, places.sizes, places.partition, loaded.device, begun)
    method, resident = agreement.method, Resident(net, agreement.space, loaded.device)
    if method.objective.labels:
        dataset.check_classes()
    _check_options(config, method)
    note = None if begun else check_trains(agreement, places.sizes)
    agreement.config = with_metric(agreement.config, declared)
    imbalance = note_on_imbalance(agreement.config, declared, dataset.classes) if method.objective.labels else None
    further = filter(None, (agreement.given.note, note, imbalance, note_on_corruption(config)))
    prepared = replace(prepared, notes=(*prepared.notes, *method.notes, *further))
    sizes = [places.size(client) for client in participants(agreement, 1)]
    choice = choose(config, net, places.train(places.nonempty[0]).inputs, sizes, method.phases(round=1))
    agreement.config = agreement.config.model_copy(update={"executor": choice.config})
    augment = augmentation(config.data.augment or "none", dataset.mean, dataset.std)
    return Federation(agreement, prepared, dataset, data, resident, augment, choice, loaded.statistics, pooled)


def _disjoint_labels(dataset: Dataset) -> str:
    """A phrase for the error, if test and training labels have no class in common; test samples go to clients by their class."""
    trained, tested = (set(labels.tolist()) for labels in dataset.strata)
    if not tested or trained & tested:
        return ""
    in_training, in_test = (", ".join(dataset.classes[label] for label in sorted(labels)[:10]) for labels in (trained, tested))
    return f": its labels ({in_test}) are none of those of the training data ({in_training})"


def _declared(loaded: Loaded, places: FederatedData) -> Declared:
    """What the clients declare of their data."""
    dataset, sizes, counts = loaded.dataset, list(places.sizes.values()), None
    if dataset.target is None:
        labels = dataset.train_labels.numpy()
        counts = tuple(loaded.data.partition.counts(labels, len(dataset.classes)).sum(0).tolist())
    return Declared(
        len(dataset.classes),
        places.nonempty,
        sum(sizes) / len(sizes),
        max(sizes),
        lacking_modalities(loaded.config),
        counts,
        statistics_noise=0.0 if loaded.statistics is None else loaded.statistics.noise,
        target=dataset.target,
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


def _check_options(config: RunConfig, method: Method) -> None:
    """Refuse options on evaluation and on failing clients with which the method has no meaning, as :class:`UsageError`."""
    if config.eval.probe != "none":
        check_probe(config, method)
    check_patience(config, method)
    if config.eval.before_merge:
        _check_before_merge(config, method)
    if config.data.corrupt_clients and not method.shared_names:
        raise UsageError(f"data.corrupt_clients: method {method.name} merges nothing that they could spoil")
    if method.pools and (config.train.dropout or config.train.late):
        raise UsageError(f"train.dropout, train.late: method {method.name} trains in one place, and no client can fail")
    if config.eval.fresh_head and method.pools:
        raise UsageError(f"eval.fresh_head trains heads at the clients, and with method {method.name} none trains")
    if config.eval.fresh_head and not method.objective.labels:
        why = f"objective {method.objective.name} learns without labels"
        raise UsageError(f"eval.fresh_head tests clients on their labels, and {why}; eval.probe=linear tests its encoder")


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
