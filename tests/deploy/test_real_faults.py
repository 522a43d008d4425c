"""Clients that lie, hang or come too late, keys that are unknown or used twice, and a node killed in the middle of a local
update."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import FedprivError
from fedpriv.storage.run_folder import RunFolder
from tests.deploy import liar
from tests.deploy.deployed import REAL, SMALL, Deployment, deployment, same
from tests.simulation.small import play

__all__ = ["deployment"]
pytestmark = REAL
ROOT = Path(__file__).parents[2]
SECONDS = 60.0
"""That an answer may take, where one does not come."""


@pytest.fixture(autouse=True)
def liars(deployment: Deployment) -> None:
    """Resident processes that lie where a file says so; no file says so yet."""
    for number, supervisor in enumerate(deployment.supervisors[1:]):
        folder(deployment, number).joinpath(liar.LIE).unlink(missing_ok=True)
        process = supervisor._processes[f"client {number}"]
        honest = "from fedpriv.deploy.flower.machines import serve_client"
        lying = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.deploy.liar import serve_client"
        if any(honest in part for part in process.command):
            process.command = [part.replace(honest, lying) for part in process.command]
            os.kill(supervisor.pids()[f"client {number}"], signal.SIGKILL)


def folder(deployment: Deployment, number: int) -> Path:
    return Path(deployment.paths.path / f"client-{number}" / "state")


def named(record: dict[str, Any], how: str) -> list[int]:
    return [client["client"] for client in record.get(how, ())]


def test_a_wrong_schema_and_a_huge_update_are_refused(deployment: Deployment) -> None:
    liar.tell(folder(deployment, 1), round=1, how="schema")
    liar.tell(folder(deployment, 2), round=2, how="thousandfold")
    run = deployment.play("lies", "fedavg", **{"train.rounds": 3, "train.max_update_norm": 100.0})
    records = RunFolder.open(run).records()
    assert [named(record, "refused") for record in records] == [[], [1], [2], []]
    assert re.search(r"has shape \[\d+.*\], not \[\d+", records[1]["refused"][0]["reason"])
    assert re.fullmatch(r"the change has norm [\d.e+]+, over 100", records[2]["refused"][0]["reason"])
    assert [len(list(run.glob(f"payloads/round-000{round}/client-*.safetensors"))) for round in (1, 2, 3)] == [2, 2, 3]


def test_a_run_continues_without_silent_and_late_clients(deployment: Deployment) -> None:
    """Each round is bounded by its time; the one that hangs is killed by its operator, and comes back. No test before the last
    round, which would wait for them too."""
    liar.tell(folder(deployment, 1), round=1, how="sleep", seconds=10_000)
    liar.tell(folder(deployment, 2), round=2, how="sleep", seconds=SECONDS + 5)

    def end(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            (folder(deployment, 1) / liar.LIE).unlink()  # or it might be asked for its local update once more, and hang again
            os.kill(deployment.supervisors[2].pids()["client 1"], signal.SIGKILL)

    run = deployment.play("late", "fedavg", end, answer=SECONDS, **{"train.rounds": 3, "eval.every": 3, "eval.last": 1})
    records = RunFolder.open(run).records()
    assert all(record["metrics"]["seconds"] < SECONDS + 20 for record in records[:3])
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    missing = [named(record, "missing") for record in records]  # a process may take more than a round to start again
    assert missing[0] == missing[3] == [] and missing[1] == [1] and 2 in missing[2] and set(missing[2]) <= {1, 2}
    late = folder(deployment, 2) / "log.txt"
    assert "fedpriv: an answer came too late" in late.read_text()


def test_a_node_killed_during_an_update_answers_once(tmp_path: Path, deployment: Deployment) -> None:
    """The local update is not taken again: the process that took it still has its answer when the frame comes once more."""
    play(tmp_path / "whole", "mpfedcon", **{**SMALL, "train.rounds": 3})
    liar.tell(folder(deployment, 0), round=2, how="sleep", seconds=5)
    killed: list[int] = []

    def kill() -> None:
        if not killed and "mid-local update 2" in liar.updates(folder(deployment, 0)):
            killed.append(deployment.supervisors[1].pids()["its SuperNode"])
            os.kill(killed[0], signal.SIGKILL)

    run = deployment.play("mid-local update", "mpfedcon", meanwhile=kill, **{"train.rounds": 3})
    assert killed and deployment.supervisors[1].pids()["its SuperNode"] != killed[0]
    same(run, tmp_path / "whole")
    assert liar.updates(folder(deployment, 0)).count("mid-local update 2") == 1


def test_unknown_keys_and_second_nodes_are_not_admitted(tmp_path: Path, deployment: Deployment) -> None:
    """The operator of such a node reads why in a line, and a run that is played meanwhile counts every client once."""
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.certificates import make_client_key

    play(tmp_path / "whole", "fedavg", **SMALL)
    make_client_key(tmp_path / "key")
    keys = {"unknown": tmp_path / "key", "second": deployment.paths.path / "client-1" / "key"}
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        supervisors = {}
        for name, key in keys.items():
            own = (deployment.paths.path / "client-1.yaml").read_text()
            own = own.replace("certificate: client-1", f"certificate: {deployment.paths.path}/client-1")
            own = own.replace("key: client-1/key", f"key: {key}").replace("folder: client-1", f"folder: {tmp_path / name}")
            (tmp_path / f"{name}.yaml").write_text(own)
            supervisors[name] = stack.enter_context(machines.client(tmp_path / f"{name}.yaml"))

        def watch() -> None:
            for name in supervisors.keys() - errors.keys():
                try:
                    supervisors[name].look()
                except FedprivError as error:
                    errors[name] = str(error)

        same(deployment.play("doubles", "fedavg", meanwhile=watch), tmp_path / "whole")
        until = time.monotonic() + 200
        while len(errors) < len(keys):
            watch()
            assert time.monotonic() < until
            time.sleep(0.5)
    for line in errors.values():
        assert line == (
            "its SuperNode cannot run: the server does not admit this node: its key is not registered, or another node with the "
            "same key is connected"
        )
