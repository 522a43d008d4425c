"""Frames over a network that loses some: each is sent again until its client has answered, or the time is up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedpriv.deploy.frames import Frame

POLL = 0.2
"""Seconds between questions for answers."""
LOOK = 1.0
"""Seconds between looks at who is connected."""
JOIN, JOIN_AGAIN = 120.0, 5.0
"""Seconds in which a client that is not connected may come back before it is given up; if it was away in an exchange before."""
NOT_SENT = "its node is not connected"
"""Why there is no answer of a client that was sent nothing."""
TRIES = 3
"""A frame is sent again, in case it was lost without a word, each time this part of the exchange's time has passed."""


@dataclass(frozen=True)
class Lost:
    """A frame or its answer did not arrive, for a reason that may pass; ``None``: it was not in time."""

    why: str | None


class Network(Protocol):
    """A network between a server and clients with numbers. It may lose frames and answers, and delay them."""

    def connected(self) -> Mapping[int, str]:
        """Who can be reached now: client -> its connection; another one means that what it was sent before is lost."""

    def send(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Mapping[str, int]:
        """Send frames that are of use for some seconds; ticket -> client, of those that went off.

        Args:
            round: for logs.
        """

    def receive(self, tickets: Iterable[str]) -> Iterable[tuple[str, Frame | str | Lost]]:
        """What has come for tickets: (ticket, its answer, or in a line why there will be none)."""


@dataclass
class _Asked:
    """A client whose answer is awaited.

    Attributes:
        since: when it was sent its frame, or from when on it could not be.
        connection: by which it was sent; ``None``: it is to be sent.
        lost: why its last frame was.
        sent: whether one went off.
    """

    since: float
    connection: str | None = None
    lost: str | None = None
    sent: bool = False
    tickets: set[str] = field(default_factory=set)

    @property
    def away(self) -> str:
        """Why there is no answer, where its node is not connected."""
        return NOT_SENT + (" any more" if self.sent else "")

    def again(self, why: str | None = None) -> None:
        """It is to be sent once more."""
        self.since, self.connection, self.lost = time.monotonic(), None, why


class Transport:
    """A grid over a post.

    A local update that is asked for again gives the same bytes, so it does not matter which answer arrives: the first is given
        on, others
    are left.
    """

    def __init__(self, post: Network) -> None:
        self._post = post
        self._away = set[int]()

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """As :meth:`fedpriv.deploy.remote_clients.Grid.exchange`."""
        began = time.monotonic()
        asked, here, looked = {client: _Asked(began) for client in frames}, dict[int, str](), -LOOK
        while asked and (now := time.monotonic()) < began + seconds:
            if now >= looked + LOOK or any(one.connection is None for one in asked.values()):
                here, looked = dict(self._post.connected()), now
            for client, one in asked.items():
                if one.connection is not None:
                    if here.get(client, one.connection) != one.connection:
                        one.again("its node was started again")
                    elif now >= one.since + seconds / TRIES:
                        one.again()
            self._send(
                {client: frames[client] for client in asked.keys() & here.keys()}, asked, here, began + seconds - now, round
            )
            for client in [client for client, one in asked.items() if one.connection is None]:
                if now > asked[client].since + (JOIN_AGAIN if client in self._away else JOIN):
                    self._away.add(client)
                    yield client, asked.pop(client).away
            yield from self._received(asked)
            if asked:
                time.sleep(POLL)
        for client, one in asked.items():
            if client not in here:
                yield client, one.away
            elif one.lost is not None:
                yield client, f"{one.lost}, and it has not answered since"

    def close(self) -> None:
        """There is nothing to release."""

    def _send(
        self, frames: Mapping[int, Frame], asked: Mapping[int, _Asked], here: Mapping[int, str], seconds: float, round: int
    ) -> None:
        ready = {client: frame for client, frame in sorted(frames.items()) if asked[client].connection is None}
        for ticket, client in (self._post.send(ready, seconds, round) if ready else {}).items():
            one = asked[client]
            one.since, one.connection, one.sent = time.monotonic(), here[client], True
            one.tickets.add(ticket)
            self._away.discard(client)

    def _received(self, asked: dict[int, _Asked]) -> Iterator[tuple[int, Frame | str]]:
        senders = {ticket: client for client, one in asked.items() for ticket in one.tickets}
        for ticket, answer in self._post.receive(senders) if senders else ():
            client = senders.get(ticket)
            if client not in asked:
                continue
            if isinstance(answer, Lost):
                asked[client].tickets.discard(ticket)
                if not asked[client].tickets:
                    asked[client].again(answer.why)
            else:
                del asked[client]
                yield client, answer
