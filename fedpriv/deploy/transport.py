"""Exchange of frames over an unreliable network: each frame is sent again until its client has answered, or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedpriv.deploy.frames import Frame

POLL = 0.2
"""Seconds between checks for answers."""
CONNECTION_POLL = 1.0
"""Seconds between checks of who is connected."""
JOIN, JOIN_AGAIN = 120.0, 5.0
"""Seconds that a client that is not connected has to come back; the second if it was given up in an earlier exchange."""
NOT_CONNECTED = "its node is not connected"
TRIES = 3
"""Times that a frame is sent within an exchange, at equal intervals, in case it was lost without an error."""


class NotSent(str):
    """Why a client that was sent nothing has not answered."""

    __slots__ = ()


@dataclass(frozen=True)
class Lost:
    """A frame or its answer was lost for a reason that may pass; ``None``: its time to live has expired."""

    why: str | None


class Network(Protocol):
    """A network between a server and numbered clients. It may lose or delay frames and answers."""

    def connected(self) -> Mapping[int, str]:
        """Client -> its connection; if that has changed, what was sent over the previous one is lost."""

    def send(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Mapping[str, int]:
        """Send frames with a time to live (seconds); ticket -> client, for those that were sent.

        Args:
            round: for logs.
        """

    def receive(self, tickets: Iterable[str]) -> Iterable[tuple[str, Frame | str | Lost]]:
        """What has arrived for tickets: (ticket, the answer, or why there will be none)."""


@dataclass
class _Pending:
    """A client whose answer is awaited.

    Attributes:
        since: when its frame was sent, or since when it waits to be sent.
        connection: over which it was sent; ``None``: it waits to be sent.
        lost: why the last frame was lost.
        sent: whether any was sent.
    """

    since: float
    connection: str | None = None
    lost: str | None = None
    sent: bool = False
    tickets: set[str] = field(default_factory=set)

    @property
    def away(self) -> str:
        """Why there is no answer, if the client is not connected."""
        return f"{NOT_CONNECTED} any more" if self.sent else NotSent(NOT_CONNECTED)

    def resend(self, why: str | None = None) -> None:
        """Mark the frame to be sent again."""
        self.since, self.connection, self.lost = time.monotonic(), None, why


class Transport:
    """A :class:`~fedpriv.deploy.remote_clients.Grid` over a network.

    A client that gets the same request again gives the same bytes, so the first answer is passed on and others are ignored.

    Args:
        removed: clients that the operator has removed -> a phrase on it; they are not waited for.
    """

    def __init__(self, network: Network, removed: Callable[[], Mapping[int, str]] = dict) -> None:
        self._network, self._removed = network, removed
        self._away = set[int]()

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """As :meth:`fedpriv.deploy.remote_clients.Grid.exchange`."""
        end = time.monotonic() + seconds
        waiting = {client: _Pending(end - seconds) for client in frames}
        connected, checked = dict[int, str](), -CONNECTION_POLL
        while waiting and (now := time.monotonic()) < end:
            if now >= checked + CONNECTION_POLL or any(pending.connection is None for pending in waiting.values()):
                connected, checked = dict(self._network.connected()), now
                for client, why in self._removed().items():
                    if (pending := waiting.pop(client, None)) is not None:
                        yield client, why if pending.sent else NotSent(why)
            for client, pending in waiting.items():
                if pending.connection is not None:
                    if connected.get(client, pending.connection) != pending.connection:
                        pending.resend("its node was started again")
                    elif now >= pending.since + seconds / TRIES:
                        pending.resend()
            reachable = {client: frames[client] for client in waiting.keys() & connected.keys()}
            self._send(reachable, waiting, connected, end - now, round)
            for client in [client for client, pending in waiting.items() if pending.connection is None]:
                if now > waiting[client].since + (JOIN_AGAIN if client in self._away else JOIN):
                    self._away.add(client)
                    yield client, waiting.pop(client).away
            yield from self._receive(waiting)
            if waiting:
                time.sleep(POLL)
        for client, pending in waiting.items():
            if client not in connected:
                yield client, pending.away
            elif pending.lost is not None:
                yield client, f"{pending.lost}, and it has not answered since"

    def _send(
        self,
        frames: Mapping[int, Frame],
        waiting: Mapping[int, _Pending],
        connected: Mapping[int, str],
        seconds: float,
        round: int,
    ) -> None:
        ready = {client: frame for client, frame in sorted(frames.items()) if waiting[client].connection is None}
        for ticket, client in (self._network.send(ready, seconds, round) if ready else {}).items():
            pending = waiting[client]
            pending.since, pending.connection, pending.sent = time.monotonic(), connected[client], True
            pending.tickets.add(ticket)
            self._away.discard(client)

    def _receive(self, waiting: dict[int, _Pending]) -> Iterator[tuple[int, Frame | str]]:
        senders = {ticket: client for client, pending in waiting.items() for ticket in pending.tickets}
        for ticket, answer in self._network.receive(senders) if senders else ():
            client = senders.get(ticket)
            if client not in waiting:
                continue
            if isinstance(answer, Lost):
                waiting[client].tickets.discard(ticket)
                if not waiting[client].tickets:
                    waiting[client].resend(answer.why)
            else:
                del waiting[client]
                yield client, answer
