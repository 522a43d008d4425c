"""Flower's two apps: the client app relays a message to the client's long-lived process, the server app conducts a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedpriv.deploy.stream import MAX_HEAD_BYTES, MAX_PARTS, Broken, ask, check_growth
from fedpriv.errors import FedprivError

if TYPE_CHECKING:
    from fedpriv.deploy.frames import Frame
    from fedpriv.deploy.transport import Lost

POLL = 0.2
"""Seconds between attempts to reach the client's process."""
_LOST = {
    3: None,
    4: "its answer was lost on the way",
    5: "its node was gone",
    8: "its node's app ended",
}
"""Flower's error codes after which a message may be sent again -> reason; ``None``: its time to live has expired."""
MAX_RESTARTS = 3
"""Times that the client's process may end over one frame, for example for lack of memory."""


def relay(message: Message, context: Context) -> Message:
    """Pass a frame to the client's process, and its answer back. No error contains a path, as it is sent to the server."""
    try:
        head, parts = _ask_process(Path(str(context.node_config["socket"])), *_unpacked(message.content), message.metadata.ttl)
    except (OSError, EOFError, Broken) as error:
        head, parts = json.dumps({"error": f"its process does not answer ({type(error).__name__})"}).encode(), []
    return Message(_packed(head, parts), reply_to=message)


def _ask_process(address: Path, head: bytes, parts: list[bytes], seconds: float) -> tuple[bytes, list[bytes]]:
    """Ask the client's process, and if it ends, the one that replaces it: a repeated local update gives the same bytes."""
    until, restarts = time.monotonic() + seconds, 0
    while True:
        try:
            return ask(address, head, parts, max(1.0, until - time.monotonic()))
        except (ConnectionError, FileNotFoundError, EOFError) as error:
            restarts += isinstance(error, ConnectionResetError | EOFError)
            if restarts == MAX_RESTARTS or time.monotonic() > until:
                raise
        time.sleep(POLL)


def play(grid: Grid, context: Context) -> None:
    """Conduct the run of a request. Its file is named relative to the working directory, which is the deployment's folder."""
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.deploy.transport import Transport

    request = Request(Path(str(context.run_config["request"])).absolute())
    request.play(lambda clients, removed: Transport(FlowerNetwork(grid, clients), removed))


client_app = ClientApp()
client_app.query()(relay)
server_app = ServerApp()
server_app.main()(play)


class FlowerNetwork:
    """A :class:`~fedpriv.deploy.transport.Network` of Flower's messages. The node of client N is registered as ``client-N``."""

    def __init__(self, grid: Grid, clients: int) -> None:
        from fedpriv.deploy.flower.replies import Replies

        self._grid, self._clients, self._replies = grid, clients, Replies(grid)
        self._nodes = dict[int, int]()

    def connected(self) -> dict[int, str]:
        """As :meth:`fedpriv.deploy.transport.Network.connected`; a connection is the time at which the node joined."""
        connections: dict[int, str] = {}
        with _requests():
            nodes = list(self._grid.get_nodes())
        for node in nodes:
            prefix, _, number = node.name.partition("-")
            if prefix == "client" and number.isdecimal() and int(number) < self._clients:
                if int(number) in connections:
                    raise FedprivError(f"two nodes are registered as {node.name}; unregister one of them")
                connections[int(number)], self._nodes[int(number)] = node.last_activated_at, node.node_id
        return connections

    def send(self, frames: Mapping[int, Frame], seconds: float, round: int) -> dict[str, int]:
        """As :meth:`fedpriv.deploy.transport.Network.send`."""
        messages = [_message(frame, self._nodes[client], seconds, round) for client, frame in frames.items()]
        self._replies.sent = max([self._replies.sent, *(sum(map(len, frame.parts)) for frame in frames.values())])
        try:
            with _requests():
                sent = zip(self._grid.push_messages(messages), frames, strict=True)
        except ObjectPushError:  # the SuperLink ended meanwhile
            return {}
        return {ticket: client for ticket, client in sent if ticket}

    def receive(self, tickets: Iterable[str]) -> Iterator[tuple[str, Frame | str | Lost]]:
        """As :meth:`fedpriv.deploy.transport.Network.receive`."""
        with _requests():
            for ticket, reply in self._replies.pull(tickets):
                yield ticket, _answer(reply) if isinstance(reply, Message) else reply


@contextmanager
def _requests() -> Iterator[None]:
    """A block with requests to the SuperLink; ``GivenUp`` if it refuses them, as it has given up this app."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        from fedpriv.deploy.flower.requests import GivenUp

        raise GivenUp(f"the SuperLink does not know the server's app any more (HTTP {error.response.status_code})") from None


def _message(frame: Frame, node: int, seconds: float, round: int) -> Message:
    return Message(_packed(frame.head_bytes, frame.parts), node, "query", ttl=seconds, group_id=str(round))


def _packed(head: bytes, parts: Any) -> RecordDict:
    """A head and its parts as a message's content. Flower stores each part once for all receivers."""
    arrays = {f"{index:04d}": Array("uint8", (len(part),), "fedpriv.sealed", part) for index, part in enumerate(parts)}
    return RecordDict({"head": ConfigRecord({"head": head}), "parts": ArrayRecord(arrays)})


def _unpacked(content: RecordDict) -> tuple[bytes, list[bytes]]:
    try:
        head, arrays = content.config_records["head"]["head"], content.array_records["parts"]
    except KeyError:
        raise Broken("a message that holds no frame") from None
    if not isinstance(head, bytes):  # bytes(number) would allocate so many zeros
        raise Broken("a message whose head is no bytes")
    if len(head) > MAX_HEAD_BYTES or len(arrays) > MAX_PARTS:
        raise Broken(f"a message with a head of {len(head)} bytes and {len(arrays)} parts")
    parts = [arrays[name].data for name in sorted(arrays)]
    check_growth(sum(map(len, parts)), sum({id(part): len(part) for part in parts}.values()))  # names may share an array
    return head, parts


def _answer(reply: Message) -> Frame | str | Lost:
    from fedpriv.deploy.frames import Frame
    from fedpriv.deploy.transport import Lost
    from fedpriv.wire.message import Refused

    if reply.has_error():
        code = reply.error.code
        return Lost(_LOST[code]) if code in _LOST else f"Flower's error {code}"
    try:
        return Frame.of(*_unpacked(reply.content))
    except (Broken, Refused) as reason:
        return str(reason)
