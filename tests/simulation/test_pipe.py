"""What two processes send each other arrives as it was, however large."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest

from fedpriv.simulation.executors import pipe
from fedpriv.simulation.executors.pipe import LARGE, Pipe


def _echo(theirs: Pipe) -> None:
    while True:
        try:
            message = theirs.receive()
        except EOFError:
            return
        theirs.send({"heard": message, "by": os.getpid()})


def _echoing(theirs: Pipe, ours: Pipe) -> None:
    ours.close()  # the fork has it too, and would never notice that it is closed
    _echo(theirs)


@pytest.fixture
def ours() -> Any:
    here, theirs = Pipe.pair()
    process = multiprocessing.get_context("fork").Process(target=_echoing, args=(theirs, here))
    process.start()
    theirs.close()
    yield here
    here.close()
    process.join(10)
    assert process.exitcode == 0


@pytest.mark.parametrize("nameless", ["as here", "elsewhere"])
def test_messages_of_any_size_in_any_order(monkeypatch: pytest.MonkeyPatch, request: Any, nameless: str) -> None:
    if nameless == "elsewhere":
        monkeypatch.setattr(pipe.sys, "platform", "darwin")
    ours: Pipe = request.getfixturevalue("ours")
    sizes = [0, LARGE - 1, LARGE, 3 * LARGE, 10, 100 * LARGE, LARGE]  # the memory grows, and is larger than what is sent
    for number, size in enumerate(sizes):
        message = [os.urandom(size), {"and": os.urandom(2 * size)}, number]
        ours.send(message)
        answer = ours.receive()
        assert answer["heard"] == message and answer["by"] != os.getpid()


def test_what_is_large_takes_no_room_in_the_pipe(ours: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    piped: list[int] = []
    monkeypatch.setattr(ours, "connection", _Counted(ours.connection, piped))
    ours.send(os.urandom(50 * LARGE))
    assert len(ours.receive()["heard"]) == 50 * LARGE
    assert sum(piped) < 1000


def test_what_was_received_stays_as_it_was(ours: Pipe) -> None:
    first, second = os.urandom(4 * LARGE), os.urandom(4 * LARGE)
    ours.send(first)
    heard = ours.receive()["heard"]
    ours.send(second)
    ours.receive()
    assert heard == first


class _Counted:
    """A connection that notes what goes through it, both ways."""

    def __init__(self, connection: Any, piped: list[int]) -> None:
        self._connection, self._piped = connection, piped

    def send_bytes(self, data: Any) -> None:
        self._piped.append(len(data))
        self._connection.send_bytes(data)

    def recv_bytes(self) -> bytes:
        data: bytes = self._connection.recv_bytes()
        self._piped.append(len(data))
        return data

    def close(self) -> None:
        self._connection.close()
