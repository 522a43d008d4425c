"""The process that starts Flower's apps, of a server or of a node: each by a fork, and none outlives it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates

from fedpriv.processes import die_with_parent

RunApp = Callable[[str, str, bool, bytes | None], object]
"""Runs the app of a task: address of the Runtime API, the task's token, whether that is without TLS, its certificates."""


class ForkingExecutor:
    """Starts the process of each task by a fork: Flower's imports take seconds, and on a busy machine a new process would repeat
    them for longer than the 30 s after which a task is given out again. Otherwise as Flower's ``SubprocessExecutor``."""

    def __init__(self, run_app: RunApp) -> None:
        self._run_app = run_app

    def get_eligible_capacity(self, supported_task_types: set[Any], **_where: Any) -> tuple[set[Any], set[str]]:
        """Any task may start."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_what: Any, **_where: Any) -> None:
        """There is nothing to wait for."""

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
    """Run the tasks of the node whose Runtime API is at ``host:port``, until it is ended.

    Args:
        secret: file that the node has too, so that no one else on this machine gets its tasks.
    """
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    from fedpriv.deploy.flower.inflation import bound_inflation

    bound_inflation()  # in each task, as they are forked
    _run_tasks(run_clientapp, address, secret, None)


def run_server_tasks(address: str, secret: Path, certificate: Path) -> None:
    """Run the tasks of the SuperLink at ``host:port``, each of which plays a run, until it is ended, and they with it.

    Args:
        secret: as above.
        certificate: of the authority that the SuperLink's certificate is from.
    """
    from flwr.superlink.runtime.run_serverapp import run_serverapp

    def play(address: str, token: str, insecure: bool, certificates: bytes | None) -> None:
        os.setpgrp()  # Ctrl-C ends the server, and this with it; it would otherwise stop the run, which is to go on later
        said = Queue[str | None]()
        mirror_output_to_queue(said)
        run_serverapp(address, said, token, insecure, certificates)

    _run_tasks(play, address, secret, certificate)


def _run_tasks(run_app: RunApp, address: str, secret: Path, certificate: Path | None) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that have ended leave nothing behind
    module: Any = superexec
    module.get_executor = lambda *_kind, **_where: ForkingExecutor(run_app)
    superexec.run_superexec(
        runtime_api_address=address,
        insecure=certificate is None,
        root_certificates_path=None if certificate is None else str(certificate),
        superexec_auth_secret=secret.read_bytes(),
    )
