"""``deploy server`` ends during a run: none of its processes stays, and the run continues after a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedpriv.storage.run_folder import RunFolder
from tests.deploy.deployed import ANSWER, LONGEST, REAL, SMALL, same
from tests.simulation.small import config, play

pytestmark = REAL
ROOT = Path(__file__).parents[2]
ENDS = {1: signal.SIGTERM, 3: signal.SIGKILL, 4: signal.SIGINT}
"""Round -> the signal that ends the server after it, in the middle of the next one."""


def family(pid: int) -> set[int]:
    """A process, those that it has started, and those that they have."""
    try:
        started = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    except OSError:  # it has ended meanwhile
        started = []
    return {pid}.union(*map(family, started))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Served:
    """The command ``deploy server``, in a session of its own, as from another terminal."""

    def __init__(self, paths: Any, link: Any) -> None:
        self.paths, self.link = paths, link
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "fedpriv", "deploy", "server", str(self.paths.path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()  # which comes once all of it is started
        assert line.startswith("server on"), line + self.process.stderr.read()

    def end(self, how: signal.Signals) -> None:
        """End it; Ctrl-C reaches each process of the terminal."""
        processes = family(self.process.pid)
        assert len(processes) >= 4, "itself, the SuperLink, the SuperExec, and the app"
        (os.killpg if how == signal.SIGINT else os.kill)(self.process.pid, how)
        self.process.wait(60)
        until = time.monotonic() + 5
        while left := [pid for pid in processes if running(pid)]:
            assert time.monotonic() < until, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
            time.sleep(0.1)


@pytest.fixture
def paths(tmp_path: Path) -> Any:
    from fedpriv.deploy.flower.machines import free_port
    from fedpriv.deploy.flower.paths import make

    port = free_port()
    deployment = make(tmp_path / "d", 3, "127.0.0.1", port, inner_port=port)
    for number in range(3):
        file = deployment.client_file(number)
        file.write_text(file.read_text().replace("  share: own", "  share: partition").replace("poll: 1", "poll: 0.2"))
    return deployment


@pytest.fixture
def served(paths: Any) -> Iterator[Served]:
    """With all clients."""
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.control import SuperLink

    running = Served(paths, SuperLink(f"127.0.0.1:{paths.settings().port}", paths.authority))
    try:
        with ExitStack() as stack:
            for number in range(3):
                stack.enter_context(machines.client(paths.client_file(number), patience=machines.START))
            until = time.monotonic() + 180
            while any(node.status != "online" for node in running.link.nodes()):
                assert time.monotonic() < until
                time.sleep(0.5)
            yield running
    finally:
        running.process.terminate()
        running.process.wait(60)


def test_a_restarted_server_continues_its_run(tmp_path: Path, paths: Any, served: Served) -> None:
    from fedpriv.deploy.flower.requests import Request

    settings = {**SMALL, "train.rounds": 5}
    play(tmp_path / "whole", "scaffold", **settings)
    request = Request.write(paths.requests, paths.runs / "ended", config("scaffold", **settings), 3, ANSWER)
    number, ends, until = served.link.start(request.path), dict(ENDS), time.monotonic() + LONGEST

    def end(record: dict[str, Any]) -> None:
        if (how := ends.pop(record["round"], None)) is not None:
            served.end(how)
            while (status := RunFolder(request.run_dir).status) == "running":  # its locks are freed a moment later
                time.sleep(0.1)
            assert status == "killed" and request.ended is None
            served.start()

    def alive() -> None:
        served.link.check(number)
        assert time.monotonic() < until, (paths.log).read_text()[-4000:]

    assert request.follow(alive, end)
    assert not ends
    same(request.run_dir, tmp_path / "whole")
