"""Runs whose server and clients share nothing but frames of bytes, in one process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from fedpriv.config import RunConfig
from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.server_run import resume, start
from tests.deploy.loopback import Loopback
from tests.simulation.small import config

ALL_KEPT = {"wire.keep_payloads": "all"}


def client_nodes(folder: Path, of: RunConfig, share: Literal["own", "partition"] = "partition") -> dict[int, ClientNode]:
    """Client -> its node, in a folder of its own."""
    name, where = of.data.name, of.data.dir
    return {n: ClientNode(n, Source(name, where, share), folder / f"client-{n}") for n in range(of.data.clients)}


def play_apart(folder: Path, method: str, warnings: list[str] | None = None, grid: Any = None, **overrides: Any) -> Path:
    """Run a config with clients that share only frames with the server; their folders are beside the run's."""
    chosen = config(method, **overrides, run_dir=str(folder))
    warned = [] if warnings is None else warnings
    grid = grid or Loopback(client_nodes(folder.parent / f"{folder.name}-clients", chosen))
    start(chosen, folder.parent, grid, 60, lambda *of: None, lambda record: None, warned.append)
    return folder


def go_on(folder: Path, grid: Any, warnings: list[str] | None = None) -> None:
    """Resume such a run."""
    warned = [] if warnings is None else warnings
    resume(folder, grid, 60, lambda *of: None, lambda record: None, warned.append)


def hashes(folder: Path, *patterns: str) -> dict[str, str]:
    """Relative path -> SHA-256 of the files that match."""
    files = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def at_the_clients(folder: Path) -> dict[str, str]:
    """File name in a simulation -> SHA-256 of the clients' private states."""
    files = sorted(folder.glob("client-*/runs/*/states/client-*"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def records(folder: Path) -> list[dict[str, Any]]:
    """The metrics that a simulation and a deployment both have."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = ("participants", "train_loss", "accuracy", "bytes_up", "total_bytes_up", "total_bytes_down")
    return [{name: line["metrics"].get(name) for name in measured} for line in lines]


def same_records(apart: Path, whole: Path) -> None:
    """Assert that the metrics of two runs are equal, and the clients' scores to rounding: a deployment tests a client's samples
    alone, and some processors round a product otherwise for more rows."""
    assert records(apart) == records(whole)
    for one, other in zip(scores(apart), scores(whole), strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-7)


def scores(folder: Path) -> list[dict[str, Any]]:
    """The clients' scores by round, each without those that are not measured."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {f"{name} of {n}": value for name, of in line["per_client"].items() for n, value in enumerate(of) if value is not None}
        for line in lines
    ]


def agree(apart: Path, whole: Path) -> None:
    """Assert that checkpoints, messages, private states, weights and metrics are equal to the bit, and scores to rounding."""
    state = ("checkpoints/server-*.safetensors", "payloads/*/*", "weights/*")
    assert hashes(apart, *state) == hashes(whole, *state)
    assert len(hashes(whole, *state)) > 1
    private = {name.removeprefix("clients/"): digest for name, digest in hashes(whole, "clients/client-*").items()}
    kept = at_the_clients(apart.parent / f"{apart.name}-clients")  # may have states of earlier rounds, too
    assert {name: kept.get(name) for name in private} == private
    same_records(apart, whole)
