"""A network to clients in this process that loses, doubles and delays frames, and kills processes, by a plan."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedpriv.client.client import Client
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.deploy import transport
from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.operation.members import Members
from fedpriv.deploy.server_run import DECLARED, resume, start
from fedpriv.deploy.transport import Lost, Transport
from fedpriv.storage.run_folder import RunFolder
from tests.deploy.apart import client_nodes
from tests.deploy.loopback import Loopback

KINDS: dict[str, tuple[str, ...]] = {
    "server": ("before a local update", "after a local update", "between rounds"),
    "client": (
        "before its local update",
        "beginning",
        "about to keep its state",
        "having kept its state",
        "sealing",
        "after its local update",
    ),
    "carrier": ("loses a frame", "loses an answer", "loses silently", "doubles a frame", "doubles an answer", "is late"),
}
IN_AN_UPDATE: dict[str, tuple[type, str, bool]] = {
    "beginning": (Client, "private", False),
    "about to keep its state": (ClientStore, "keep", False),
    "having kept its state": (ClientStore, "keep", True),
    "sealing": (Client, "_sealed", False),
}
"""Where a client is killed: before or after (``True``) a call of this method."""
LATE = 3.0
"""Seconds by which an answer may be late."""


class Killed(BaseException):
    """An exception that no code handles."""


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


@dataclass
class Unreliable:
    """A network to client nodes that has faults at some frames of a run.

    Attributes:
        plan: number of a frame (from 0, in the order of sending) -> its fault.
        away: clients that cannot be reached.
        happened: the faults so far.
    """

    folder: Path
    config: RunConfig
    plan: Mapping[int, str]
    clock: Clock
    away: set[int] = field(default_factory=set)
    happened: list[str] = field(default_factory=list)
    nodes: dict[int, ClientNode] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    dies: bool = False
    _sent: int = 0
    _answers: deque[tuple[float, str, Any]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for client in range(self.config.data.clients):
            self.start(client)

    def start(self, client: int) -> None:
        """Start a client's process, which loads what is on its disk."""
        self.nodes[client] = client_nodes(self.folder, self.config)[client]
        self.starts[client] = self.starts.get(client, 0) + 1

    def connected(self) -> dict[int, str]:
        return {client: str(number) for client, number in self.starts.items() if client not in self.away}

    def send(self, frames: Mapping[int, Frame], seconds: float, round: int) -> dict[str, int]:
        tickets = {}
        for client, frame in frames.items():
            fault = self.plan.get(self._sent)
            tickets[ticket := str(self._sent)] = client
            self._sent += 1
            if fault is not None:
                self.happened.append(fault)
            self._carry(client, frame, ticket, fault)
        return tickets

    def receive(self, tickets: Iterable[str]) -> Iterator[tuple[str, Any]]:
        wanted = set(tickets)
        for _ in range(len(self._answers)):
            when, ticket, answer = self._answers.popleft()
            if ticket in wanted and when <= self.clock.now:
                yield ticket, answer
            else:
                self._answers.append((when, ticket, answer))

    def _carry(self, client: int, frame: Frame, ticket: str, fault: str | None) -> None:
        def answer(frame: Frame, after: float = 0.0) -> None:
            ((_, result),) = Loopback(self.nodes).exchange({client: frame}, 0, 0)
            self._answers.append((self.clock.now + after, ticket, result))

        def lose() -> None:
            self._answers.append((self.clock.now, ticket, Lost("its node was gone")))

        match fault:
            case None:
                answer(frame)
            case "before a local update":
                raise Killed
            case "after a local update":
                answer(frame)
                raise Killed
            case "between rounds":
                self.dies = True
                answer(frame)
            case "before its local update":
                self.start(client)
            case "after its local update":
                answer(frame)
                self._answers.pop()
                self.start(client)
            case "loses a frame":
                lose()
            case "loses an answer":
                answer(frame)
                self._answers.pop()
                lose()
            case "loses silently":
                pass
            case "doubles a frame":
                answer(frame)
                answer(frame)
            case "doubles an answer":
                answer(frame)
                self._answers.append(self._answers[-1])
            case "is late":
                answer(frame, LATE)
            case _:
                with suppress(Killed), dying(*IN_AN_UPDATE[fault]):
                    answer(frame)  # of a test, or of a local update that keeps nothing, before it is killed
                self.start(client)


@contextmanager
def dying(owner: type, method: str, after: bool) -> Iterator[None]:
    """A block in which the next call of a method kills the process."""
    whole = getattr(owner, method)

    def dies(*given: Any, **named: Any) -> Any:
        if after:
            whole(*given, **named)
        raise Killed

    with patch.object(owner, method, dies):
        yield


def drawn(seed: int, kills: int, frames: int) -> dict[int, str]:
    """A plan of so many faults among the frames of a run: role, kind and place come from the seed."""
    draw = random.Random(seed)
    return {place: draw.choice(KINDS[draw.choice(list(KINDS))]) for place in draw.sample(range(frames), kills)}


def play_through(
    folder: Path, config: RunConfig, plan: Mapping[int, str], on_round: Any = None, members: Members | None = None
) -> tuple[Unreliable, list[str]]:
    """A run to its end, resumed as often as its server is killed; its network, and the warnings.

    Args:
        members: of the deployment; ``None``: none comes or goes.
    """
    here, removed = ((), dict) if members is None else (members.present(), members.removed)
    clock, warnings = Clock(), list[str]()
    network = Unreliable(folder.parent / f"{folder.name}-clients", config, plan, clock)

    def after(record: dict[str, Any]) -> None:
        if on_round is not None:
            on_round(network, record)
        if network.dies:
            network.dies = False
            raise Killed

    with patch.object(transport, "time", clock):
        while not _finished(folder):
            arguments: Any = (60.0, lambda *of: None, after, warnings.append)
            try:
                if (folder / DECLARED).exists():
                    resume(folder, Transport(network, removed), *arguments)
                else:
                    named = config.model_copy(update={"run_dir": folder})
                    start(named, folder.parent, Transport(network, removed), *arguments, members=here)
            except Killed:
                continue
    return network, warnings


def _finished(folder: Path) -> bool:
    return (folder / "run.json").exists() and RunFolder.open(folder).facts.get("status") == "finished"
