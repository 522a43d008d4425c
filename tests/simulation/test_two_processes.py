"""The halves of a run need nothing of each other but bytes: in two processes they end where ``fedpriv train`` does."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.small import play

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"wire.transforms": [{"name": "cast"}]}),
    ("scaffold", {}),
    ("mpfedcon", {"method.negative": "R2"}),
]


def hashes(folder: Path, *patterns: str) -> dict[str, str]:
    files = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def records(folder: Path) -> list[dict[str, Any]]:
    """What both ways of scoring say."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = ("participants", "train_loss", "accuracy", "bytes_up", "total_bytes_up", "total_bytes_down")
    return [{**line["per_client"], **{name: line["metrics"].get(name) for name in measured}} for line in lines]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pairs of runs, ``METHOD/whole`` and ``METHOD/halves``."""
    folder, command = tmp_path_factory.mktemp("two-halves"), [sys.executable, "-m", "tests.simulation.two_processes"]
    for method, options in CASES:
        whole = folder / method / "whole"
        play(whole, method, **options, **{"wire.keep_payloads": "all", "train.participation": 0.5})
        command += [str(whole / "config.yaml"), str(folder / method / "halves")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("method", [method for method, _ in CASES])
def test_two_processes_that_share_a_pipe_end_where_one_ends(played: Path, method: str) -> None:
    whole, halves = played / method / "whole", played / method / "halves"
    state = ("checkpoints/server-*.safetensors", "payloads/*/*")
    assert len(hashes(whole, *state)) > 10
    assert hashes(halves, *state) == hashes(whole, *state)
    assert hashes(halves / "at-the-clients", "client-*") == hashes(whole / "clients", "client-*")
    assert bool(hashes(whole / "clients", "client-*")) == (method != "fedavg")
    assert not (halves / "clients").exists()
    assert records(halves) == records(whole)
