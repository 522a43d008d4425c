"""What a peer can make a server hold: the guard before Flower's own layers, and a real server under attack."""

from __future__ import annotations

import asyncio
import resource
import socket
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedpriv.deploy.operation import bounds
from fedpriv.deploy.operation.counters import Counters

MIB = 2**20


def ask(
    size: int | None, path: str = "/v1/fleet/push-object", body: Any = None, key: bytes | None = None, peer: str = "203.0.113.7"
) -> tuple[int, int]:
    """The status that a guard answers, and the number of body messages that it or the app behind it read.

    Args:
        size: the stated length of the body; ``None``: none is stated, and the body is chunked.
        body: what reading the body does; by default it is there at once.
        key: the registered key of the login; ``None``: there is no valid login.
    """
    from fedpriv.deploy.flower import link

    read, answers = 0, list[Any]()

    async def receive() -> Any:
        nonlocal read
        read += 1
        if body is not None:
            await body()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        status = 200 if (await receive())["type"] == "http.request" else 499
        await send({"type": "http.response.start", "status": status, "headers": []})

    def login(app: Any, headers: Any) -> bytes:
        if key is None:
            raise link._Refused(401, "no valid login")
        return key

    headers = [(b"transfer-encoding", b"chunked")] if size is None else [(b"content-length", b"%d" % size)]
    scope = {"type": "http", "path": path, "headers": headers, "app": None, "client": (peer, 1), "server": ("198.51.100.1", 2)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "registered_key", login)
        asyncio.run(link.Guard(app, Counters(None))(scope, receive, send))
    return answers[0]["status"], read


@pytest.mark.extra("deploy")
def test_a_body_is_read_only_after_a_login_and_never_beyond_the_bound() -> None:
    assert ask(bounds.MAX_ANONYMOUS) == (200, 1), "Flower itself looks at the login of a small body"
    assert ask(bounds.MAX_ANONYMOUS + 1) == (401, 0)
    assert ask(bounds.MAX_BODY, key=b"k") == (200, 1)
    assert ask(bounds.MAX_BODY + 1, key=b"k") == (413, 0)
    assert ask(bounds.MAX_BODY + 1, "/v1/control/start-run", peer="127.0.0.1") == (413, 0)
    assert ask(None, key=b"k") == (411, 0)


@pytest.mark.extra("deploy")
def test_what_has_no_login_is_open_to_the_server_s_machine_alone() -> None:
    for path in ("/v1/control/start-run", "/v1/runtime/get-nodes", "/docs", "/v1/fleet"):
        assert ask(100, path) == (403, 0)
        assert ask(100, path, peer="127.0.0.1") == ask(100, path, peer="198.51.100.1") == (200, 1)


@pytest.mark.extra("deploy")
def test_a_body_that_takes_too_long_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.deploy.flower import link

    monkeypatch.setattr(link, "PAUSE", 0.05)
    assert ask(100, body=lambda: asyncio.sleep(10)) == (499, 1)


@pytest.mark.extra("deploy")
def test_bodies_wait_for_room_and_one_key_leaves_some_for_others() -> None:
    from fedpriv.deploy.flower.link import Guard

    async def scenario() -> list[str]:
        guard, entered, leave = Guard(None, Counters(None)), list[str](), asyncio.Event()  # type: ignore[arg-type]

        async def body(name: str, key: bytes, size: int) -> None:
            async with guard._room(key, size):
                entered.append(name)
                await leave.wait()

        tasks = [asyncio.create_task(body(f"greedy {n}", b"a", bounds.MAX_OF_A_KEY // 2)) for n in range(3)]
        tasks.append(asyncio.create_task(body("honest", b"b", bounds.MAX_BODY)))
        await asyncio.sleep(0.01)
        before = list(entered)
        leave.set()
        await asyncio.gather(*tasks)
        assert not guard._in_flight and len(entered) == 4, "what has waited is served, and nothing is left behind"
        return before

    assert asyncio.run(scenario()) == ["greedy 0", "greedy 1", "honest"]


@pytest.mark.extra("deploy")
def test_a_reply_in_another_node_s_name_or_of_many_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import HTTPException
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.superlink.servicer.fleet import fleet_handlers

    from fedpriv.deploy.flower.internals import check_replies

    passed = list[Any]()
    monkeypatch.setattr(fleet_handlers, "push_messages", lambda request, state: passed.append(request))
    check_replies(bounds.MAX_OBJECTS)

    def push(sender: int, *trees: ObjectTree) -> None:
        message = Message(metadata=Metadata(src_node_id=sender))
        request = PushMessagesRequest(node=Node(node_id=7), messages_list=[message], message_object_trees=trees)
        fleet_handlers.push_messages(request=request, state=None)  # type: ignore[arg-type]

    flat = ObjectTree(children=[ObjectTree()] * (bounds.MAX_OBJECTS - 1))
    push(7, flat)
    with pytest.raises(HTTPException, match="403"):
        push(8)
    for too_many in ([ObjectTree(children=[flat])], [flat, ObjectTree()]):
        with pytest.raises(HTTPException, match="413"):
            push(7, *too_many)
    assert len(passed) == 1


@pytest.mark.extra("deploy")
def test_a_connection_to_the_database_keeps_little_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.deploy.flower.internals import bound_database

    sql_mixin: Any = import_module("flwr.supercore.sql_mixin")
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    bound_database(bounds.DATABASE_CACHE)
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        sql_mixin._set_sqlite_pragmas(connection, None)
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("cache_size", "mmap_size", "journal_mode")]
    assert found == [-bounds.DATABASE_CACHE // 1024, 0, "wal"]


def status_of(pid: int, name: str) -> int:
    """A figure of a process, such as ``VmHWM`` (bytes)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, int, int]]:
    """A real server without clients: (its link, its port, the process id of its SuperLink)."""
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.control import SuperLink
    from fedpriv.deploy.flower.paths import make

    port = machines.free_port()
    paths = make(tmp_path_factory.mktemp("bounded") / "d", 1, "127.0.0.1", port, inner_port=port)
    with machines.server(paths) as supervisor:
        yield SuperLink(f"127.0.0.1:{port}", paths.authority), port, supervisor.pids()["the SuperLink"]


@pytest.mark.slow
@pytest.mark.extra("deploy")
@pytest.mark.parametrize(
    "framing", [f"content-length: {1024 * MIB}", "transfer-encoding: chunked", f"content-length: {16 * MIB}"]
)
def test_a_body_without_a_login_costs_a_server_less_than_64_mib(server: tuple[Any, int, int], framing: str) -> None:
    link, port, pid = server
    before = status_of(pid, "VmHWM")
    room = status_of(pid, "VmSize") + 512 * MIB  # address space, of which threads reserve some
    resource.prlimit(pid, resource.RLIMIT_AS, (room, resource.prlimit(pid, resource.RLIMIT_AS)[1]))
    with connected(link, port) as peer:
        peer.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode())
        block = b"100000\r\n" + bytes(MIB) + b"\r\n" if "chunked" in framing else bytes(MIB)
        with suppress(OSError):  # it may close the connection
            for _ in range(16 if f": {16 * MIB}" in framing else 1024):
                peer.sendall(block)
    assert status_of(pid, "VmHWM") - before < 64 * MIB
    assert [node.status for node in link.nodes()] == ["registered"], "it still serves"


@pytest.mark.slow
@pytest.mark.extra("deploy")
def test_half_open_requests_are_closed_and_the_server_serves_meanwhile(server: tuple[Any, int, int]) -> None:
    link, port, pid = server
    before, peers = status_of(pid, "VmHWM"), list[ssl.SSLSocket]()
    for _ in range(529):
        peers.append(connected(link, port))
        peers[-1].sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\n")
    assert link.nodes() and status_of(pid, "VmHWM") - before < 64 * MIB
    peers[-1].settimeout(2 * bounds.HEADER)
    assert all(ended(peer) for peer in reversed(peers))


@pytest.mark.slow
@pytest.mark.extra("deploy")
def test_headers_that_do_not_end_are_cut_off(server: tuple[Any, int, int]) -> None:
    link, port, pid = server
    before, sent = status_of(pid, "VmHWM"), 0
    with connected(link, port) as peer, suppress(OSError):
        peer.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nx: ")
        while sent < 512 * MIB:
            peer.sendall(bytes(MIB // 16).replace(b"\0", b"a"))
            sent += MIB // 16
    assert sent < 512 * MIB and status_of(pid, "VmHWM") - before < 64 * MIB


def connected(link: Any, port: int) -> ssl.SSLSocket:
    """A TLS connection to a server."""
    context = ssl.create_default_context(cafile=str(link.certificate))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname="127.0.0.1")


def ended(peer: ssl.SSLSocket) -> bool:
    """Whether the other end has closed a connection."""
    try:
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        peer.close()
