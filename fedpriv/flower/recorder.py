"""Records what a Flower app sends, on the side of the clients or of the server; no message is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedpriv.flower.wrapping import Merged, WrappedStrategy
from fedpriv.recorder.layout import SPENT, Kind
from fedpriv.recorder.reader import is_record
from fedpriv.recorder.start import recording, recording_of_run
from fedpriv.recorder.writer import OtherRecord, Recording

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]
Samples = tuple[Any, Any]
"""Images ``(n, C, H, W)`` in [0, 1] and labels ``(n,)``."""
_EXAMPLES = ("num-examples", "num_examples")


def record(
    folder: str | os.PathLike[str],
    *,
    truth: Callable[[Context], Samples] | None = None,
    public: Callable[[], Samples] | None = None,
    kind: Kind = "weights",
    **facts: Any,
) -> Mod:
    """A mod that records what a client is sent for training and what it answers, for :func:`fedpriv.audit`.

    Put it first among the mods, so that it sees what is really sent, after all others::

        app = ClientApp(mods=[fedpriv.flower.record("record", classes=10, input_shape=(3, 32, 32), net="my_app:Net",
                                                     training={"lr": 0.1, "local_epochs": 1, "batch_size": 32})])

    It works for apps of the message API and for those of ``NumPyClient``, in simulations and in deployments. In a deployment each
    client writes its own record. The masked numbers of secure aggregation are not recorded: after ``secaggplus_mod`` it records
    what the client hands to that, and the server never sees.

    Args:
        folder: relative to where the SuperLink or SuperNode was started. If it holds the record of another run, this run's is
            written beside it, with the run's number at the end of its name.
        truth: returns the client's training samples, to score attacks against; they stay in the folder.
        public: returns samples of the same kind that are no client's.
        kind: what a client answers: new weights, or the change of the weights.
        facts: see :func:`fedpriv.recording`.
    """
    writers = dict[int, _ClientRecorder]()

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        if not is_training(message) or is_masked(message):
            return call_next(message, context)
        writer = writers.get(os.getpid())
        if writer is None:
            recording = recording_of_run(folder, _framework(), context.run_id, facts)
            writer = writers[os.getpid()] = _ClientRecorder(recording, kind, truth, public)
        sent = arrays_of(message)  # before training, which may write into them
        reply = call_next(message, context)
        writer.keep(message, context, sent, reply)
        return reply

    return mod


class _ClientRecorder:
    """Writes the messages of the clients that run in this process."""

    def __init__(
        self,
        writer: Recording,
        kind: Kind,
        truth: Callable[[Context], Samples] | None,
        public: Callable[[], Samples] | None,
    ) -> None:
        self.writer, self.kind, self.truth = writer, kind, truth
        self._known = set[str]()
        self._rounds = dict[str, int]()
        if public is not None:
            self.writer.public(*public())

    def keep(self, message: Message, context: Context, sent: Mapping[str, NDArray[Any]], reply: Message) -> None:
        """Record a client's round."""
        client = str(context.node_config.get("partition-id", context.node_id))
        number = _round(message, self._rounds.get(client, 0) + 1)
        self._rounds[client] = number
        if self.truth is not None and client not in self._known:
            self.writer.truth(client, *self.truth(context))
            self._known.add(client)
        self.writer.sent(number, client, sent)
        if reply.has_error():
            self.writer.refused(number, client, reply.error.reason or "")
        else:
            spent: Mapping[str, Any] = context.state.config_records.get(SPENT, {})
            self.writer.answered(
                number,
                client,
                arrays_of(reply),
                kind=self.kind,
                num_examples=_examples(reply),
                epsilon=spent.get("epsilon"),
                delta=spent.get("delta"),
            )


class RecordedStrategy(WrappedStrategy):
    """A strategy that records what the server sends for training and what it is answered::

        strategy = fedpriv.flower.RecordedStrategy(FedAvg(), "record", classes=10, input_shape=(3, 32, 32))

    The samples of clients are not at the server, so :meth:`fedpriv.recorder.writer.Recording.truth` has to add those of the
    clients that are to be audited.

    Args:
        strategy: what it does is done as before.
        folder, kind, facts: see :func:`record`.

    Raises:
        UsageError: the folder holds another record, or a fact is not as :func:`fedpriv.recording` takes it.
    """

    def __init__(self, strategy: Strategy, folder: str | os.PathLike[str], *, kind: Kind = "weights", **facts: Any) -> None:
        super().__init__(strategy)
        self.kind = kind
        if is_record(Path(folder)):
            raise OtherRecord(f"{os.fspath(folder)} holds the record of another run; give an empty folder")
        self.recording = recording(folder, **{"framework": _framework(), **facts})

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        for message in messages:
            self.recording.sent(server_round, message.metadata.dst_node_id, arrays_of(message))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Merged:
        answers = list(replies)
        for reply in answers:
            client = reply.metadata.src_node_id
            if reply.has_error():
                self.recording.refused(server_round, client, reply.error.reason or "")
            else:
                arrays, examples = arrays_of(reply), _examples(reply)
                self.recording.answered(server_round, client, arrays, kind=self.kind, num_examples=examples)
        return super().aggregate_train(server_round, answers)


def _framework() -> str:
    from importlib.metadata import version

    return f"Flower {version('flwr')}"


def is_training(message: Message) -> bool:
    """Whether a message asks a client to train."""
    return bool(message.metadata.message_type.partition(".")[0] == MessageType.TRAIN)


def is_masked(message: Message) -> bool:
    """Whether a message is a step of Flower's secure aggregation, as a mod that stands before ``secaggplus_mod`` sees it."""
    return Key.STAGE in message.content.config_records.get(RECORD_KEY_CONFIGS, {})


def arrays_of(message: Message) -> dict[str, NDArray[Any]]:
    """Copies of the arrays of a message, by name; those of ``NumPyClient`` are named by their numbers. What is sent besides the
    first record of arrays, the net's, is named as in :class:`fedpriv.recorder.layout.Line`."""
    records = enumerate(message.content.array_records.items())
    return {
        f"statistic.{key}.{name}" if place else name: array.numpy()
        for place, (key, arrays) in records
        for name, array in arrays.items()
    }


def _round(message: Message, otherwise: int) -> int:
    """The server's round, from the config of the message API, or from the group of the older API."""
    for config in message.content.config_records.values():
        if isinstance(number := config.get("server-round"), int):
            return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() and int(group) > 0 else otherwise


def _examples(reply: Message) -> int | None:
    """The number of samples that a client states; ``None``: it states none."""
    for metrics in reply.content.metric_records.values():
        for name in _EXAMPLES:
            if isinstance(number := metrics.get(name), int | float):
                return int(number)
    return None
