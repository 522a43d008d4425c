"""Processes that end are started again, and given up if they always end early."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from fedpriv.deploy.flower import supervisor as module
from fedpriv.deploy.flower.supervisor import TOO_OFTEN, Supervisor
from fedpriv.errors import FedprivError

STARTS = """import sys, time
print('started', flush=True)
if open('log').read().count('started') > int(sys.argv[1]):
    time.sleep(60)
"""
"""A process that ends at once for so many times, and then stays."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started again after a while in which they are looked at some ten times."""
    monkeypatch.setattr(module, "PAUSE", 1.0)


def looked_at(supervisor: Supervisor, log: Path, starts: int) -> None:
    until = time.monotonic() + 60
    while log.read_text().count("started") < starts:
        supervisor.look()
        assert time.monotonic() < until
        time.sleep(0.1)
    supervisor.look()


def test_a_process_that_ends_early_is_started_again(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "log", tmp_path) as supervisor:
        supervisor.start("it", f"exec({STARTS!r})", TOO_OFTEN - 2)
        looked_at(supervisor, tmp_path / "log", TOO_OFTEN - 1)


def test_a_process_that_always_ends_early_is_given_up(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "log", tmp_path) as supervisor:
        supervisor.start("it", f"exec({STARTS!r})", 100)
        with pytest.raises(FedprivError, match="it ends again and again"):
            looked_at(supervisor, tmp_path / "log", TOO_OFTEN + 1)
    assert (tmp_path / "log").read_text().count("started") == TOO_OFTEN


@pytest.mark.extra("deploy")
def test_a_process_waits_for_the_one_beside_it() -> None:
    from fedpriv.deploy.flower import tasks
    from fedpriv.deploy.flower.machines import free_port

    port, listening = free_port(), list[socket.socket]()
    later = threading.Timer(0.2, lambda: listening.append(socket.create_server(("127.0.0.1", port))))
    later.start()
    tasks._await_listener(f"127.0.0.1:{port}")
    later.join()
    assert listening
    listening[0].close()
