"""The tutorial of a deployment, command by command."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.deployed import REAL

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "a-deployment.md"
STAYS = ("fedpriv deploy server", "fedpriv deploy client")
pytestmark = REAL


def commands(port: int) -> list[str]:
    lines = re.findall(r"^    (.+)$", PAGE.read_text(), re.MULTILINE)
    return [line.replace("--port 8400", f"--port {port}") for line in lines if not line.startswith("pip ")]


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_server(port: int) -> None:
    """Who reads the page types the next command when the server says that it listens."""
    until = time.monotonic() + 300
    while True:
        try:
            return socket.create_connection(("localhost", port), 5).close()
        except OSError:
            assert time.monotonic() < until, "the server does not listen"
            time.sleep(0.5)


@pytest.fixture
def background() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in reversed(processes):
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_the_tutorial(tmp_path: Path, background: list[subprocess.Popen[bytes]], port: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(PAGE.parents[2])}

    def run(line: str) -> str:
        words = shlex.split(line)
        command = [sys.executable, "-m", *words] if words[0] == "fedpriv" else words
        if line.startswith(STAYS):
            background.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL))
            wait_for_server(port)
            return ""
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    outputs: dict[str, str] = {}
    for line in commands(port):
        if line == "fedpriv deploy status trial":
            until = time.monotonic() + 300
            while (now := run(line)) != shown:
                assert time.monotonic() < until, now
                time.sleep(1)
        else:
            outputs[line] = run(line)
    payloads, state = (outputs[line] for line in outputs if line.startswith("ls "))
    assert "round" in payloads and state.strip()
    assert any("accuracy" in text for line, text in outputs.items() if line.startswith("fedpriv deploy run"))
    assert (tmp_path / "trial" / "runs" / "first" / "audit" / "audit.html").exists()
