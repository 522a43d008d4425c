"""What is used of Flower's internals: private attributes, and functions that are replaced in this process.

It fits one minor version of Flower. :func:`require_flower` refuses any other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any

from fedpriv.deploy.stream import Broken
from fedpriv.errors import UsageError, extra

TESTED = "1.41"
"""Flower's minor version."""
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Environment of all its processes: no usage reports, no checks for updates."""


def require_flower() -> None:
    """Raise :class:`UsageError` if Flower is not installed, or in a version that was not tested."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise UsageError(f"deploying needs Flower; {extra('deploy')}") from None
    if not f"{installed}.".startswith(f"{TESTED}."):
        raise UsageError(f"Flower {installed} was not tested, {TESTED}.x was: pip install 'flwr=={TESTED}.*'")


def runtime_client(grid: Any) -> Any:
    """The HTTP client of Flower's ``HttpGrid``."""
    require_flower()
    return grid._runtime_client


@cache
def check_arrays(check: Callable[[int, int], None]) -> None:
    """Have Flower refuse arrays that are not made of chunks, and call ``check`` before it builds one.

    An array may name one of its chunks any number of times.

    Args:
        check: called with the bytes that the array may have at most, and the bytes of its chunks; raises to refuse it.
    """
    require_flower()
    from flwr.app import Array
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.supercore.inflatable.inflatable_object import get_object_body

    array: Any = Array
    inflate = array.inflate

    def checked(cls: Any, object_content: bytes, children: dict[str, Any] | None = None) -> Any:
        chunks = list[Any]((children or {}).values())
        if not all(isinstance(chunk, ArrayChunk) for chunk in chunks):
            raise Broken("an array that is not made of chunks")
        sizes = [len(chunk.data) for chunk in chunks]
        indices = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
        check(len(indices) * max(sizes, default=0), sum(sizes))
        return inflate(object_content, children)

    array.inflate = classmethod(checked)


class _Clock:
    """The module ``time`` with short pauses: Flower's node asks for messages every 3 s."""

    def __init__(self, longest: float) -> None:
        self.longest = longest

    def sleep(self, seconds: float) -> None:
        """Sleep for at most ``longest`` seconds."""
        time.sleep(min(seconds, self.longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def set_node_intervals(poll: float, heartbeat: int) -> None:
    """Set the seconds between a node's checks for messages, and between its heartbeats (Flower takes 10 or more)."""
    require_flower()
    from flwr.supercore import heartbeat as heartbeat_module
    from flwr.supernode import fleet_http_connection, start_client_internal

    loop: Any = start_client_internal
    loop.time = _Clock(poll)
    modules: tuple[Any, ...] = (heartbeat_module, fleet_http_connection)
    for module in modules:
        module.HEARTBEAT_DEFAULT_INTERVAL = heartbeat


def set_longest_retry(seconds: int) -> None:
    """Set the longest pause between two attempts to reach a server, which otherwise grows to 20 s while that is being started."""
    require_flower()
    from flwr.supercore.retry import http_retry

    module: Any = http_retry
    module.MAX_RETRY_DELAY = seconds


def wrap_activation(wrap: Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]) -> None:
    """Replace the request by which a node joins: ``wrap`` gets Flower's method, of client and request, and gives another."""
    require_flower()
    from flwr.supernode.fleet_http_client import FleetHttpClient

    client: Any = FleetHttpClient
    client.ActivateNode = wrap(client.ActivateNode)


def use_executor(make: Callable[[], Any]) -> None:
    """Replace the executor that starts the processes of Flower's tasks."""
    require_flower()
    from flwr.supercore.superexec import run_superexec

    module: Any = run_superexec
    module.get_executor = lambda *_kind, **_options: make()


def add_middleware(outermost: Callable[..., Any], **options: Any) -> None:
    """Put an ASGI middleware outside all of the SuperLink's."""
    require_flower()
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    module: Any = extensions
    others = module.get_middleware
    module.get_middleware = lambda: (Middleware(outermost, **options), *others())


def use_protocol(protocol: type) -> None:
    """Have the SuperLink read connections by another protocol of Uvicorn's, without a line in the log for each request."""
    require_flower()
    module: Any = import_module("flwr.superlink.cli.flower_superlink")  # the package has a function of this name
    serve = module.uvicorn.run

    def run(**options: Any) -> None:
        serve(**{**options, "http": protocol, "access_log": False})

    module.uvicorn = SimpleNamespace(run=run)


def check_replies(most: int) -> None:
    """Have the SuperLink refuse replies in another node's name, and those of too many objects.

    Flower compares the sender that a reply names with the receiver of the message that is replied to, but not with the login. It
    notes the objects of a reply in its database before any arrives, in one transaction, during which no other node is served.

    Args:
        most: number of objects that a reply may have.
    """
    require_flower()
    from fastapi import HTTPException
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    module: Any = import_module("flwr.superlink.servicer.fleet.fleet_handlers")
    push = module.push_messages

    def checked(request: Any, state: Any) -> Any:
        if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
            raise HTTPException(HTTPStatus.FORBIDDEN, "a reply in another node's name")
        objects = chain.from_iterable(map(iterate_object_tree, request.message_object_trees))
        if next(islice(objects, most, None), None) is not None:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a reply of more than {most} objects")
        return push(request=request, state=state)

    module.push_messages = checked


def bound_database(cache: int) -> None:
    """Have each connection to the SuperLink's database keep a part of it in memory; Flower's keep 64 MB, and map 256 MB more.

    Args:
        cache: bytes of a connection.
    """
    require_flower()
    module: Any = import_module("flwr.supercore.sql_mixin")
    module.SQLITE_PRAGMAS = (*module.SQLITE_PRAGMAS, ("cache_size", f"-{cache // 1024}"), ("mmap_size", "0"))
