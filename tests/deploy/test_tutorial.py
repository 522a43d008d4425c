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


def commands() -> list[str]:
    lines = re.findall(r"^    (.+)$", PAGE.read_text(), re.MULTILINE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [line.replace("--port 8400", f"--port {port}") for line in lines if not line.startswith("pip ")]


@pytest.fixture
def background() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in reversed(processes):
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_the_tutorial(tmp_path: Path, background: list[subprocess.Popen[bytes]]) -> None:
    environment = os.environ | {"PYTHONPATH": str(PAGE.parents[2])}

    def run(line: str) -> str:
        words = shlex.split(line)
        command = [sys.executable, "-m", *words] if words[0] == "fedpriv" else words
        if line.startswith(STAYS):
            background.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL))
            return ""
        until = time.monotonic() + 300
        while True:
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
            if "no server answers" not in done.stderr or time.monotonic() > until:  # who reads the page types slower
                break
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    said: dict[str, str] = {}
    for line in commands():
        if line == "fedpriv deploy status trial":
            until = time.monotonic() + 300
            while (now := run(line)) != shown:
                assert time.monotonic() < until, now
                time.sleep(1)
        else:
            said[line] = run(line)
    payloads, state = (said[line] for line in said if line.startswith("ls "))
    assert "round" in payloads and state.strip()
    assert any("accuracy" in text for line, text in said.items() if line.startswith("fedpriv deploy run"))
    assert (tmp_path / "trial" / "runs" / "first" / "audit" / "audit.html").exists()
