"""The process that starts Flower's apps, on a server or at a node: each app in a fork, which ends with this process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supercore.tls import validate_and_resolve_root_certificates

from fedpriv.deploy.flower.internals import check_arrays, set_longest_retry, use_executor
from fedpriv.deploy.stream import check_growth
from fedpriv.processes import die_with_parent

RunApp = Callable[[str, str, bool, bytes | None], object]
"""Runs the app of a task: (address of the Runtime API, the task's token, whether TLS is off, certificates)."""


class ForkingExecutor:
    """Forks a process for each task. Otherwise as Flower's ``SubprocessExecutor``, which starts a new Python: its imports take
    seconds, and on a busy machine more than the 30 s after which a task is started again."""

    def __init__(self, run_app: RunApp) -> None:
        self._run_app = run_app

    def get_eligible_capacity(self, supported_task_types: set[Any], **_options: Any) -> tuple[set[Any], set[str]]:
        """Every task may start."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_task: Any, **_options: Any) -> None:
        """Nothing to wait for."""

    def launch(self, spec: Any) -> LaunchResult:
        """Fork, and run the app in the child."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            code = 1
            try:
                die_with_parent(parent)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                certificates = validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure)
                self._run_app(spec.runtime_api_address, spec.token, spec.insecure, certificates)
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


def run_node_tasks(address: str, secret: Path) -> None:
    """Run the tasks of a node until the process is ended.

    Args:
        address: ``host:port`` of the node's Runtime API.
        secret: file shared with the node, so that no other process of this machine gets its tasks.
    """
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    check_arrays(check_growth)  # inherited by every task's fork
    _run_tasks(run_clientapp, address, secret, None)


def run_server_tasks(address: str, secret: Path, certificate: Path) -> None:
    """Run the tasks of the SuperLink, each of which is a run, until the process is ended.

    Args:
        address: ``host:port`` of the SuperLink.
        secret: as in :func:`run_node_tasks`.
        certificate: of the authority that signed the SuperLink's certificate.
    """
    from flwr.superlink.runtime.run_serverapp import run_serverapp

    def play(address: str, token: str, insecure: bool, certificates: bytes | None) -> None:
        os.setpgrp()  # or Ctrl-C would stop the run, which is to continue when the server is started again
        output = Queue[str | None]()
        mirror_output_to_queue(output)
        run_serverapp(address, output, token, insecure, certificates)

    _run_tasks(play, address, secret, certificate)


def _await_listener(address: str) -> None:
    """Wait until a process of this machine listens on ``host:port``: it was started at the same time, and imports more."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)


def _run_tasks(run_app: RunApp, address: str, secret: Path, certificate: Path | None) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that ended children leave no zombies
    set_longest_retry(1)  # what it asks is on this machine
    use_executor(lambda: ForkingExecutor(run_app))
    _await_listener(address)
    run_superexec(
        runtime_api_address=address,
        insecure=certificate is None,
        root_certificates_path=None if certificate is None else str(certificate),
        superexec_auth_secret=secret.read_bytes(),
    )
