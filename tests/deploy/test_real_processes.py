"""A server and three clients as real processes on this machine, joined by Flower with TLS and keys."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import FedprivError
from fedpriv.storage.run_folder import RunFolder
from tests.deploy.deployed import ANSWER, REAL, SMALL, Deployment, deployment, same
from tests.simulation.small import config, play

__all__ = ["deployment"]
pytestmark = REAL


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mpfedcon"])
def test_a_run_equals_a_simulation(tmp_path: Path, deployment: Deployment, method: str) -> None:
    play(tmp_path / "whole", method, **SMALL)
    same(deployment.play(method, method), tmp_path / "whole")


def test_a_client_whose_process_is_killed_loses_nothing(tmp_path: Path, deployment: Deployment) -> None:
    """Its local update is taken again by the process that takes its place, from the disk."""
    play(tmp_path / "whole", "mpfedcon", **{**SMALL, "train.rounds": 4})
    killed: list[int] = []

    def kill(record: dict[str, Any]) -> None:
        if record["round"] in (1, 2):
            killed.append(deployment.supervisors[1].pids()["client 0"])
            os.kill(killed[-1], signal.SIGKILL)

    deployed = deployment.play("killed", "mpfedcon", kill, **{"train.rounds": 4})
    assert len(set(killed)) == 2
    assert not any("missing" in record["metrics"] for record in RunFolder.open(deployed).records())
    same(deployed, tmp_path / "whole")


def test_a_run_whose_app_was_killed_can_be_resumed(tmp_path: Path, deployment: Deployment) -> None:
    from fedpriv.deploy.flower.requests import Request

    play(tmp_path / "whole", "scaffold", **{**SMALL, "train.rounds": 3})
    chosen = config("scaffold", **{**SMALL, "train.rounds": 3})
    first = Request.write(deployment.paths.requests, deployment.paths.runs / "app-killed", chosen, 3, ANSWER)
    number = deployment.link.start(first.path)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            deployment.link.stop(number)

    with pytest.raises(FedprivError, match=r"the server's app was ended \(stopped\)"):
        deployment.follow(first, number, stop, lambda: deployment.link.check(number))
    time.sleep(5)
    again = Request.write(deployment.paths.requests, first.run_dir, None, 3, ANSWER)
    assert deployment.follow(again, deployment.link.start(again.path))
    same(first.run_dir, tmp_path / "whole")


def test_a_killed_superlink_continues_from_its_database(tmp_path: Path, deployment: Deployment) -> None:
    play(tmp_path / "whole", "fedavg", **{**SMALL, "train.rounds": 3})

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            os.kill(deployment.supervisors[0].pids()["the SuperLink"], signal.SIGKILL)

    same(deployment.play("link-killed", "fedavg", kill, **{"train.rounds": 3}), tmp_path / "whole")


def test_a_node_with_a_replaced_key_is_not_admitted(deployment: Deployment, tmp_path: Path) -> None:
    from fedpriv.deploy.flower.certificates import make_client_key

    def numbers() -> dict[str, int]:
        return {node.name: node.number for node in deployment.link.nodes()}

    before, keys = numbers(), {f"client-{number}": deployment.paths.public_key(number) for number in range(3)}
    for name in ("first", "second"):
        make_client_key(tmp_path / name)
    deployment.link.admit({**keys, "client-3": tmp_path / "first.pub"})
    first = numbers()["client-3"]
    deployment.link.admit({**keys, "client-3": tmp_path / "second.pub"})
    assert numbers()["client-3"] != first and numbers().keys() == {*before, "client-3"}
    deployment.link.admit(keys)
    assert numbers() == before


def test_a_killed_node_is_asked_again(deployment: Deployment) -> None:
    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            os.kill(deployment.supervisors[2].pids()["its SuperNode"], signal.SIGKILL)

    deployed = deployment.play("node-killed", "scaffold", kill, **{"train.rounds": 4})
    records = RunFolder.open(deployed).records()
    assert [record["round"] for record in records] == [0, 1, 2, 3, 4]
    assert not any("missing" in record for record in records)
