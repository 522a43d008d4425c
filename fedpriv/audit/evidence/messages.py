"""The messages of a run as observations, and the true data to score reconstructions against.

The messages are the sealed payloads that the run kept. The images, texts and labels behind them are not stored: they are rebuilt
from the run's config and checked against its partition hash.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from fedpriv.attacks.core.altered import UNALTERED, Altered
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel, state_names
from fedpriv.attacks.gradients.multistep import noise_gain
from fedpriv.audit.evidence.alteration import alteration
from fedpriv.audit.evidence.earlier_turns import PlainChange, plain_change
from fedpriv.audit.evidence.local_steps import idle_of, schedule_of, stands_still
from fedpriv.audit.evidence.shadow_turns import initial_row
from fedpriv.audit.evidence.text_victim import text_facts
from fedpriv.audit.evidence.unlike import made_up, trains_otherwise, unlike_controls
from fedpriv.audit.evidence.victim import Victim, cut
from fedpriv.audit.evidence.views import views_of
from fedpriv.client.client import check_download
from fedpriv.data.dataset import Texts
from fedpriv.data.tokens import tokenise
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.models.net import Net
from fedpriv.samples import Modality
from fedpriv.server.payloads import PayloadStore
from fedpriv.server.records import counted
from fedpriv.server.run_folder import RunFolder
from fedpriv.server.sampling import participants
from fedpriv.simulation.reopening import damaged_partition, reopened
from fedpriv.simulation.setup import Federation
from fedpriv.wire import STATISTIC, Sealed
from fedpriv.wire.coding import decoded, is_model
from fedpriv.wire.message import Refused

STILL = "the client's only step had a learning rate of 0 (train.warmup_steps), so its message shows nothing of its samples"


@dataclass(frozen=True)
class Message:
    """An upload and the download before it, as kept by the run.

    Attributes:
        received: the tensors that the client was sent in this round, by the net's names.
        uploaded: the tensors that it sent back, compressed changes decoded into weights.
        num_examples: its number of samples as the message states it.
        altered: the effect of the transforms on the change, by the net's names.
        parts: how many clients it is the mean of.
        first_turn: whether it is known to be of a client that has had no turn before, as simulated ones have not.
    """

    round: int
    client: int
    received: Mapping[str, Tensor]
    uploaded: Mapping[str, Tensor]
    num_examples: int | None
    altered: Altered = UNALTERED
    parts: int = 1
    first_turn: bool = False

    @property
    def of_model(self) -> list[str]:
        """Names of the tensors that it sent back of the model."""
        return [name for name in self.uploaded if is_model(name)]

    def simulated(self, uploaded: Mapping[str, Tensor]) -> Message:
        """The message of a simulated client in its place; itself where that is what it uploaded."""
        return self if uploaded is self.uploaded else replace(self, uploaded=uploaded, first_turn=True)


@dataclass(frozen=True)
class Truth:
    """The training data behind a message: images ``(n, C, H, W)`` in [0, 1], labels ``(n,)``. Attacks never get it."""

    images: Tensor
    labels: Tensor


class Evidence:
    """The kept messages of a run.

    Attributes:
        summed: whether each is the sum of some clients' uploads (:mod:`fedpriv.audit.evidence.sums`).
        corrections: of messages by (round, client), as far as they were computed (:mod:`fedpriv.audit.evidence.earlier_turns`).

    Raises:
        UsageError: there is no run, the data have changed since its training, or it kept no payload.
        Damaged: a file of the run is not what was written.
    """

    summed = False

    def __init__(self, run_dir: Path) -> None:
        self.folder = RunFolder.open(run_dir)
        self.store = self._stored()
        if not self.store.rounds():
            again = "train it again with `--keep-payloads default`; a method that sends nothing (local) has none"
            raise UsageError(f"{run_dir} kept no payloads, so there is nothing to attack: {again}")
        config = self.folder.config()
        self.config = config.model_copy(update={"executor": config.executor.here()})
        self._victims: dict[frozenset[str], Victim] = {}
        self.corrections: dict[tuple[int, int], dict[str, Tensor]] = {}

    def _stored(self) -> PayloadStore:
        return PayloadStore.of(self.folder)

    def sender(self, round: int, client: int) -> int | str:
        """Whose message it is: the client's number; behind a secure sum, a name of it."""
        return client

    @cached_property
    def federation(self) -> Federation:
        """Data, net and method, rebuilt from the config; :class:`UsageError` where they are not the run's."""
        federation = reopened(self.folder, self.config)
        if (damage := damaged_partition(self.folder)) is not None:
            raise Damaged(damage)
        return federation

    def messages(self, round: int | None = None, client: int | None = None) -> list[tuple[int, int]]:
        """The (round, client) pairs that were kept; with arguments, only the matching ones.

        Raises:
            UsageError: none matches; the message lists the kept ones.
        """
        rounds = self.store.rounds()
        if round is not None and round not in rounds:
            kept = ", ".join(map(str, rounds))
            raise UsageError(f"no payload of round {round} was kept, only of rounds {kept}; see `fedpriv train --keep-payloads`")
        found = [(r, c) for r in rounds for c in self.store.clients(r) if round in (None, r) and client in (None, c)]
        if not found:
            some = "; ".join(f"round {r}: {', '.join(map(str, self.store.clients(r)))}" for r in rounds if round in (None, r))
            raise UsageError(f"no payload of client {client} was kept; there are those of {some}")
        return found

    def verify(self) -> None:
        """Read everything that an audit reads of the folder and of the data.

        Raises:
            UsageError: the data are not those the run was trained on.
            Damaged: a message is not what was written, or does not fit the run's net.
        """
        self.store.verify()
        for round, client in self.messages():
            self.message(round, client)

    def message(self, round: int, client: int) -> Message:
        """One message.

        Raises:
            UsageError: it was not kept.
            Damaged: its file is damaged, or is not what the server of this run would have accepted.
        """
        download, sealed = self.store.download(round), self.store.upload(round, client)
        agreement, received = self.federation.agreement, {} if download is None else download.tensors()
        try:
            if download is not None:
                check_download(agreement, round, download)
            agreement.expected(round, client, received).check(sealed)
        except Refused as reason:
            whose = f"the message of client {client} in round {round}"
            raise Damaged(f"{self.folder.path}: {whose} does not fit the run: {reason}") from None
        return self.read(round, client, sealed, received, sealed.num_examples)

    def read(self, round: int, client: int, sealed: Sealed, received: Mapping[str, Tensor], num_examples: int | None) -> Message:
        """An upload as the server decodes it, with what it knows of the upload's transforms."""
        altered = alteration(sealed, received, self.federation.agreement.transforms)
        return Message(round, client, received, decoded(sealed, received).tensors(), num_examples, altered)

    def simulated(
        self, round: int, client: int, sealed: Sealed, received: Mapping[str, Tensor], num_examples: int | None
    ) -> Message:
        """As :meth:`read`, the upload of a simulated client, each of whose turns is its first."""
        return replace(self.read(round, client, sealed, received, num_examples), first_turn=True)

    def truth(self, client: int) -> Truth:
        """The client's training data, without augmentation."""
        index = self._held(client)
        return Truth(self.federation.dataset.train_images[index].float() / 255, self.labels(client))

    def views(self, round: int, client: int, images: Tensor) -> Tensor | None:
        """The client's images ``(n, C, H, W)`` and the augmented views of its turn ``(n, V, C, H, W)``; ``None``: without any."""
        return views_of(self.federation, round, self.behind(round, client), self.store.download(round), images)

    def had_turns(self, round: int) -> set[int]:
        """The clients whose turn of a round had an effect."""
        return self._turns.get(round, set())

    @cached_property
    def _turns(self) -> dict[int, set[int]]:
        agreement, records = self.federation.agreement, {record["round"]: record for record in self.folder.records()}
        return {round: counted(record, participants(agreement, round)) for round, record in records.items() if round > 0}

    def number(self, round: int, client: int) -> int:
        """Under which number a message of another round is kept that has a turn of the client."""
        return client

    def behind(self, round: int, client: int) -> list[int]:
        """The clients whose turns are behind a message."""
        return [client]

    def labels(self, client: int) -> Tensor:
        """The labels of the client's training data ``(n,)``."""
        return self.federation.data.labels("train").cpu()[self._held(client)]

    def texts(self, client: int) -> Tensor:
        """Token ids ``(n, L)`` of the client's training data, truncated as in training."""
        trained, _ = self._texts()
        return self._tokens([trained[i] for i in self._held(client).tolist()])

    def public_texts(self) -> Tensor:
        """Token ids ``(m, L)`` of the test split."""
        return self._tokens(self._texts()[1])

    def whole_clients(self, round: int) -> list[int]:
        """The clients with a kept message of that round and complete samples; for pairs, with both images and texts.

        Raises:
            FedprivError: there is none.
        """
        found = [client for client in self.store.clients(round) if self.federation.data.lacking(client) is None]
        if not found:
            raise FedprivError(f"round {round}: every client whose message was kept lacks the images or the texts")
        return found

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The kind of the run's samples: images, texts, or pairs of both."""
        dataset = self.federation.dataset
        there: dict[Modality, object] = {"image": dataset.images, "text": dataset.texts}
        return tuple(name for name, samples in there.items() if samples is not None)

    def _held(self, client: int) -> Tensor:
        return self.federation.data.indices("train", client).cpu()

    def _texts(self) -> tuple[Texts, Texts]:
        texts = self.federation.dataset.texts
        if texts is None:
            raise UsageError(f"{self.folder.path} was trained on images, and this needs texts")
        return texts

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        encoder, longest = self.federation.prepared.encoder, self.federation.config.data.max_tokens
        assert encoder is not None and longest is not None
        return tokenise(texts, encoder.tokenizer, longest)[0].long()

    def observation(
        self, message: Message, threat: ThreatModel, gradient: Mapping[str, Tensor] | None = None, training: bool = True
    ) -> Observation:
        """The message as an attacker under that threat model sees it.

        Shared are the changes of parameters that are sent in both directions. Hidden layers are known where the threat model says
        ``initial``: as the server sent them in this round, or broadcast them in round 0.

        Args:
            gradient: tensors to attack instead of the changes, by the net's names.
            training: whether the client computed them in training mode, and not in evaluation mode.

        Raises:
            UsageError: the threat model grants the present weights of layers that never left the client.
        """
        if threat.top == "current":
            raise UsageError("the current private weights of a client are never sent, so a run can only be attacked without them")
        federation = self.federation
        plain = plain_change(self, message) if gradient is None else PlainChange(dict(gradient))
        dataset, encoder = federation.dataset, federation.prepared.encoder
        victim = self._victim(frozenset(plain.of))
        net = victim.net if training else copy.deepcopy(victim.net).eval()
        text = None if encoder is None else text_facts(victim.net, encoder)
        known = message.num_examples if threat.num_examples else None
        schedule = self.schedule(message, known) if threat.schedule and known is not None and gradient is None else None
        idle = self._idle(message, known) if threat.schedule and known is not None and gradient is None else None
        observation = Observation(
            shared={victim.names[name]: tensor for name, tensor in plain.of.items() if name in victim.names},
            kind="change" if gradient is None else "gradient",
            weights=self._weights(message, victim, threat),
            net=net,
            input_shape=federation.resident.net.input_shape
            if text is None
            else (federation.config.data.max_tokens or text.length,),
            classes=len(dataset.classes),
            threat=threat,
            mean=tuple(dataset.mean) or (0.0,),
            std=tuple(dataset.std) or (1.0,),
            num_examples=known,
            schedule=None if schedule is None else schedule.renamed(victim.names),
            statistics={n: t for n, t in message.uploaded.items() if n.startswith(STATISTIC)},
            text=text,
            altered=UNALTERED if gradient is not None else self._altered(message).renamed(victim.names),
            loss=None if (objective := federation.method.objective).labels else f"{objective.name}, which looks at no label",
            idle=idle,
            penalty=idle if self.config.train.optimizer == "sgd" else None,
            unlike=(
                *unlike_controls(
                    self.config, net, federation.agreement.transforms, gradient is None, self._once(message), self._otherwise
                ),
                *([] if plain.open is None else [plain.open]),
                *([STILL] if gradient is None and known is not None and self._stands_still(message, known) else []),
            ),
        )
        if not threat.labels:
            return observation
        return replace(observation, labels=self.labels(message.client))

    def schedule(self, message: Message, num_examples: int, clipped: bool = True) -> Schedule | None:
        """See :func:`fedpriv.audit.evidence.local_steps.schedule_of`.

        Args:
            clipped: ``False``: as if ``train.clip_grad_norm`` had not clipped a gradient.
        """
        method, plain = self.federation.method, self.federation.method.objective.without_momentum(message.received)
        train = self.config.train if clipped else self.config.train.model_copy(update={"clip_grad_norm": None})
        return schedule_of(train, method, message.round, message.of_model, num_examples, message.parts, plain)

    def _idle(self, message: Message, num_examples: int) -> Callable[[Tensor], Tensor] | None:
        """What the client's steps do to weights that have no gradient, where :meth:`schedule` does not tell."""
        if self.config.privacy.level == "sample":  # noise moves them, too
            return None
        return idle_of(self.config.train, self.federation.method, message.round, message.of_model, num_examples, message.parts)

    def _stands_still(self, message: Message, num_examples: int) -> bool:
        """See :func:`fedpriv.audit.evidence.local_steps.stands_still`."""
        return stands_still(
            self.config.train, self.federation.method, message.round, message.of_model, num_examples, message.parts
        )

    def _once(self, message: Message) -> bool:
        """Whether each of the client's samples was in one local step, as one view of it."""
        objective, n = self.federation.method.objective, message.num_examples
        if n is None or self.config.privacy.level == "sample" or objective.views > 1:
            return False
        schedule = self.schedule(message, n)
        return schedule is not None and schedule.steps <= math.ceil(n / schedule.batch_size)

    def victim(self, message: Message) -> Victim:
        """The net as an attacker on the message sees it."""
        parameters = dict(self.federation.resident.net.named_parameters())
        return self._victim(frozenset(name for name in message.uploaded if name in parameters and name in message.received))

    def _victim(self, sent: frozenset[str]) -> Victim:
        """The net, cut after the last layer that was sent. Cached: hundreds of messages send the same layers."""
        if sent not in self._victims:
            self._victims[sent] = cut(self._net, sent)
        return self._victims[sent]

    @cached_property
    def _net(self) -> Net:
        """The net where messages are read, on the processor."""
        net = self.federation.resident.net
        return net if self.federation.resident.device.type == "cpu" else copy.deepcopy(net).cpu()

    @cached_property
    def _otherwise(self) -> bool:
        """Whether the net computes in training what attacks do not model; of pairs, dropout is seen by its layers alone."""
        if len(self.modalities) > 1:
            return False
        net, encoder = copy.deepcopy(self._net).float().train(), self.federation.prepared.encoder
        on_words = encoder is not None and text_facts(net, encoder) is not None
        return trains_otherwise(net, self.texts(self.messages()[0][1])[:2] if on_words else made_up(net.input_shape))

    def _altered(self, message: Message) -> Altered:
        """The message's alteration, by the net's names, with DP-SGD's clipping and noise of every step, which are public options.

        DP-SGD clips each sample's gradient. For one sample that is an unknown factor; several are treated as if it were one too.
        """
        privacy, altered = self.config.privacy, message.altered
        if privacy.level != "sample":
            return altered
        batch = self.config.train.batch_size
        steps = self.schedule(message, message.num_examples or batch)
        if steps is None or privacy.noise is None:
            return replace(altered, rescaled=True)
        held = (message.num_examples or batch * message.parts) / message.parts
        of_step = (privacy.noise * privacy.clip / min(batch, held)) ** 2 / message.parts
        variance = {name: of_step * noise_gain(steps.of(name)) + altered.variance.get(name, 0.0) for name in message.of_model}
        return replace(altered, rescaled=True, variance=variance)

    def started(self, message: Message, sent: Collection[str] | None = None) -> dict[str, Tensor] | None:
        """The weights at which the client began, by the names of :meth:`victim`, hidden ones too; attacks never get these.

        Args:
            sent: names of the tensors that are attacked, by the net's names, where those are not all of the model that were sent.

        Returns:
            ``None``: they were not kept; those of a first turn are the run's initial ones.
        """
        victim, space = self.victim(message) if sent is None else self._victim(frozenset(sent)), self.federation.resident.space
        initial = space.unpack(initial_row(self.federation, self.store.broadcast()).cpu()) if message.first_turn else {}
        known, wanted = {**initial, **self._public(), **message.received}, set(state_names(victim.net))
        names = {name: cut_name for name, cut_name in victim.names.items() if cut_name in wanted}
        return {cut_name: known[name] for name, cut_name in names.items()} if names.keys() <= known.keys() else None

    def _public(self) -> dict[str, Tensor]:
        """Constants that are never trained are public and not sent, so they are not part of the net's state."""
        space, held = self.federation.resident.space, self._net.state_dict()
        return {name: tensor for name, tensor in held.items() if name not in space and tensor.is_floating_point()}

    def _weights(self, message: Message, victim: Victim, threat: ThreatModel) -> dict[str, Tensor]:
        broadcast, public = self.store.broadcast(), self._public()
        known = {**public, **({} if broadcast is None else broadcast.tensors()), **message.received}
        hidden_too = threat.top == "initial"
        found = {}
        for name, cut_name in victim.names.items():
            is_hidden = cut_name.startswith("top.") and name not in message.uploaded and name not in public
            if name in known and (hidden_too or not is_hidden):
                found[cut_name] = known[name].clone()
        return found
