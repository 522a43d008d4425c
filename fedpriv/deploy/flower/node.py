"""A client's SuperNode: Flower's, with shorter intervals, and patience until the server admits it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx
from flwr.supernode.cli import flower_supernode

from fedpriv.deploy.flower.internals import set_longest_retry, set_node_intervals, wrap_activation
from fedpriv.deploy.flower.supervisor import REFUSED
from fedpriv.untrusted.proxies import proxy_for, use_proxy

HEARTBEAT = 10
"""Seconds. The server gives up a node after two missing heartbeats; then a node with the same key may join."""
RETRY = 5
"""Longest pause between attempts to reach a server that was there before (seconds)."""
_NOT_ADMITTED = "the server does not admit this node: its key is not registered, or another node with the same key is connected"


def run_node(server: str, poll: float) -> None:
    """Run the SuperNode with the arguments in ``sys.argv[1:]``.

    Args:
        server: ``host:port`` of the server; it is reached through the same proxy as in the check at the start.
        poll: seconds between checks for messages.
    """
    use_proxy(proxy_for(f"https://{server}"))
    wrap_activation(_patient)
    set_node_intervals(poll, HEARTBEAT)
    set_longest_retry(RETRY)
    flower_supernode()


def _patient(join: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Join again for some seconds while the server refuses, as it may not have given up a previous node yet; then exit."""

    def activate(client: Any, request: Any) -> Any:
        until = time.monotonic() + 3 * HEARTBEAT
        while True:
            try:
                return join(client, request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != HTTPStatus.PRECONDITION_FAILED:
                    raise
                if time.monotonic() > until:
                    print(f"fedpriv: {_NOT_ADMITTED}", file=sys.stderr, flush=True)
                    os._exit(REFUSED)
            time.sleep(1)

    return activate
