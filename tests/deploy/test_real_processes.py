"""A server and three clients as real processes on this machine, joined by Flower with TLS and keys."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.apart import hashes, records
from tests.simulation.small import config, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("flwr") is None, reason="Flower is not installed: uv run --extra deploy pytest tests/deploy"),
]
SMALL = {
    "data.clients": 3,
    "data.limit": 300,
    "train.rounds": 2,
    "train.participation": 1.0,
    "model.projection": 8,
    "executor.name": "sequential",
    "wire.keep_payloads": "all",
}
ANSWER = 120.0


@dataclass
class Deployment:
    """What a test may do to it."""

    home: Any
    link: Any
    look: Callable[[], None]
    keepers: list[Any]

    def play(self, name: str, method: str, on_round: Callable[[Any], None] = lambda record: None, **more: Any) -> Path:
        """A run of that name, to its end."""
        from fedpriv.deploy.flower.requests import Request

        chosen = config(method, **{**SMALL, **more})
        request = Request.write(self.home.requests, self.home.runs / name, chosen, 3, ANSWER)
        self.link.start(request.path)
        assert request.follow(self._bounded(), on_round)
        return Path(request.run_dir)

    def _bounded(self) -> Callable[[], None]:
        until = time.monotonic() + 400

        def look() -> None:
            self.look()
            assert time.monotonic() < until, "the run does not end"

        return look


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    from fedpriv.deploy.flower.demo import all_here
    from fedpriv.deploy.flower.home import make
    from fedpriv.deploy.flower.machines import free_port

    port = free_port()
    home = make(tmp_path_factory.mktemp("deployed") / "d", 3, "127.0.0.1", port, inner_port=port)
    for number in range(3):
        file = home.client_file(number)
        file.write_text(file.read_text().replace("  share: own", "  share: dealt").replace("poll: 1", "poll: 0.2"))
    with all_here(home) as (link, look, keepers):
        yield Deployment(home, link, look, keepers)


def same(deployed: Path, whole: Path) -> None:
    """Both ended with the same bits at the server."""
    state = ("checkpoints/server-*.safetensors", "payloads/*/*", "weights/*")
    assert hashes(deployed, *state) == hashes(whole, *state)
    assert records(deployed) == records(whole)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mpfedcon"])
def test_it_ends_where_a_simulation_does(tmp_path: Path, deployment: Deployment, method: str) -> None:
    play(tmp_path / "whole", method, **SMALL)
    same(deployment.play(method, method), tmp_path / "whole")


def test_a_client_whose_process_is_killed_loses_nothing(tmp_path: Path, deployment: Deployment) -> None:
    """Its turn is taken again by the process that takes its place, from the disk."""
    from fedpriv.server.run_folder import RunFolder

    play(tmp_path / "whole", "mpfedcon", **{**SMALL, "train.rounds": 4})
    killed: list[int] = []

    def kill(record: dict[str, Any]) -> None:
        if record["round"] in (1, 2):
            killed.append(deployment.keepers[1].pid("client 0"))
            os.kill(killed[-1], signal.SIGKILL)

    deployed = deployment.play("killed", "mpfedcon", kill, **{"train.rounds": 4})
    assert len(set(killed)) == 2
    assert not any("missing" in record["metrics"] for record in RunFolder.open(deployed).records())
    same(deployed, tmp_path / "whole")


def test_a_server_whose_app_is_killed_goes_on_by_resume(tmp_path: Path, deployment: Deployment) -> None:
    from fedpriv.deploy.flower.requests import Request

    play(tmp_path / "whole", "scaffold", **{**SMALL, "train.rounds": 3})
    chosen = config("scaffold", **{**SMALL, "train.rounds": 3})
    first = Request.write(deployment.home.requests, deployment.home.runs / "app-killed", chosen, 3, ANSWER)
    number = deployment.link.start(first.path)
    until = time.monotonic() + 200
    while not list((first.run_dir / "checkpoints").glob("round-000001.json")):
        deployment.look()
        assert time.monotonic() < until
        time.sleep(0.1)
    deployment.link.stop(number)
    time.sleep(5)
    again = Request.write(deployment.home.requests, first.run_dir, None, 3, ANSWER)
    deployment.link.start(again.path)
    assert again.follow(deployment._bounded(), lambda record: None)
    same(first.run_dir, tmp_path / "whole")


def test_a_superlink_that_is_killed_goes_on_from_its_database(tmp_path: Path, deployment: Deployment) -> None:
    play(tmp_path / "whole", "fedavg", **{**SMALL, "train.rounds": 3})

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            os.kill(deployment.keepers[0].pid("the SuperLink"), signal.SIGKILL)

    same(deployment.play("link-killed", "fedavg", kill, **{"train.rounds": 3}), tmp_path / "whole")


def test_a_node_that_is_killed_misses_rounds_and_comes_back(deployment: Deployment) -> None:
    from fedpriv.server.run_folder import RunFolder

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            os.kill(deployment.keepers[2].pid("its SuperNode"), signal.SIGKILL)

    deployed = deployment.play("node-killed", "scaffold", kill, **{"train.rounds": 4})
    records = RunFolder.open(deployed).records()
    assert [record["round"] for record in records] == [0, 1, 2, 3, 4]
    assert sum(record["metrics"].get("missing", 0) for record in records) <= 4
    assert "missing" not in records[4]["metrics"]
