"""Clients of a record on other samples: local training is done again as the record declares it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.record.base import Alone, DataOf, Message, RegressionInputs
from fedpriv.audit.record.shadow_updates import NotSimulated
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, first_line
from fedpriv.noise_source import SeededNoise
from fedpriv.recorder.layout import Training
from fedpriv.seeding import generator
from fedpriv.wire import Payload, TransformContext, seal
from fedpriv.wire.coding import decoded

USUAL = 10
"""Batches of a client that does not state its number of samples, as an attacker assumes."""


class CannotReplay(FedprivError):
    """The record does not say how clients train; the message says what it lacks."""


def trained(net: nn.Module, training: Training, samples: Split, seed: int) -> dict[str, Tensor]:
    """The state of a net after a client's local training, by the net's names; the net is left as it is.

    Args:
        net: with the weights at which the client begins, in its mode.
        samples: as the net takes them.
        seed: of the order of the samples, which is drawn anew in every epoch.

    Raises:
        CannotReplay: the training is not known.
    """
    if lacking := training.unknown():
        raise CannotReplay(f"the record does not declare {', '.join(lacking)} (training)")
    assert training.lr is not None
    assert isinstance(samples.inputs, Tensor), "samples of a record are no pairs"
    net = copy.deepcopy(net)
    optimiser = _optimiser(net, training, training.lr)
    draws, steps = torch.Generator().manual_seed(seed), training.steps(len(samples.labels)) or 0
    size, done = training.batch_size or len(samples.labels), 0
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(seed)
        while done < steps:
            for batch in torch.split(torch.randperm(len(samples.labels), generator=draws), size)[: steps - done]:
                optimiser.zero_grad()
                loss = F.cross_entropy(net(samples.inputs[batch]), samples.labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                done += 1
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}


def gradient(net: nn.Module, training: Training, samples: Split) -> dict[str, Tensor]:
    """The gradient of a client's mean loss over all its samples, by the net's names.

    Raises:
        CannotReplay: the loss is not known.
    """
    if training.loss != "cross_entropy" or training.augmented:
        raise CannotReplay("the record declares another loss than the cross-entropy, or samples that are augmented (training)")
    net = copy.deepcopy(net)
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    loss = F.cross_entropy(net(samples.inputs), samples.labels)
    by_name = dict(net.named_parameters())
    gradients = torch.autograd.grad(loss, [by_name[name] for name in names], allow_unused=True)
    return {name: tensor for name, tensor in zip(names, gradients, strict=True) if tensor is not None}


def _optimiser(net: nn.Module, training: Training, lr: float) -> torch.optim.Optimizer:
    trains = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if training.optimizer == "sgd":
        return torch.optim.SGD(trains, lr, training.momentum, weight_decay=training.weight_decay)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(trains, lr, weight_decay=training.weight_decay)


@dataclass(frozen=True)
class Simulated:
    """A simulated client's local update.

    Attributes:
        message: that it sends.
        state: of the net after its training, or the gradient, before the transforms of an upload.
    """

    message: Message
    state: Mapping[str, Tensor]

    @property
    def uploaded(self) -> Mapping[str, Tensor]:
        """What it sends, by the net's names."""
        return self.message.uploaded


def _mean(each: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> Mapping[str, Tensor]:
    if len(each) == 1:
        return each[0]
    sums = {name: sum(share * of[name].double() for share, of in zip(shares, each, strict=True)) for name in each[0]}
    return {name: torch.as_tensor(total).to(each[0][name].dtype) for name, total in sums.items()}


class SimulatedRecord(FolderRecord):
    """A record whose clients can be simulated where their training is declared."""

    def simulated(self, message: Message, samples: Split, number: int) -> Simulated | None:
        """The local update of a client with other samples in place of a message's; ``None``: it diverged.

        Args:
            samples: in place of a message's; if it is a sum, they are divided among as many clients as are in it.
            number: of the client, for its random draws.

        Raises:
            CannotReplay: see :func:`trained`.
        """
        shares = [torch.arange(part, len(samples.labels), message.parts) for part in range(message.parts)]
        return self._together(message, [samples.at(share) for share in shares if len(share)], number)

    def replayed(self, message: Message, number: int) -> Simulated | None:
        """The local update of a message's own client, or clients, on their recorded samples in an order drawn by ``number``."""
        own = [Split(self.as_input(truth.images), truth.labels) for truth in self.of_members(message.client)]
        return self._together(message, own, number)

    def _together(self, message: Message, clients: Sequence[Split], number: int) -> Simulated | None:
        """The mean of the local updates of clients with these samples, weighted by their numbers."""
        draws = generator(self.seed, message.round, message.client, number, "simulated client")
        total, states, sent = sum(len(own.labels) for own in clients), list[Mapping[str, Tensor]](), list[Mapping[str, Tensor]]()
        for own in clients:
            seed = int(torch.randint(2**31, (), generator=draws))
            update, training = self.update(message), self.facts.training
            state = trained(update.model, training, own, seed) if update.is_change else gradient(update.model, training, own)
            if not all(bool(state[name].isfinite().all()) for name in message.uploaded if name in state):
                return None
            uploaded = {name: state.get(name, tensor) for name, tensor in message.uploaded.items()}
            changed = self._transformed(
                message, {name: uploaded[name] for name in self.start(message) if name in uploaded}, draws
            )
            states.append(state)
            sent.append({**uploaded, **changed})
        shares = [len(own.labels) / total for own in clients]
        mean = _mean(sent, shares)
        # A new message even if it is equal: a simulated client has had no earlier update.
        return Simulated(replace(message, uploaded=mean, num_examples=total, first_update=True), _mean(states, shares))

    def _transformed(self, message: Message, weights: Mapping[str, Tensor], draws: torch.Generator) -> Mapping[str, Tensor]:
        """Weights, or a gradient, as the server reads them after an upload's transforms; without those that a mask removes."""
        if not self.transforms:
            return weights
        start, linear = self.start(message), [name for name, it in self.model.named_modules() if isinstance(it, nn.Linear)]
        is_change = self.update(message).is_change
        payload = Payload(weights, message.round, message.client, "weights" if is_change else "gradient")
        context = TransformContext(start, tuple(start), SeededNoise(draws), linear)
        for transform in self.transforms:
            payload = transform(payload, context)
        return decoded(seal(payload), start).tensors() if is_change else payload.tensors

    def alone(self, round: int, client: int, count: int) -> Alone:
        message = self.message(round, client)
        owners = [client, *(other for other in self.holders() if other != client)]
        every = ((owner, at) for owner in owners for at in range(len(self.labels(owner))))
        samples, messages = list(islice(every, count)), list[Message]()
        for number, (owner, at) in enumerate(samples):
            truth = self.truth(owner)
            own = Split(self.as_input(truth.images[at : at + 1]), truth.labels[at : at + 1])
            try:
                played = self.simulated(message, own, number)
            except (ValueError, RuntimeError) as error:  # of BatchNorm, for example
                raise NotSimulated(f"a client with a single sample cannot train: {first_line(error)}") from None
            if played is None:
                raise NotSimulated(f"in round {round} a simulated client with a single sample diverged")
            messages.append(played.message)
        return Alone(messages, samples)

    def shadows(self, round: int, client: int, data: DataOf, numbers: Sequence[int]) -> Iterator[Message | None]:
        message = self.message(round, client)
        for number in numbers:
            played = self.simulated(message, data(number), number)
            yield None if played is None else played.message

    def regression(self, message: Message, samples: Split) -> RegressionInputs:
        if (own := self.simulated(message, samples, 0)) is None:
            raise FedprivError(f"round {message.round}: the server's own local update diverged, as the client's may have")
        return self.regression_beside(message, own)

    def regression_beside(self, message: Message, own: Simulated) -> RegressionInputs:
        """As :meth:`regression`, with a local update that was done before."""
        observed, control = (self.observation(sent, ThreatModel()) for sent in (message, own.message))
        names, start = self.net.names, dict(self.started(message))
        after = own.state if self.update(message).is_change else {}
        end = start | {names[name]: tensor for name, tensor in after.items() if names[name] in start}
        middle = {name: (start[name] + tensor) / 2 for name, tensor in end.items()}
        return RegressionInputs((observed, control), [start, middle, end], None)

    def samples_behind(self, message: Message) -> int:
        return message.num_examples or USUAL * (self.facts.training.batch_size or 1)
