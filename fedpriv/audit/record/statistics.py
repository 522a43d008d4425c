"""What is sent besides the layers that give the logits: what each part reveals of a client, and how it is attacked.

Statistics are recognised by their names on the wire (:func:`fedpriv.wire.statistic`). So statistics of unknown methods are
listed, too. A statistic whose kind is a gradient in :data:`MEANINGS` is attacked as one. Buffers and side layers of the model
are only listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.earlier_updates import earlier_updates
from fedpriv.audit.results.wire import Statistic
from fedpriv.defenses.mask import Mask
from fedpriv.defenses.stage import Stage
from fedpriv.errors import UsageError
from fedpriv.models.net import Net
from fedpriv.models.snapshot import unchanged
from fedpriv.models.state import changed_by_data
from fedpriv.noise_source import SeededNoise
from fedpriv.seeding import generator
from fedpriv.wire import STATISTIC, Payload, TransformContext, statistic
from fedpriv.wire.coding import base_name, is_model

if TYPE_CHECKING:
    from fedpriv.audit.record.run import RunRecord

Schema = Mapping[str, tuple[str, Sequence[int]]]
"""(Data type, shape) of the tensors of a message, by name."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of an entry, by safetensors' type names."""
RUNNING, BUFFERS, CONSTANTS, ASIDE = "running statistics", "buffers", "constants", "layers that give no logits"
"""Parts of the model by their kind, as :func:`kinds_of_model` has them."""
OF_MODEL = frozenset((RUNNING, BUFFERS, CONSTANTS, ASIDE))


@dataclass(frozen=True)
class Meaning:
    """What a statistic reveals of the client.

    Attributes:
        gradient: ``whole``: the gradient of the client's loss itself, in evaluation mode. ``change``: the client keeps a mean
            gradient (weight decay included) and sends how much it changed since its last local update. Both are attacked.
            Empty: the statistic is no gradient.
        otherwise: how the statistic is attacked if not as a gradient.
    """

    says: str
    gradient: Literal["", "whole", "change"] = ""
    otherwise: str = ""


MEANINGS = {
    "variate": Meaning(
        "the change of a mean of the client's gradients, which sums to that mean over all local updates", "change"
    ),
    "gradient": Meaning("a gradient of the client's loss over its data", "whole"),
    "loss": Meaning("the client's loss: how well a model fits its data"),
    "steps": Meaning("the client's number of local steps, and so about its number of samples"),
    "step_weight": Meaning("a weight that grows with the client's number of local steps, and so with its samples"),
    "moved": Meaning("how far the client's model moved"),
    "centers": Meaning("means of the client's embeddings by class", otherwise="inverted; for membership"),
    "classes": Meaning("the classes that the client holds, in clear", otherwise="read"),
    "holders": Meaning("how many of the clients in a sum hold each class, in clear: a centre of one holder is that client's"),
    "counts": Meaning("how many samples of each class the client holds, in clear", otherwise="read"),
    RUNNING: Meaning(
        "averages over the client's batches of the mean and variance of each BatchNorm layer's inputs",
        otherwise="for membership; for the images' mean colour",
    ),
    CONSTANTS: Meaning("nothing: buffers that training leaves as they are", otherwise="nothing to attack"),
    ASIDE: Meaning("a change by the client's samples, as in other layers; attacks follow the layers that give the logits"),
}
"""By kind of statistic, or of part of the model. :data:`BUFFERS` are not among them: what a net writes there is not known."""
UNKNOWN = Meaning("computed from the client's data by a method that this audit does not know; what it reveals was not measured")


def kind_of(name: str) -> str:
    """The kind of a statistic: ``statistic.variate/head.weight`` -> ``variate``."""
    return base_name(name).removeprefix(STATISTIC).partition("/")[0]


def kinds(names: Iterable[str]) -> list[str]:
    """The kinds of the statistics among the names, each once."""
    return list(dict.fromkeys(kind_of(name) for name in names if not is_model(name)))


def kinds_of_model(net: Net) -> dict[str, str]:
    """The kinds of a net's tensors that are listed besides the model, by name; of the others, attacks read the change."""
    normal = {
        f"{where}.{name}"
        for where, module in net.named_modules()
        if isinstance(module, _BatchNorm)
        for name, _ in module.named_buffers(recurse=False)
    }
    buffers = {name for name, tensor in net.named_buffers() if tensor.is_floating_point()}
    changed: set[str] = set()
    if buffers - normal:
        with unchanged(net):
            changed = set(changed_by_data(net.train()))
    by_kind = {name: RUNNING if name in normal else BUFFERS if name in changed else CONSTANTS for name in buffers}
    aside = [name for name, _ in net.named_parameters() if name.partition(".")[0] not in net.path]
    aside += [name for name in buffers if name.partition(".")[0] not in net.path and by_kind[name] != CONSTANTS]
    return by_kind | dict.fromkeys(aside, ASIDE)


def kinds_besides(names: Iterable[str], of_model: Mapping[str, str]) -> list[str]:
    """The kinds of the tensors of a message that are not layers on the way to the logits, each once.

    Args:
        of_model: see :func:`kinds_of_model`.
    """
    every = (_kind(name, of_model) for name in names)
    return list(dict.fromkeys(kind for kind in every if kind is not None))


def _kind(name: str, of_model: Mapping[str, str]) -> str | None:
    return of_model.get(base_name(name)) if is_model(name) else kind_of(name)


def listed(schemas: Iterable[Schema], of_model: Mapping[str, str]) -> tuple[Statistic, ...]:
    """For each kind of what is sent besides the layers that give the logits: tensors and bytes per message, and what it reveals.

    Args:
        schemas: the schemas of the messages.
        of_model: see :func:`kinds_of_model`.
    """
    statistics = dict[str, Statistic]()
    for schema in schemas:
        for what in kinds_besides(schema, of_model):
            sizes = [code for name, code in schema.items() if _kind(name, of_model) == what]
            meaning = MEANINGS.get(what, UNKNOWN)
            statistic = Statistic(
                what=what,
                tensors=len(sizes),
                bytes=sum(prod(shape) * BYTES[dtype] for dtype, shape in sizes),
                says=meaning.says,
                known=what in MEANINGS,
                gradient=bool(meaning.gradient),
                otherwise=meaning.otherwise,
            )
            statistics.setdefault(what, statistic)
    return tuple(statistics.values())


def exposed(record: RunRecord) -> tuple[str, ...]:
    """The statistics that no defence alters, although one alters the model.

    Each transform is applied to a test message, so that this holds for any transform.
    """
    first, agreement = record.message(*record.messages()[0]), record.federation.agreement
    noise = generator(record.config.seed, "statistics under defences")
    before: dict[str, Tensor] = {}
    for name, tensor in first.uploaded.items():
        if is_model(name) and name in first.received:
            tensor = first.received[name] + torch.randn(tensor.shape, generator=noise)  # large enough that clipping alters it
        before[name] = tensor
    alters: set[str] = set()
    for transform in agreement.transforms:
        # Masked statistics are not in the message; lower precision does not count as protection.
        if isinstance(transform, Mask) or getattr(transform, "stage", None) is Stage.DIGITS:
            continue
        payload = Payload(before, first.round, first.client, num_examples=first.num_examples)
        context = TransformContext(first.received, agreement.layers, SeededNoise(noise), agreement.linear)
        after = transform(payload, context).tensors
        alters |= {name for name in before if name not in after or not torch.equal(after[name], before[name])}
    of_model = kinds_of_model(record.federation.resident.net)
    changed = {_kind(name, of_model) for name in alters}
    if None not in changed:
        return ()
    return tuple(what for what in kinds_besides(before, of_model) if what not in changed and what != CONSTANTS)


def as_gradient(record: RunRecord, message: Message, what: str, threat: ThreatModel) -> Observation:
    """A statistic as the gradient of the mean loss, approximately at the weights that the client was sent.

    Changes are summed over the client's local updates; the weight decay in them is subtracted, to first order. AdamW's decay is
    not part of the gradient.

    Raises:
        UsageError: it is a change, and not all earlier messages of the client were kept; for sums: or earlier sums were of other
            clients.
    """
    gradients, is_change = named(message.uploaded, what), MEANINGS[what].gradient == "change"
    if is_change:
        try:
            earlier = [named(update.uploaded, what) for update in earlier_updates(record, message)]
        except UsageError as reason:
            raise UsageError(f"{what} is a change since the client's last local update, and {reason}") from None
        for before in earlier:
            gradients = {name: tensor + before[name] if name in before else tensor for name, tensor in gradients.items()}
        train = record.config.train
        of_weights, of_biases = (train.weight_decay, train.weight_decay_bias) if train.options.decays_in_gradient else (0.0, 0.0)
        for name, tensor in gradients.items():
            decay = of_weights if tensor.ndim > 1 else of_biases
            gradients[name] = tensor - decay * message.received[name] if name in message.received else tensor
    return record.attacker.observation(message, threat, gradients, training=is_change)


def named(uploaded: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """By the net's names."""
    prefix = statistic(what) + "/"
    return {name.removeprefix(prefix): tensor.float() for name, tensor in uploaded.items() if name.startswith(prefix)}
