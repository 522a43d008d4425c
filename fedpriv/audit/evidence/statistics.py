"""Statistics on the wire besides the model: what each reveals of a client, and which can be read as a gradient.

Everything goes by the names on the wire (:func:`fedpriv.wire.statistic`), so a statistic of a method that is not known here is
listed too, and one that is called like a gradient is attacked like one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from attacks.core.observation import Observation, ThreatModel
from fedpriv.audit.evidence.messages import Evidence, Message
from fedpriv.defenses.mask import Mask
from fedpriv.defenses.stage import Stage
from fedpriv.errors import UsageError
from fedpriv.seeding import generator
from fedpriv.server.sampling import participants
from fedpriv.wire import STATISTIC, Payload, TransformContext, statistic
from fedpriv.wire.coding import base_name, is_model

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of an entry, by safetensors' names of types."""


@dataclass(frozen=True)
class Meaning:
    """What a statistic reveals of the client, in words.

    Attributes:
        gradient: whether, tensor by tensor, it is a gradient of the client's loss (``whole``), or what a mean of the client's
            regularised gradients has changed by since its last turn (``change``); then it is attacked.
    """

    says: str
    gradient: Literal["", "whole", "change"] = ""


MEANINGS = {
    "variate": Meaning("what a mean of the client's gradients has changed by: the sum over all turns is the gradients", "change"),
    "gradient": Meaning("a gradient of the client's loss over its data", "whole"),
    "loss": Meaning("the client's loss: how well a model fits its data"),
    "steps": Meaning("the client's number of local steps, and so about its number of samples"),
    "step_weight": Meaning("how far the client's steps reach, which grows with their number, and so with its samples"),
    "moved": Meaning("how far the client's model moved"),
    "centers": Meaning("means of the client's embeddings by class"),
    "classes": Meaning("the classes that the client holds, in clear"),
    "counts": Meaning("how many samples of each class the client holds, in clear"),
}
"""By what the wire calls them."""
UNKNOWN = Meaning(
    "computed from the client's data by a method that this audit does not know; what it gives away was not measured"
)


def kind_of(name: str) -> str:
    """The kind of a statistic: ``statistic.variate/head.weight`` -> ``variate``."""
    return base_name(name).removeprefix(STATISTIC).partition("/")[0]


def kinds(names: Iterable[str]) -> list[str]:
    """The kinds of the statistics among the names, each once."""
    return list(dict.fromkeys(kind_of(name) for name in names if not is_model(name)))


def listed(evidence: Evidence) -> list[dict[str, Any]]:
    """Of each statistic that clients sent: tensors and bytes in a message, and what it says of the client."""
    found: dict[str, dict[str, Any]] = {}
    for message in evidence.messages():
        schema = evidence.store.upload(*message).schema
        for what in kinds(schema):
            those = [code for name, code in schema.items() if not is_model(name) and kind_of(name) == what]
            nbytes = sum(prod(shape) * BYTES[dtype] for dtype, shape in those)
            meaning = MEANINGS.get(what, UNKNOWN)
            found.setdefault(
                what,
                {"what": what, "tensors": len(those), "bytes": nbytes, "says": meaning.says, "attacked": bool(meaning.gradient)},
            )
    return list(found.values())


def gradient_like(message: Message) -> list[str]:
    """The statistics of a message that can be attacked as the model's change is."""
    return [what for what in kinds(message.uploaded) if MEANINGS.get(what, UNKNOWN).gradient]


def exposed(evidence: Evidence) -> tuple[str, ...]:
    """The statistics that cross the wire as the client computed them although a defence alters the model.

    By experiment, so that it holds of any transform: each is shown the message that the server would have, and what it leaves
    as it is counts.
    """
    first, agreement = evidence.message(*evidence.messages()[0]), evidence.federation.agreement
    draw = generator(evidence.config.seed, "statistics under defences")
    before: dict[str, Tensor] = {}
    for name, tensor in first.uploaded.items():
        if is_model(name) and name in first.received:
            tensor = first.received[name] + torch.randn(tensor.shape, generator=draw)  # a change that no clipping lets pass
        before[name] = tensor
    alters: set[str] = set()
    for transform in agreement.transforms:
        # What a mask drops is not in the message, and fewer digits hide nothing.
        if isinstance(transform, Mask) or getattr(transform, "stage", None) is Stage.DIGITS:
            continue
        payload = Payload(before, first.round, first.client, num_examples=first.num_examples)
        context = TransformContext(first.received, agreement.layers, draw, agreement.linear)
        after = transform(payload, context).tensors
        alters |= {name for name in before if name not in after or not torch.equal(after[name], before[name])}
    if not any(map(is_model, alters)):
        return ()
    changed = {kind_of(name) for name in alters if not is_model(name)}
    return tuple(what for what in kinds(before) if what not in changed)


def as_gradient(evidence: Evidence, message: Message, what: str, threat: ThreatModel, first_turn: bool = False) -> Observation:
    """A statistic as an attacker that reads gradients sees it: of the mean loss, at about the weights that the client was sent.

    Changes are added up over the client's turns; the weight decay that is part of them is taken off, to first order.

    Args:
        first_turn: it is the client's first turn.

    Raises:
        UsageError: it is a change, and not all that the client sent before was kept.
    """
    said = _said(message.uploaded, what)
    if MEANINGS[what].gradient == "change":
        for earlier in [] if first_turn else _earlier_turns(evidence, message):
            if earlier not in evidence.messages():
                raise UsageError(
                    f"{what} counts from the client's earlier turns, and that of round {earlier[0]} was not kept;"
                    " train with --keep-payloads all"
                )
            before = _said(evidence.message(*earlier).uploaded, what)
            said = {name: tensor + before[name] if name in before else tensor for name, tensor in said.items()}
        train = evidence.config.train
        for name, tensor in said.items():
            decay = train.weight_decay if tensor.ndim > 1 else train.weight_decay_bias
            said[name] = tensor - decay * message.received[name] if name in message.received else tensor
    return evidence.observation(message, threat, gradient=said)


def _said(uploaded: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """By the net's names."""
    prefix = statistic(what) + "/"
    return {name.removeprefix(prefix): tensor.float() for name, tensor in uploaded.items() if name.startswith(prefix)}


def _earlier_turns(evidence: Evidence, message: Message) -> Sequence[tuple[int, int]]:
    agreement, client = evidence.federation.agreement, message.client
    return [(r, client) for r in range(1, message.round) if client in participants(agreement, r)]
