"""From a config to the things it names: data, net, method, wire."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.agreement import Agreement, Declared, agree
from fedpriv.client.client import Client
from fedpriv.client.resident import Resident
from fedpriv.client.store import ClientStore
from fedpriv.client.turn import schedule
from fedpriv.config import USUAL_PARTICIPANTS, RunConfig, filled
from fedpriv.data.augment import Augment, augmentation
from fedpriv.data.dataset import Dataset
from fedpriv.data.federated import ClientData, FederatedData
from fedpriv.data.partition import make_partition
from fedpriv.data.sources import load_dataset
from fedpriv.defenses import build_transforms
from fedpriv.defenses.stage import Stage
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import check_probe
from fedpriv.methods.base import Method
from fedpriv.methods.build import with_options
from fedpriv.plugins import load_plugins
from fedpriv.privacy.accountant import Plan
from fedpriv.privacy.plan import check, with_noise
from fedpriv.samples import Modality
from fedpriv.seeding import generator
from fedpriv.server.sampling import participants, read_schedule
from fedpriv.simulation.executor_choice import ExecutorChoice, choose
from fedpriv.simulation.inputs.from_dataset import prepare
from fedpriv.simulation.inputs.prepared import Prepared
from fedpriv.wire import Transform


@dataclass
class Federation:
    """Everything that a simulation has in one process: what both halves agree on, and the data of all clients."""

    agreement: Agreement
    prepared: Prepared
    dataset: Dataset
    data: FederatedData
    resident: Resident
    augment: Augment | None = None
    choice: ExecutorChoice | None = None
    """The executor of the clients; ``None``: one after another."""

    @property
    def config(self) -> RunConfig:
        """With nothing left open."""
        return self.agreement.config

    @property
    def method(self) -> Method:
        """The method, which both halves use."""
        return self.agreement.method

    @property
    def initial(self) -> Tensor:
        """``(p,)`` the initial model."""
        return self.agreement.initial

    def client(self, number: int, store: ClientStore | None) -> Client:
        """The client's half of the rounds.

        Args:
            store: where it keeps its private state; ``None``: nowhere.
        """
        return Client(number, self.agreement, ClientData(self.data, number), store, self.augment)


def build(config: RunConfig) -> Federation:
    """Load, partition and initialise; the returned config has every suggestion filled in.

    Raises:
        UsageError: a name or a value that cannot be right, before anything is written.
    """
    load_plugins(config.plugins, of="the config")
    config = with_options(config)
    device = _device(config.device)
    transforms = build_transforms(config.wire.transforms)
    dataset = load_dataset(config.data.name, config.data.dir, config.data.limit, config.data.image_size)
    where = {"name": dataset.name, "dir": config.data.dir and config.data.dir.absolute()}
    config = config.model_copy(update={"data": config.data.model_copy(update=where)})
    config = resolve(config, dataset.default_model, dataset.suggests)
    partition = make_partition(
        dataset.train_labels.numpy(),
        dataset.test_labels.numpy(),
        len(dataset.classes),
        config.data,
        config.data.partition.seed or 0,
    )
    prepared = prepare(config, dataset, device)
    config = prepared.config
    data = FederatedData(dataset, partition, device, prepared.train, prepared.test, _lacks(config))
    schedule = config.train.schedule if isinstance(config.train.schedule, tuple) else ()
    scheduled = {client for clients in schedule for client in clients}
    if strangers := sorted(scheduled - set(data.nonempty)):
        raise UsageError(f"train.schedule names client {strangers[0]}, which does not exist or holds no training data")
    if not any(len(data.indices(config.eval.split, client)) for client in range(config.data.clients)):
        hint = "; set data.validation_fraction" if config.eval.split == "validation" else ""
        raise UsageError(f"no client holds {config.eval.split} data to be scored on{hint}")
    sizes = list(map(data.size, data.nonempty))
    declared = Declared(len(dataset.classes), data.nonempty, sum(sizes) / len(sizes), max(sizes), _lacks(config))
    agreement, net = agree(config, prepared.build, declared, transforms, device)
    resident = Resident(net, agreement.space, device)
    _ = agreement.sent_names  # refuses a mask that cannot be right
    if config.privacy.level != "none":
        server = agreement.method.start(agreement.initial.clone())
        check(config, agreement.method, server, net, transforms, partition)
        privacy = with_noise(config.privacy, plans(agreement, data, range(1, config.train.rounds + 1)))
        config = agreement.config = config.model_copy(update={"privacy": privacy})
        if privacy.level == "client":
            agreement.transforms = _clipped(transforms, privacy.clip)
    if config.eval.probe != "none":
        check_probe(config, agreement.method)
    augment = augmentation(config.data.augment or "none", dataset.mean, dataset.std)
    sizes = [data.size(client) for client in participants(agreement, 1)]
    choice = choose(config, net, data.train(data.nonempty[0]).inputs, sizes)
    agreement.config = config.model_copy(update={"executor": choice.config})
    return Federation(agreement, prepared, dataset, data, resident, augment, choice)


def plans(agreement: Agreement, data: FederatedData, rounds: Iterable[int], clients: Iterable[int] | None = None) -> list[Plan]:
    """What each sample (level ``client``: each client) will be charged in some rounds, in (sampling rate, steps): a list of
    several where several clients hold it.

    Args:
        clients: only the samples that one of them holds; ``None``: all.
    """
    config = agreement.config
    if config.privacy.level == "client":
        return [((config.train.participation or 0.0, len(list(rounds))),)]
    epochs = dict.fromkeys(data.nonempty, 0)
    for round in rounds:
        a_turn = sum(phase.epochs for phase in agreement.method.phases(round))
        for client in participants(agreement, round):
            epochs[client] += a_turn
    schedules = {client: schedule(data.size(client), config.train.batch_size) for client in epochs}
    spends = {client: (rate, epochs[client] * steps) for client, (rate, steps) in schedules.items()}
    asked = set(data.nonempty if clients is None else clients)
    return [tuple(spends[client] for client in held) for held in data.partition.holders() if not asked.isdisjoint(held)]


def _clipped(transforms: Sequence[Transform], bound: float) -> list[Transform]:
    """With the clients' clipping before whatever noises or shortens; masks first, so that what is sent is what is bounded."""
    first = next((i for i, one in enumerate(transforms) if getattr(one, "stage", Stage.CLIP) > Stage.CLIP), len(transforms))
    return [*transforms[:first], *build_transforms([{"name": "clip", "norm": bound}]), *transforms[first:]]


def resolve(config: RunConfig, usual_model: str | None, suggestions: Mapping[str, Any] | None = None) -> RunConfig:
    """The config with what method and options left open: what the data set suggests, the partition's seed, participation."""
    config = filled(config, suggestions or {})
    partition, train = config.data.partition, config.train
    seed = config.seed if partition.seed is None else partition.seed
    share = min(1.0, USUAL_PARTICIPANTS / config.data.clients) if train.participation is None else train.participation
    schedule = train.schedule
    if isinstance(schedule, Path):  # a run is a function of its config, not of a file that may change
        schedule = read_schedule(schedule, config.data.clients, train.rounds)
    data = {"partition": partition.model_copy(update={"seed": seed}), "augment": config.data.augment or "none"}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"name": config.model.name or usual_model}),
            "train": train.model_copy(
                update={"participation": share, "selection": train.selection or "uniform", "schedule": schedule}
            ),
            "data": config.data.model_copy(update=data),
        }
    )


def _lacks(config: RunConfig) -> dict[int, Modality]:
    """The modality that each client of pairs lacks: the shares that the config says, drawn by the partition's seed."""
    data, drawn = config.data, generator(config.data.partition.seed or 0, "modalities")
    order = torch.randperm(data.clients, generator=drawn).tolist()
    images, texts = (round(share * data.clients) for share in (data.image_only, data.text_only))
    lacking: dict[int, Modality] = dict.fromkeys(order[:images], "text")
    return lacking | dict.fromkeys(order[images : images + texts], "image")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        if device.type == "cuda":  # or the same run would give other bits each time; cuBLAS reads its setting at its start
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        float(torch.zeros(1, device=device))  # `meta` makes tensors too, but none that hold numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch goes on for pages
        raise UsageError(f"device {name!r} is not available here: {reason}; try --device cpu") from None
    return device
