"""Shadow local updates: the server simulates clients on data of its choice, and observes their uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.audit.record.base import DataOf, Message, RegressionInputs
from fedpriv.data.federated import FederatedData, Split
from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import free_memory, usable_cores
from fedpriv.samples import Modality, each, missing_modality
from fedpriv.secure.layout import Layout
from fedpriv.secure.protocol_checks import as_sent, expected_mean
from fedpriv.server.clients import Instruction
from fedpriv.simulation.choice.costs import client_bytes
from fedpriv.simulation.choice.executor import ExecutorChoice
from fedpriv.simulation.executors.in_process import in_process_executor
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Payload, Sealed, seal
from fedpriv.wire.coding import decoded

if TYPE_CHECKING:
    from fedpriv.audit.record.run import RunRecord

TOGETHER = 12
"""Shadows that train at the same time on a CPU, where the run's clients train in groups. The run's group size is chosen for a
round's few clients in several processes; shadows are many and train in one. In groups of 11 they take 0.6 of what they take in
groups of 5."""


@dataclass(frozen=True)
class _Shadows:
    """The data of a federation whose clients are shadows; a shadow's data are built when its local update begins.

    Attributes:
        first: the client number of shadow 0.
        parts: clients among whom a shadow's data are split.
    """

    of: DataOf
    first: int
    parts: int
    lacks: dict[int, Modality | None] = field(default_factory=dict)

    def train(self, client: int) -> Split:
        shadow, part = divmod(client - self.first, self.parts)
        chosen = self.of(shadow)
        if self.parts > 1:
            chosen = chosen.at(torch.arange(part, len(chosen.labels), self.parts, device=chosen.labels.device))
        self.lacks[client] = missing_modality(chosen.inputs)
        return chosen

    def lacking(self, client: int) -> Modality | None:
        return self.lacks[client]

    def size(self, client: int) -> int:
        """A constant: shadows of equal size run in the requested order."""
        return 1


@dataclass(frozen=True)
class ShadowResult:
    """The result of a shadow's local update: its upload, by the net's names and sealed, and its model ``(p,)``."""

    uploaded: Mapping[str, Tensor]
    model: Tensor
    sealed: Sealed


def initial_row(federation: Federation, broadcast: Sealed | None) -> Tensor:
    """The model ``(p,)`` before the first round as an attacker has it: as broadcast, and random where it was not."""
    random = federation.method.context.new_row("attacker").to(federation.resident.device)
    return federation.resident.space.pack({} if broadcast is None else broadcast.tensors(), random)


class ShadowUpdates:
    """Local training as in the run (schedule, loss, DP, transforms), from the server's download, on other data.

    A shadow is a client whose number is not in the federation, so its random numbers differ from the run's, which the server does
    not know. Every local update is a client's first, as state that clients keep was never sent. Weights that the server sent
    neither in round 0 nor in this round are random. Nothing is written into the run.

    Args:
        download: the download of the round.
        broadcast: the download of round 0, if there was one.
        parts: clients of a secure sum, among whom a shadow's data are split; the result is their mean.
    """

    def __init__(self, federation: Federation, round: int, download: Sealed, broadcast: Sealed | None, parts: int = 1) -> None:
        self.federation, self.round, self.download, self.parts = federation, round, download, parts
        self.received = download.tensors()
        self.initial = initial_row(federation, broadcast)

    def run(self, data: DataOf, numbers: Sequence[int]) -> Iterator[ShadowResult | None]:
        """Train the shadows with these numbers and yield their results in this order; ``None`` for one that diverged.

        Shadows train as the run's clients do, one after another or in groups, which may be larger (:data:`TOGETHER`). Only one
        group's data and models are in memory, besides what the caller keeps. All run in this process even if the run had workers:
        forked workers do not have the shadows' data, and do not return models.
        """
        fed = self.federation
        shadows = cast(FederatedData, _Shadows(data, fed.config.data.clients, self.parts))
        agreement = replace(fed.agreement, initial=self.initial)
        federation = replace(fed, data=shadows, agreement=agreement, choice=_in_larger_groups(fed))
        # Grouping does not change the results, so the warning that a group did not fit into memory is dropped.
        executor = in_process_executor(federation, None, lambda text: None)
        clients = [fed.config.data.clients + number * self.parts + part for number in numbers for part in range(self.parts)]
        updates: list[ShadowResult | None] = []
        for answer in executor.train(Instruction(self.round, clients, self.download)):
            upload, model = answer.upload, executor.model.clone()
            updates.append(None if upload is None else ShadowResult(decoded(upload, self.received).tensors(), model, upload))
            if len(updates) == self.parts:
                yield self._mean([update for update in updates if update is not None]) if None not in updates else None
                updates = []

    def _mean(self, updates: Sequence[ShadowResult]) -> ShadowResult:
        """The result of a secure sum of them."""
        if len(updates) == 1:
            return updates[0]
        method, layout = self.federation.method, Layout(self.federation.agreement, self.received)
        rows = [layout.row(update.uploaded, update.sealed.num_examples or 0, None) for update in updates]
        sums = layout.sums(np.sum(rows, axis=0))
        mean = method.mean_upload(sums.tensors, self.received, sums.weight, len(updates))
        uploaded = as_sent(mean, expected_mean(self.federation.agreement, self.round, self.received, len(updates)))
        sealed = seal(Payload(uploaded, self.round, transforms=updates[0].sealed.transforms))
        return ShadowResult(uploaded, torch.stack([update.model for update in updates]).mean(0), sealed)


def _in_larger_groups(federation: Federation) -> ExecutorChoice | None:
    """The executor of the shadows, in groups that fit into memory."""
    choice = federation.choice
    if choice is None or choice.together is None or federation.resident.device.type != "cpu":
        return choice
    samples = federation.data.train(federation.data.nonempty[0]).inputs
    assert isinstance(samples, Tensor), "others cannot train in groups"
    # Other processes of the audit may train shadows, too.
    fit = int(free_memory()) // usable_cores() // client_bytes(federation.config, federation.resident.net, samples)
    size = max(choice.together[1], min(TOGETHER, fit))
    return replace(choice, config=choice.config.model_copy(update={"group_size": size}))


def own_update(record: RunRecord, message: Message, samples: Split) -> ShadowResult:
    """The server's update of the message's round on samples of its own.

    Raises:
        FedprivError: the round's download was not kept, or the update diverged.
    """
    if (download := record.store.download(message.round)) is None:
        raise FedprivError(f"the download of round {message.round} was not kept, and the server's own update starts from it")
    device = record.federation.data.device
    split = Split(each(samples.inputs, lambda part: part.to(device)), samples.labels.to(device))
    updates = ShadowUpdates(record.federation, message.round, download, record.store.broadcast(), message.parts)
    (own,) = updates.run(lambda _: split, [0])
    if own is None or not all(bool(tensor.isfinite().all()) for tensor in own.uploaded.values()):
        raise FedprivError(f"round {message.round}: the server's own local update diverged, as the client's may have")
    return own


def regression_inputs(record: RunRecord, message: Message, own: ShadowResult) -> RegressionInputs:
    """What a regression of a message gets; ``own``: the server's update of the message's round with samples of its own."""
    attacker, privacy = record.attacker, record.config.privacy
    simulated = message.simulated(own.uploaded)
    observed, control = (attacker.observation(sent, ThreatModel()) for sent in (message, simulated))
    names = attacker.victim(message).names
    trained_to = record.federation.resident.space.unpack(own.model)
    stand_in = {names[name]: tensor for name, tensor in trained_to.items() if name in names}
    device = own.model.device
    # The sent weights include constants that are never trained.
    start = {**stand_in, **{name: tensor.to(device) for name, tensor in observed.weights.items()}}
    end = {**start, **stand_in}
    middle = {name: (start[name] + tensor) / 2 for name, tensor in end.items()}
    clip = privacy.clip if privacy.level == "sample" else None
    return RegressionInputs((observed, control), [start, middle, end], clip)


class NotSimulated(FedprivError):
    """Clients with a single sample could not be simulated, so what their messages show is not known."""


def single_samples(record: RunRecord, round: int, client: int, count: int, federation: Federation | None = None) -> list[Message]:
    """The messages of simulated clients that hold one sample each, those of :func:`shared_out`.

    They train as in the run, with its schedule, defences and differential privacy, from that round's download.

    Args:
        federation: the run's, where its augmentation is recorded (:func:`fedpriv.audit.record.views.recorded`).

    Raises:
        UsageError: the run's loss is not defined for a single sample.
        NotSimulated: the round's download was not kept, or such a client diverged.
    """
    objective = record.federation.method.objective
    if objective.smallest_batch > 1:
        raise UsageError(f"a client with a single sample cannot train, as {objective.name} contrasts samples with each other")
    if (least := record.config.train.min_batch) > 1:
        raise UsageError(f"a client with a single sample takes no step, as train.min_batch is {least}")
    download, message = record.store.download(round), record.message(round, client)
    if download is None:
        raise NotSimulated(f"what the server sent in round {round} was not kept")
    updates = ShadowUpdates(federation or record.federation, round, download, record.store.broadcast())
    data, alone = record.federation.data, shared_out(record, client, count)

    def of(number: int) -> Split:
        owner, at = alone[number]
        held = data.train(owner)
        return held.at(torch.tensor([at], device=held.labels.device))

    results = list(updates.run(of, range(len(alone))))
    if None in results:
        raise NotSimulated(f"in round {round} a simulated client with a single sample diverged")
    stated = None if message.num_examples is None else 1
    return [record.simulated(round, client, result.sealed, message.received, stated) for result in results if result is not None]


def shared_out(record: RunRecord, client: int, count: int) -> list[tuple[int, int]]:
    """At most ``count`` samples as (client, index in its data): this client's, then those of clients with the same modalities."""
    data, clients = record.federation.data, range(record.config.data.clients)
    alike = [other for other in clients if other != client and data.lacking(other) == data.lacking(client)]
    return list(islice(((owner, at) for owner in (client, *alike) for at in range(data.size(owner))), count))
