"""A client's long-lived process: it repeats no local update, and does none for a relay that is gone."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.socket_server import serve
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.operation.counters import Counters
from fedpriv.deploy.stream import ask, write
from fedpriv.wire.message import Refused


@dataclass
class Slow:
    """A node that answers once it is allowed to."""

    may: threading.Event = field(default_factory=threading.Event)
    asked: list[Any] = field(default_factory=list)
    counters: Counters = field(default_factory=lambda: Counters(None))

    def answer(self, frame: Frame) -> Frame:
        self.asked.append(frame.head["n"])
        assert self.may.wait(60)
        return Frame({"error": "broken"}) if frame.head["n"] == "wrong" else Frame({"entries": [len(self.asked)]})


def listens(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(str(address))
        return True
    return False


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[Slow, Path]]:
    node, address = Slow(), tmp_path / "local_updates"
    threading.Thread(target=serve, args=(node, address), daemon=True).start()
    until = time.monotonic() + 60
    while not listens(address):  # the file is there before anything listens on it
        assert time.monotonic() < until
        time.sleep(0.01)
    yield node, address
    node.may.set()


def frame(n: object, run: str = "run") -> bytes:
    return Frame({"run": run, "n": n}).head_bytes


def leave(address: Path, head: bytes) -> None:
    """Ask, and be gone before the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        with connection.makefile("wb") as outgoing:
            write(outgoing, head, [b"part"])


def waited(node: Slow, count: int) -> None:
    until = time.monotonic() + 60
    while len(node.asked) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_lost_answer_can_be_requested_again(serving: tuple[Slow, Path], capfd: pytest.CaptureFixture[str]) -> None:
    node, address = serving
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        with connection.makefile("wb") as outgoing:
            write(outgoing, frame(1), [b"part"])
        waited(node, 1)
    node.may.set()
    assert json.loads(ask(address, frame(1), [b"part"], 60)[0]) == {"entries": [2]}
    assert node.asked == [1, 1], "the node sees the repeated frame, and may use its stored answer"
    assert "fedpriv: an answer came too late" in capfd.readouterr().err


class Counted(ClientNode):
    """A node that answers with the number of the answer."""

    count = 0

    def _answer(self, frame: Frame) -> Frame:
        self.count += 1
        return Frame({"error": "broken"} if frame.head["n"] == "wrong" else {"entries": [self.count]})


def test_a_repeated_frame_gets_the_same_answer(tmp_path: Path) -> None:
    node = Counted(0, Source("digits", None, "own"), tmp_path)

    def said(n: object, run: str = "run", part: bytes = b"part") -> list[int]:
        return node.answer(Frame({"run": run, "n": n}, (part,))).entries

    assert [said(1), said(1), said(1, "another"), said(1)] == [[1], [1], [2], [1]]
    assert [said(1, part=b"another"), said(1)] == [[3], [4]], "another frame of the run came between"
    for run in range(20):
        said(1, f"run {run}")
    assert said(1) == [25], "the last runs are remembered, not all of them"


@pytest.mark.parametrize(("n", "run"), [("wrong", "run"), (1, HANDSHAKE)], ids=["an error", "a handshake"])
def test_errors_and_handshakes_are_not_kept(tmp_path: Path, n: object, run: str) -> None:
    node = Counted(0, Source("digits", None, "own"), tmp_path)
    for _ in range(2):
        node.answer(Frame({"run": run, "n": n}))
    assert node.count == 2


def test_a_request_whose_sender_is_gone_is_skipped(serving: tuple[Slow, Path]) -> None:
    """It waited behind another's local update for longer than its answer is of use."""
    node, address = serving
    asking = threading.Thread(target=ask, args=(address, frame(1), [], 60))
    asking.start()
    waited(node, 1)
    leave(address, frame(2))
    node.may.set()
    asking.join(60)
    ask(address, frame(3), [], 60)
    assert node.asked == [1, 3]


def test_an_unanswerable_frame_does_not_end_the_process(serving: tuple[Slow, Path], capfd: pytest.CaptureFixture[str]) -> None:
    node, address = serving
    node.may.set()
    strange = ask(address, b'{"run": "run"}', [], 60)
    assert json.loads(strange[0])["error"] == "the client cannot answer (KeyError)"
    assert "a frame could not be answered: KeyError: 'n'" in capfd.readouterr().err
    assert json.loads(ask(address, frame(1), [], 60)[0]) == {"entries": [1]}


@pytest.mark.parametrize("inside", ["[%s]", '{"a": %s}', '[0, {"a": %s}]'])
def test_a_head_that_is_nested_too_deep_is_refused(inside: str) -> None:
    def head(times: int) -> bytes:
        before, after = inside.split("%s")
        return f'{{"run": "run", "entries": {before * times}[]{after * times}}}'.encode()

    for deep in (64, 490, 989, 100_000):
        with pytest.raises(Refused, match="a frame whose head is n"):
            Frame.of(head(deep), [])
    assert Frame.of(head(20), []).digest == Frame.of(head(20), []).digest
