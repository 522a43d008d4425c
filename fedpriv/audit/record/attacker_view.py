"""The messages of a run as an attacker under a threat model sees them, and the net: split where sharing ends."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fedpriv.attacks.core.altered import UNALTERED, Altered
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, TextFacts, ThreatModel, blank, state_names
from fedpriv.attacks.gradients.multistep import noise_gain
from fedpriv.audit.record.base import PlainChange
from fedpriv.audit.record.control_differences import control_differences, made_up, trains_otherwise
from fedpriv.audit.record.earlier_updates import continued
from fedpriv.audit.record.local_steps import LocalSteps
from fedpriv.audit.record.shadow_updates import initial_row
from fedpriv.errors import UsageError
from fedpriv.models.net import Net
from fedpriv.models.text.pretrained import Encoder
from fedpriv.models.text.transformer import TextEncoder
from fedpriv.wire import STATISTIC

if TYPE_CHECKING:
    from fedpriv.audit.record.base import Message
    from fedpriv.audit.record.run import RunRecord

STILL = "the client's only step had a learning rate of 0 (train.warmup_steps), so its message shows nothing of its samples"


@dataclass(frozen=True)
class Victim:
    """A net split where sharing ends.

    Attributes:
        net: ``body`` and ``top`` (:class:`fedpriv.attacks.core.observation.SplitNet`) in training mode, with NaN for every
            parameter (:func:`fedpriv.attacks.core.observation.blank`).
        names: of every parameter and buffer on the path to the logits, the net's name -> the split's
            (``encoder.conv1.weight`` -> ``body.encoder_conv1.weight``).
    """

    net: SplitNet
    names: Mapping[str, str]


class AttackerView:
    """What attackers see of the messages of a run, and know of how they were made."""

    def __init__(self, record: RunRecord) -> None:
        self._record, self._config, self._federation = record, record.config, record.federation
        self._victims: dict[frozenset[str], Victim] = {}

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
        record, method, transforms = self._record, self._federation.method, self._federation.agreement.transforms
        plain = PlainChange(gradient) if gradient is not None else record.plain_change(message)
        dataset, encoder, sends_change = self._federation.dataset, record.encoder, gradient is None
        victim = self._victim(frozenset(plain.of))
        net = victim.net if training else copy.deepcopy(victim.net).eval()
        text = None if encoder is None else text_facts(victim.net, encoder)
        known = message.num_examples if threat.num_examples else None
        steps = self.steps(message, known) if sends_change and known is not None else None
        stated = steps if threat.schedule else None
        schedule = None if stated is None else self.schedule(message, stated.examples)
        buffers = self.buffers(message) if sends_change else {}
        # DP-SGD's noise moves weights without a gradient, too.
        decayed = None if stated is None or self._config.privacy.level == "sample" else stated.without_gradient()
        observation = Observation(
            shared={victim.names[name]: tensor for name, tensor in plain.of.items() if name in victim.names},
            kind="change" if sends_change else "gradient",
            weights=self._weights(message, victim, threat),
            net=net,
            input_shape=record.input_shape if text is None else (self._federation.config.data.max_tokens or text.length,),
            classes=record.classes,
            threat=threat,
            mean=tuple(dataset.mean) or (0.0,),
            std=tuple(dataset.std) or (1.0,),
            num_examples=known,
            schedule=None if schedule is None else schedule.renamed(victim.names),
            statistics={n: t for n, t in message.uploaded.items() if n.startswith(STATISTIC)},
            text=text,
            encoding=record.encoding,
            altered=self._altered(message).renamed(victim.names) if sends_change else UNALTERED,
            loss=None if (objective := method.objective).labels else f"{objective.name}, which looks at no label",
            numbers=dataset.target is not None,
            zero_gradient_change=decayed,
            penalty=decayed if self._config.train.optimizer == "sgd" else None,
            buffers={victim.names[name]: tensor for name, tensor in buffers.items() if name in victim.names},
            passes=stated.passes(buffers) if stated is not None and buffers else None,
            control_differences=(
                *control_differences(self._config, net, transforms, sends_change, self._once(message), self._trains_otherwise),
                *([] if plain.open is None else [plain.open]),
                *([STILL] if steps is not None and steps.stand_still() else []),
            ),
        )
        return replace(observation, labels=record.labels(message.client)) if threat.labels else observation

    def steps(self, message: Message, num_examples: int, clipped: bool = True) -> LocalSteps:
        """The client's local steps.

        Args:
            clipped: ``False``: as if ``train.clip_grad_norm`` had not clipped a gradient.
        """
        train = self._config.train if clipped else self._config.train.model_copy(update={"clip_grad_norm": None})
        about = (message.round, message.of_model, num_examples, message.parts, continued(self._record, message))
        return LocalSteps(train, self._federation.method, *about)

    def schedule(self, message: Message, num_examples: int, clipped: bool = True) -> Schedule | None:
        """See :meth:`fedpriv.audit.record.local_steps.LocalSteps.schedule`."""
        plain = self._federation.method.objective.without_momentum(message.received)
        return self.steps(message, num_examples, clipped).schedule(plain)

    def buffers(self, message: Message) -> dict[str, Tensor]:
        """The net's buffers that a client sent, such as running means, by the net's names."""
        names = dict(self._federation.resident.net.named_buffers())
        return {name: tensor for name, tensor in message.uploaded.items() if name in names and name in message.received}

    def _once(self, message: Message) -> bool:
        """Whether each of the client's samples was in one local step, as one view of it."""
        objective, n = self._federation.method.objective, message.num_examples
        if n is None or self._config.privacy.level == "sample" or objective.views > 1:
            return False
        schedule = self.schedule(message, n)
        return schedule is not None and schedule.steps <= math.ceil(n / schedule.batch_size)

    def victim(self, message: Message) -> Victim:
        """The net as an attacker on the message sees it."""
        parameters = dict(self._federation.resident.net.named_parameters())
        return self._victim(frozenset(name for name in message.uploaded if name in parameters and name in message.received))

    def _victim(self, sent: frozenset[str]) -> Victim:
        """The net, cut after the last layer that was sent. Cached: hundreds of messages send the same layers."""
        if sent not in self._victims:
            self._victims[sent] = cut(self._net, sent)
        return self._victims[sent]

    @cached_property
    def _net(self) -> Net:
        """The net where messages are read, on the processor."""
        net = self._federation.resident.net
        return net if self._federation.resident.device.type == "cpu" else copy.deepcopy(net).cpu()

    @cached_property
    def _trains_otherwise(self) -> bool:
        """Whether the net in training is random, or computes what attacks do not model.

        For image-text pairs only dropout layers are detected; the net is not run.
        """
        if len(self._record.modalities) > 1:
            return False
        net, encoder = copy.deepcopy(self._net).float().train(), self._record.encoder
        if encoder is None or text_facts(net, encoder) is None:
            return trains_otherwise(net, made_up(net.input_shape))
        _, client = self._record.messages()[0]
        return trains_otherwise(net, self._record.texts(client)[:2])

    def _altered(self, message: Message) -> Altered:
        """The message's alteration, by the net's names, with DP-SGD's clipping and noise of every step, which are public options.

        Clipping scales one sample's gradient by one unknown factor; for several samples we pretend that there is one, too.
        """
        privacy, altered = self._config.privacy, message.altered
        if privacy.level != "sample":
            return altered
        batch = self._config.train.batch_size
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
            sent: the net's names of the attacked tensors, if fewer than all tensors of the model that were sent.

        Returns:
            ``None``: they were not kept. For a client's first update the run's initial weights are used.
        """
        victim = self.victim(message) if sent is None else self._victim(frozenset(sent))
        broadcast, space = self._record.store.broadcast(), self._federation.resident.space
        initial = space.unpack(initial_row(self._federation, broadcast).cpu()) if message.first_update else {}
        known, wanted = {**initial, **self._public, **message.received}, set(state_names(victim.net))
        names = {name: cut_name for name, cut_name in victim.names.items() if cut_name in wanted}
        return {cut_name: known[name] for name, cut_name in names.items()} if names.keys() <= known.keys() else None

    @cached_property
    def _broadcast(self) -> Mapping[str, Tensor]:
        """What the server broadcast in round 0."""
        broadcast = self._record.store.broadcast()
        return {} if broadcast is None else broadcast.tensors()

    @cached_property
    def _public(self) -> dict[str, Tensor]:
        """Constants that are never trained are public and not sent, so they are not part of the net's state."""
        space, held = self._federation.resident.space, self._net.state_dict()
        return {name: tensor for name, tensor in held.items() if name not in space and tensor.is_floating_point()}

    def _weights(self, message: Message, victim: Victim, threat: ThreatModel) -> dict[str, Tensor]:
        public = self._public
        known = {**public, **self._broadcast, **message.received}
        hidden_too = threat.top == "initial"
        weights = {}
        for name, cut_name in victim.names.items():
            is_hidden = cut_name.startswith("top.") and name not in message.uploaded and name not in public
            if name in known and (hidden_too or not is_hidden):
                weights[cut_name] = known[name].clone()
        return weights


def cut(net: Net, sent: Collection[str]) -> Victim:
    """Split the net so that ``top`` holds the hidden layers at its end; where the last layer is sent, ``top`` is that layer.

    Sequential roles are split between their layers, other roles are not split. Hidden layers further in belong to ``body``. What
    is not on the path to the logits, as the predictor, belongs to neither.

    Args:
        sent: names of the tensors that were sent.
    """
    steps = [step for role in net.path for step in _steps(role, getattr(net, role))]
    owned = [{f"{prefix}.{name}" for name, _ in module.named_parameters()} for prefix, module in steps]
    has_parameters = [i for i, names in enumerate(owned) if names]
    seen = [i for i in has_parameters if owned[i] & set(sent)]
    after = [i for i in has_parameters if i > (seen[-1] if seen else -1)]
    at = after[0] if after else has_parameters[-1]
    names = {}
    for i, (prefix, module) in enumerate(steps):
        part = f"{'body' if i < at else 'top'}.{prefix.replace('.', '_')}"
        for name in (*dict(module.named_parameters()), *dict(module.named_buffers())):
            names[f"{prefix}.{name}"] = f"{part}.{name}"
    return Victim(blank(SplitNet(_chain(steps[:at]), _chain(steps[at:]))).train(), names)


def _steps(role: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(module, nn.Identity):
        return []
    if type(module) is nn.Sequential:
        return [(f"{role}.{name}", layer) for name, layer in module.named_children()]
    return [(role, module)]


def _chain(steps: list[tuple[str, nn.Module]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((prefix.replace(".", "_"), module) for prefix, module in steps))


def text_facts(net: nn.Module, encoder: Encoder) -> TextFacts | None:
    """The facts of the text encoder in ``net``; ``None`` where the net has none (its inputs are features)."""
    within = next((module for module in net.modules() if isinstance(module, TextEncoder)), None)
    if within is None:
        return None
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    tables = {
        name.rpartition(".")[2]: module for name, module in within.transformer.named_modules() if isinstance(module, nn.Embedding)
    }
    places = tables.get("position_embeddings")
    return TextFacts(
        words=names[id(within.transformer.get_input_embeddings().weight)],
        positions=None if places is None else names[id(places.weight)],
        pad=encoder.pad,
        special=specials(encoder),
        length=encoder.length,
        opens=opening(encoder),
        unknown=encoder.unknown,
    )


def specials(encoder: Encoder) -> tuple[int, ...]:
    """The ids that every sentence has: those of the empty text."""
    return tuple(encoder.tokenizer("")["input_ids"])


def opening(encoder: Encoder) -> int:
    """How many of :func:`specials` are before the words: of BERT's one, of T5's none."""
    every, some = specials(encoder), tuple(encoder.tokenizer("a")["input_ids"])
    fits = (n for n in range(len(every) + 1) if some[:n] == every[:n] and some[len(some) - len(every) + n :] == every[n:])
    return next(fits, 1)
