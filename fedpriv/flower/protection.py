"""Defences for a Flower app: clipping and noise at the client, an epsilon where it is asked for, and a server that insists."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedpriv.api.keys import transforms as named_transforms
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.flower.recorder import CallNext, Mod, arrays_of, is_masked, is_training
from fedpriv.flower.wrapping import Merged, WrappedStrategy
from fedpriv.noise_source import SecretNoise
from fedpriv.privacy.accountant import epsilon
from fedpriv.recorder.layout import SPENT
from fedpriv.wire import Payload, Transform, TransformContext

_AFTER = "mods that mask or compress come first: mods=[secaggplus_mod, protect(...)]"
_SLACK = 5.0
"""Standard deviations by which the norm of noise may exceed its mean."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ClientDP:
    """Differential privacy of each upload, against the server too: a client's whole data may be replaced by none.

    Attributes:
        noise: standard deviation of the noise on every entry, as a multiple of ``clip``.
        clip: bound on the L2 norm of the change.
        target_epsilon: the client answers no further round that would exceed it.
    """

    noise: float = Field(gt=0)
    clip: float = Field(1.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    target_epsilon: float | None = Field(None, gt=0)

    @property
    def transforms(self) -> list[dict[str, Any]]:
        """The transforms of an answer, as in a config's ``wire.transforms``."""
        return [{"name": "clip", "norm": self.clip}, {"name": "gaussian", "variance": (self.noise * self.clip) ** 2}]

    def epsilon(self, rounds: int) -> float:
        """Epsilon after so many answers of a client, each of which it gives for certain."""
        return epsilon([(self.noise, 1.0, rounds)], self.delta, "prv") if rounds else 0.0


def protect(transforms: str = "", *, dp_client: Mapping[str, Any] | ClientDP | None = None) -> Mod:
    """A mod that clips a client's change and adds noise before it is sent.

    ::

        app = ClientApp(mods=[fedpriv.flower.record("record", ...), fedpriv.flower.protect("clip:norm=1 gaussian:variance=1e-4")])

    Noise is drawn from the operating system's secret numbers. Arrays keep their names, shapes and types, so that any strategy can
    merge them. Mods that compress or mask arrays, such as ``secaggplus_mod``, stand before this one and act on its answer; in
    another order, the client answers with an error. Masking hides single answers from the server, and the noise stays in their
    sum. Metrics, such as the loss and the number of samples, and answers to evaluations do not change; no epsilon covers them.

    Args:
        transforms: as ``--defense`` of ``fedpriv train``, one after another: ``clip``, ``gaussian``, ``laplace``.
        dp_client: ``{"noise": 1.0, "clip": 1.0, "delta": 1e-5, "target_epsilon": 8}`` in place of transforms, see
            :class:`ClientDP`. The number of answers is kept in the client's state, so a restart does not forget it.

    Raises:
        UsageError: a transform or an option is unknown, or changes the form of a message.
    """
    if bool(transforms.strip()) == (dp_client is not None):
        raise UsageError('protect: transforms, such as "clip:norm=1 gaussian:variance=1e-4", or dp_client')
    private = None if dp_client is None else _client_dp(dp_client)
    wanted = named_transforms(transforms.split()) if private is None else private.transforms
    built: list[Transform] = build_transforms(wanted)
    if changed := [str(transform) for transform in built if hasattr(transform, "expects")]:
        raise UsageError(f"protect: {changed[0]} changes the form of a message, which the app's strategy would not understand")

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        if not is_training(message):
            return call_next(message, context)
        if is_masked(message):
            return _refused(message, f"it stands before secaggplus_mod, whose numbers are masked; {_AFTER}")
        if private is not None and (why := _spend(private, context)) is not None:
            return _refused(message, why)
        received = arrays_of(message)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if (name := _of_another_form(received, arrays_of(reply))) is not None:
            return _refused(
                message, f"array {name} of the answer has another name, shape or type than what was received; {_AFTER}"
            )
        return _transformed(reply, received, built)

    return mod


def _refused(message: Message, why: str) -> Message:
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"fedpriv.flower.protect: {why}"), reply_to=message)


def _of_another_form(received: Mapping[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """The first array of an answer that is not a new value of one that was received."""
    for name, array in arrays.items():
        before = received.get(name)
        if before is None or (before.shape, before.dtype) != (array.shape, array.dtype):
            return name
    return None


def _client_dp(given: Mapping[str, Any] | ClientDP) -> ClientDP:
    try:
        return TypeAdapter(ClientDP).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"protect: dp_client.{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None


def _spend(private: ClientDP, context: Context) -> str | None:
    """Book an answer in the client's state; why it may not be given, if that would exceed the budget."""
    state = context.state.config_records.get(SPENT, ConfigRecord())
    answers = cast(int, state.get("answers", 0)) + 1
    after = private.epsilon(answers)
    if private.target_epsilon is not None and after > private.target_epsilon:
        return (
            f"answer {answers} would spend epsilon {after:.3g} at delta {private.delta:g}, over "
            f"target_epsilon {private.target_epsilon:g}"
        )
    context.state.config_records[SPENT] = ConfigRecord({"answers": answers, "epsilon": after, "delta": private.delta})
    return None


def _transformed(reply: Message, received: Mapping[str, NDArray[Any]], built: Iterable[Transform]) -> Message:
    """The reply with its arrays transformed."""
    start = {name: torch.as_tensor(array) for name, array in received.items()}
    arrays = arrays_of(reply)
    payload = Payload({name: torch.as_tensor(array) for name, array in arrays.items()}, round=1)
    for transform in built:
        payload = transform(payload, TransformContext(start, tuple(arrays), SecretNoise(secrets.token_bytes(32))))
    (key,) = reply.content.array_records
    reply.content.array_records[key] = ArrayRecord(
        {name: Array(np.asarray(payload.tensors[name].numpy(), dtype=array.dtype)) for name, array in arrays.items()}
    )
    return reply


class RequireClip(WrappedStrategy):
    """A strategy that leaves out answers whose change is longer than clients may send.

    It sees the norm alone: it cannot tell whether noise was added, or noise of which strength.

    Args:
        strategy: what it does with the other answers is done as before.
        norm: the bound to which clients clip.
        noise_std: standard deviation of the noise that they add to every entry.
    """

    def __init__(self, strategy: Strategy, norm: float, noise_std: float = 0.0) -> None:
        super().__init__(strategy)
        self.norm, self.noise_std = norm, noise_std
        self.refused = dict[int, list[int]]()
        """Round -> nodes whose answers were left out."""
        self._sent = dict[str, NDArray[Any]]()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        if messages:
            self._sent = arrays_of(messages[0])
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Merged:
        answers = list(replies)
        kept = [reply for reply in answers if reply.has_error() or self._is_short(reply)]
        self.refused[server_round] = [reply.metadata.src_node_id for reply in answers if reply not in kept]
        return super().aggregate_train(server_round, kept)

    def _is_short(self, reply: Message) -> bool:
        arrays = arrays_of(reply)
        if arrays.keys() != self._sent.keys():
            return False
        changes = [np.asarray(array, np.float64) - self._sent[name] for name, array in arrays.items()]
        entries, length = sum(change.size for change in changes), math.sqrt(sum(float((c**2).sum()) for c in changes))
        most = self.norm + self.noise_std * (math.sqrt(entries) + _SLACK)
        return math.isfinite(length) and length <= most * (1 + 1e-5)
