"""Flower's two apps. That of a node hands its message to the client's resident process; that of the server plays a run."""

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

from fedpriv.deploy.flower.inflation import check_growth
from fedpriv.deploy.stream import LONGEST_HEAD, MOST_PARTS, Broken, ask
from fedpriv.errors import FedprivError

if TYPE_CHECKING:
    from fedpriv.deploy.frames import Frame
    from fedpriv.deploy.transport import Lost

POLL = 0.2
"""Seconds between questions whether the resident process is back."""
_LOST = {
    3: None,
    4: "its answer was lost on the way",
    5: "its node was gone",
    8: "its node's app ended",
}
"""Flower's errors after which a message may be sent again, in words; the first says that its time is over."""
MOST_ENDS = 3
"""Times that a resident process may end over one frame, such as for want of memory."""


def relay(message: Message, context: Context) -> Message:
    """Give a frame to the resident process, and its answer back. No error holds a path, as it crosses."""
    try:
        head, parts = _asked(Path(str(context.node_config["socket"])), *_unpacked(message.content), message.metadata.ttl)
    except (OSError, EOFError, Broken) as error:
        head, parts = json.dumps({"error": f"its process does not answer ({type(error).__name__})"}).encode(), []
    return Message(_packed(head, parts), reply_to=message)


def _asked(address: Path, head: bytes, parts: list[bytes], seconds: float) -> tuple[bytes, list[bytes]]:
    """Ask the resident process; where it ended, ask that which takes its place: a repeated local update gives the same bytes."""
    until, ended = time.monotonic() + seconds, 0
    while True:
        try:
            return ask(address, head, parts, max(1.0, until - time.monotonic()))
        except (ConnectionError, FileNotFoundError, EOFError) as error:
            ended += isinstance(error, ConnectionResetError | EOFError)
            if ended == MOST_ENDS or time.monotonic() > until:
                raise
        time.sleep(POLL)


def play(grid: Grid, context: Context) -> None:
    """Play the run that a file names, and note there how it ended; where that file is, is said from this process's folder."""
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.deploy.transport import Transport

    Request(Path(str(context.run_config["request"])).absolute()).play(lambda clients: Transport(FlowerPost(grid, clients)))


client_app = ClientApp()
client_app.query()(relay)
server_app = ServerApp()
server_app.main()(play)


class FlowerPost:
    """Carries each frame once, by Flower's messages. A client's node is the one whose key was registered as ``client-N``."""

    def __init__(self, grid: Grid, clients: int) -> None:
        from fedpriv.deploy.flower.replies import Replies

        self._grid, self._clients, self._replies = grid, clients, Replies(grid)
        self._nodes = dict[int, int]()

    def connected(self) -> dict[int, str]:
        """As :meth:`fedpriv.deploy.transport.Network.connected`; a connection is the time at which a node has joined."""
        found: dict[int, str] = {}
        with _admitted():
            nodes = list(self._grid.get_nodes())
        for node in nodes:
            prefix, _, number = node.name.partition("-")
            if prefix == "client" and number.isdecimal() and int(number) < self._clients:
                if int(number) in found:
                    raise FedprivError(f"two nodes are registered as {node.name}; unregister one of them")
                found[int(number)], self._nodes[int(number)] = node.last_activated_at, node.node_id
        return found

    def send(self, frames: Mapping[int, Frame], seconds: float, round: int) -> dict[str, int]:
        """As :meth:`fedpriv.deploy.transport.Network.send`."""
        messages = [_message(frame, self._nodes[client], seconds, round) for client, frame in frames.items()]
        self._replies.sent = max([self._replies.sent, *(sum(map(len, frame.parts)) for frame in frames.values())])
        try:
            with _admitted():
                sent = zip(self._grid.push_messages(messages), frames, strict=True)
        except ObjectPushError:  # the SuperLink ended while it got them
            return {}
        return {ticket: client for ticket, client in sent if ticket}

    def receive(self, tickets: Iterable[str]) -> Iterator[tuple[str, Frame | str | Lost]]:
        """As :meth:`fedpriv.deploy.transport.Network.receive`."""
        with _admitted():
            for ticket, reply in self._replies.pull(tickets):
                yield ticket, _answer(reply) if isinstance(reply, Message) else reply


@contextmanager
def _admitted() -> Iterator[None]:
    """A block in which the SuperLink is asked; where it does not know this app any more, a line says so."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        from fedpriv.deploy.flower.requests import GivenUp

        raise GivenUp(f"the SuperLink does not know the server's app any more (HTTP {error.response.status_code})") from None


def _message(frame: Frame, node: int, seconds: float, round: int) -> Message:
    return Message(_packed(frame.head_bytes, frame.parts), node, "query", ttl=seconds, group_id=str(round))


def _packed(head: bytes, parts: Any) -> RecordDict:
    """Large bytes as arrays: Flower stores an array once for all receivers, and sends it in pieces."""
    arrays = {f"{place:04d}": Array("uint8", (len(part),), "fedpriv.sealed", part) for place, part in enumerate(parts)}
    return RecordDict({"head": ConfigRecord({"head": head}), "parts": ArrayRecord(arrays)})


def _unpacked(content: RecordDict) -> tuple[bytes, list[bytes]]:
    try:
        head, parts = content.config_records["head"]["head"], content.array_records["parts"]
    except KeyError:
        raise Broken("a message that holds no frame") from None
    if not isinstance(head, bytes):  # of a number, bytes() would make that many zeros
        raise Broken("a message whose head is no bytes")
    if len(head) > LONGEST_HEAD or len(parts) > MOST_PARTS:
        raise Broken(f"a message with a head of {len(head)} bytes and {len(parts)} parts")
    found = [parts[name].data for name in sorted(parts)]
    check_growth(sum(map(len, found)), sum({id(one): len(one) for one in found}.values()))  # many names may be of one array
    return head, found


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
