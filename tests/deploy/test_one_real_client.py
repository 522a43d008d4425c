"""The quickest deployment of real processes: a server and one client, with TLS and a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.deployed import SMALL, deployed, same
from tests.simulation.small import play

pytestmark = pytest.mark.extra("deploy")


def test_a_run_equals_a_simulation_and_leaves_no_process(tmp_path: Path) -> None:
    alone = {"data.clients": 1, "data.limit": 100, "train.rounds": 1}
    play(tmp_path / "whole", "fedavg", **{**SMALL, **alone})
    with deployed(tmp_path / "d", 1) as deployment:
        same(deployment.play("run", "fedavg", **alone), tmp_path / "whole")
        processes = [process.popen for supervisor in deployment.supervisors for process in supervisor._processes.values()]
    assert len(processes) == 5 and all(process.poll() is not None for process in processes)
