"""The two processes of a node, as Flower has them but quicker."""

from __future__ import annotations

import os
import signal
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from flwr.supercore import heartbeat
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedpriv.deploy.flower.inflation import bound_inflation
from fedpriv.deploy.flower.keeper import REFUSED
from fedpriv.processes import die_with_parent

HEARTBEAT = 10
"""Seconds, the fewest that Flower takes. A node that is silent for two heartbeats is given up; from then on it may join again."""


class ForkingExecutor:
    """Starts the process of each task by a fork: Flower's imports take seconds, and a new process would repeat them. Otherwise as
    Flower's ``SubprocessExecutor``."""

    def get_eligible_capacity(self, supported_task_types: set[Any], **_where: Any) -> tuple[set[Any], set[str]]:
        """Any task may start."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_what: Any, **_where: Any) -> None:
        """There is nothing to wait for."""

    def launch(self, spec: Any) -> LaunchResult:
        """Fork, and run the node's app in the child."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            code = 1
            try:
                die_with_parent(parent)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                certificates = validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure)
                run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, certificates)
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            finally:
                os._exit(code)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Nothing to maintain."""

    def close(self) -> None:
        """Children end with this process."""


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


def run_node(poll: float) -> None:
    """Flower's SuperNode, with the arguments in ``sys.argv[1:]``.

    Args:
        poll: seconds between its questions for messages.
    """
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


def run_tasks(address: str, secret: Path) -> None:
    """Run the tasks of the node whose Runtime API is at ``host:port``, until it is ended.

    Args:
        secret: file that the node has too, so that no one else on this machine gets its tasks.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that have ended leave nothing behind
    bound_inflation()  # in each task, as they are forked
    module: Any = superexec
    module.get_executor = lambda *_kind, **_where: ForkingExecutor()
    superexec.run_superexec(runtime_api_address=address, insecure=True, superexec_auth_secret=secret.read_bytes())
