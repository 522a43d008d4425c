"""Plays runs on a Ray cluster of two nodes on this machine, in a network namespace of its own; called by ``test_ray``.

``python -m tests.simulation.ray_cluster FOLDER CASE...``: a case is a method, ``killed`` or ``removed``. The last line of the
output has, by case, whether the run equals that of one process, and what the run warned of; and whether Ray found that uv had
started it, and what it told its workers then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpriv.simulation import run
from fedpriv.simulation.executors.ray import connected
from tests.simulation.small import computed, config, play

STATEFUL = "scaffold"
LONGER = {"train.rounds": 4, "train.participation": 0.6}


def on_ray(folder: Path, method: str, on_round: Callable[[dict[str, Any]], None], **options: Any) -> list[str]:
    """A whole run; its warnings."""
    warnings: list[str] = []
    spread = {"executor.workers": "ray", "executor.ray_workers": 2}
    run.start(
        config(method, **options, **spread, run_dir=str(folder)), folder.parent, lambda *given: None, on_round, warnings.append
    )
    return warnings


def workers() -> list[int]:
    """The process ids of the actors in this network namespace."""
    here, pids = os.readlink("/proc/self/ns/net"), list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (process / "cmdline").read_bytes().startswith(b"ray::_Actor") and os.readlink(process / "ns/net") == here:
                pids.append(int(process.name))
    return pids


def until_both_run() -> None:
    """Wait for the second worker: a run as short as these may end before it is there, and then says nothing of its node."""
    deadline = time.monotonic() + 120
    while len(workers()) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("only one worker runs")
        time.sleep(0.1)


def main(folder: Path, cases: list[str]) -> dict[str, Any]:
    from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    ray = connected(cluster.address)
    results: dict[str, Any] = {
        "uv run": _get_uv_run_cmdline() is not None,
        "runtime_env": dict(ray.get_runtime_context().runtime_env),
    }

    def disturb(case: str, record: dict[str, Any]) -> None:
        nonlocal second
        if case == "killed" and record["round"] == 1:
            os.kill(workers()[0], signal.SIGKILL)
        if case == "removed" and record["round"] == 1:
            until_both_run()
            cluster.remove_node(second, allow_graceful=False)
        if case == "removed" and record["round"] == 3:
            second = cluster.add_node(num_cpus=1)

    for case in cases:
        method, options = (case, {}) if case not in ("killed", "removed") else (STATEFUL, LONGER)
        alone, spread = folder / f"{case}-alone", folder / f"{case}-spread"
        play(alone, method, **options)
        warnings = on_ray(spread, method, lambda record, case=case: disturb(case, record), **options)  # type: ignore[misc]
        results[case] = {"equal": computed(alone) == computed(spread), "said": warnings}
    ray.shutdown()
    cluster.shutdown()
    return results


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
