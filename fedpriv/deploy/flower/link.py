"""The server's SuperLink: Flower's, with bounds on what a peer can make it hold in memory, before and after its login."""

from __future__ import annotations

import asyncio
import json
import resource
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from starlette.datastructures import Headers
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fedpriv.deploy.flower.internals import add_middleware, bound_database, check_replies, use_protocol
from fedpriv.deploy.operation.bounds import (
    DATABASE_CACHE,
    HEADER,
    MAX_ANONYMOUS,
    MAX_BODY,
    MAX_CONNECTIONS,
    MAX_IN_FLIGHT,
    MAX_OBJECTS,
    MAX_OF_A_KEY,
    MAX_OF_AN_ADDRESS,
    PAUSE,
    RATE,
)
from fedpriv.deploy.operation.counters import Counters

FLEET = "/v1/fleet/"
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Refused(Exception):
    """A request that gets an error, before its body is read."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


class Guard:
    """ASGI middleware outside all of Flower's, which reads a whole body before it looks at the login.

    The login is in a request's headers, so a body of more than ``MAX_ANONYMOUS`` is read only after a valid one. The APIs other
    than the fleet API have no login, and are open to this machine alone.

    Args:
        counters: of requests by their status, and of bytes.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], counters: Counters) -> None:
        self._app, self._counters = app, counters
        self._in_flight = Counter[bytes]()
        """Key -> bytes of its bodies that are being received."""
        self._changed = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._counted(send)
        headers, fleet = Headers(scope=scope), scope["path"].startswith(FLEET)
        try:
            if not fleet and not _is_local(scope):
                raise _Refused(403, "only processes of the server's machine may do this")
            stated = headers.get("content-length")
            if stated is None and "transfer-encoding" in headers:
                raise _Refused(411, "a body needs its Content-Length")
            size = int(stated or 0)
            if size > MAX_BODY:
                raise _Refused(413, f"a body of {size} bytes; at most {MAX_BODY} are possible")
            key = b""
            if size > MAX_ANONYMOUS and fleet:
                key = await asyncio.to_thread(registered_key, scope["app"], headers)
        except _Refused as refused:
            await _answer(send, refused)
            return
        self._counters.add("bytes", size, "in")
        async with self._room(key, size):
            await self._app(scope, _in_time(receive, size), send)

    def _counted(self, send: Send) -> Send:
        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._counters.add("requests", 1, str(message["status"]))
            self._counters.add("bytes", len(message.get("body", b"")), "out")
            self._counters.save()
            await send(message)

        return counted

    @asynccontextmanager
    async def _room(self, key: bytes, size: int) -> AsyncIterator[None]:
        """A block with memory for a body; waits until there is some."""
        if size <= MAX_ANONYMOUS:
            yield
            return
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._in_flight.total() + size <= MAX_IN_FLIGHT and self._in_flight[key] + size <= MAX_OF_A_KEY
            )
            self._in_flight[key] += size
        try:
            yield
        finally:
            async with self._changed:
                self._in_flight[key] -= size
                self._in_flight += Counter()  # keys with nothing left
                self._changed.notify_all()


def _is_local(scope: Mapping[str, Any]) -> bool:
    """Whether a request is from this machine: from loopback, or from the address at which the server listens."""
    client, server = (scope.get(end) or ("",) for end in ("client", "server"))
    return client[0] in ("127.0.0.1", "::1", server[0])


def registered_key(app: Any, headers: Headers) -> bytes:
    """The registered public key by which a request is signed; :class:`_Refused` if there is none."""
    login: Any = SimpleNamespace(headers=headers, app=app, state=SimpleNamespace(protobuf_request=ActivateNodeRequest()))
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        login.state.protobuf_request.public_key = key
        authenticate_node(login)
    except (KeyError, NotBase64, HTTPException):
        raise _Refused(401, f"no valid login; without one, at most {MAX_ANONYMOUS} bytes are possible") from None
    if app.state.linkstate_factory.state().get_node_id_by_public_key(key) is None:
        raise _Refused(401, "the key is not registered")
    return key


def _in_time(receive: Receive, size: int) -> Receive:
    """``receive`` with a limit on the time for the body, after which the peer counts as gone."""
    loop = asyncio.get_running_loop()
    until, complete = loop.time() + PAUSE + size / RATE, False

    async def received() -> MutableMapping[str, Any]:
        nonlocal complete
        if complete:
            return await receive()  # which waits for the end of the connection
        try:
            message = await asyncio.wait_for(receive(), until - loop.time())
        except TimeoutError:
            return {"type": "http.disconnect"}
        complete = not message.get("more_body")
        return message

    return received


async def _answer(send: Send, refused: _Refused) -> None:
    body = json.dumps({"detail": f"fedpriv: {refused.why}"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's protocol, with limits on connections, and on the size and time of headers."""

    _by_address: ClassVar = Counter[str]()

    def connection_made(self, transport: Any) -> None:
        """Close a connection that is one too many."""
        super().connection_made(transport)
        self._address = "" if self.client is None else self.client[0]
        self._by_address[self._address] += 1
        self._idle: Any = self
        self._unread = 0
        too_many = not _is_local(vars(self)) and self._by_address[self._address] > MAX_OF_AN_ADDRESS
        if too_many or self._by_address.total() > MAX_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(HEADER, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._by_address[self._address] -= 1
        if not self._by_address[self._address]:
            del self._by_address[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Close a connection whose headers do not end."""
        if self._unread > MAX_ANONYMOUS and not self._serves:
            self.transport.abort()
            return
        self._unread = 0 if self._serves else self._unread + len(data)
        super().data_received(data)

    @property
    def _serves(self) -> bool:
        """Whether a request's headers are complete, and its response is not."""
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """Close the connection if it has had no complete headers since the last look."""
        last = self.cycle if self.cycle is not None else self
        if not self._serves and self._idle is last:
            self.transport.abort()
        elif not self.transport.is_closing():
            self._idle = None if self._serves else last
            self.loop.call_later(HEADER / 2, self._look)


def run_link(counted: str) -> None:
    """Run the SuperLink with the arguments in ``sys.argv[1:]``.

    Args:
        counted: file for its counters.
    """
    from flwr.superlink.cli import flower_superlink

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)), hard))
    add_middleware(Guard, counters=Counters(Path(counted)))
    use_protocol(LimitedProtocol)
    check_replies(MAX_OBJECTS)
    bound_database(DATABASE_CACHE)
    flower_superlink()
