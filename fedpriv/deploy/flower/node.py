"""The SuperNode, as Flower has it but quicker."""

from __future__ import annotations

import os
import sys
import time
from http import HTTPStatus
from typing import Any

import httpx
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.deploy.flower.supervisor import REFUSED
from fedpriv.untrusted.proxies import proxy_for, use_proxy

HEARTBEAT = 10
"""Seconds, the fewest that Flower takes. A node that is silent for two heartbeats is given up; from then on it may join again."""


class _Clock:
    """``time``, but for pauses, which are short: Flower's node asks for messages every 3 s."""

    def __init__(self, longest: float) -> None:
        self.longest = longest

    def sleep(self, seconds: float) -> None:
        """Sleep for at most ``longest`` s."""
        time.sleep(min(seconds, self.longest))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


_NOT_ADMITTED = "the server does not admit this node: its key is not registered, or another node with the same key is connected"


def run_node(server: str, poll: float) -> None:
    """Flower's SuperNode, with the arguments in ``sys.argv[1:]``.

    Args:
        server: ``host:port`` of the server, which it reaches by the same proxy as the check before it.
        poll: seconds between its questions for messages.
    """
    use_proxy(proxy_for(f"https://{server}"))
    client: Any = FleetHttpClient
    join = client.ActivateNode

    def activate(self: Any, request: Any) -> Any:
        until = time.monotonic() + 3 * HEARTBEAT
        while True:
            try:
                return join(self, request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != HTTPStatus.PRECONDITION_FAILED:
                    raise
                if time.monotonic() > until:
                    print(f"fedpriv: {_NOT_ADMITTED}", file=sys.stderr, flush=True)
                    os._exit(REFUSED)
            time.sleep(1)

    client.ActivateNode = activate
    loop: Any = start_client_internal
    loop.time = _Clock(poll)
    modules: tuple[Any, ...] = (heartbeat, fleet_http_connection)
    for module in modules:
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    flower_supernode()
