"""The cost of a round on two Ray workers, two forked workers and one process, in CPU seconds of all processes.

    W2  Fashion-MNIST, LeNet-5 (44,426 parameters), 1000 clients of 60 images, 100 a round in groups of ten, 1 local epoch
    R18 CIFAR-10, ResNet-18 (11.2 M parameters, 44 MB a message), 1000 clients of 50 images, 4 a round, one after another

The contenders run their rounds in turn. CPU time is that of all processes in a network namespace of its own, Ray's daemons
included. After the last round all have the same weights, bit for bit; otherwise it is an error. Needs the extra ``cluster``, the
commands ``unshare`` and ``ip``, and the data sets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import facts, parser_of, report, spread
from trial import NEVER, begin

OVERHEAD = 0.25
"""CPU seconds a round that Ray may cost over forked workers."""
INSIDE = "FEDPRIV_BENCHMARK_NAMESPACE"
CONTENDERS: dict[str, dict[str, Any]] = {
    "one process": {},
    "two forked": {"workers": 2},
    "two on Ray": {"workers": "ray", "ray_workers": 2},
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "W2": {
        "data": {"name": "fashion_mnist", "clients": 1000, "partition": {"name": "iid"}},
        "model": {"name": "lenet5", "projection": None},
        "train": {"participation": 0.1, "local_epochs": 1, "batch_size": 32},
        "executor": {"name": "vectorized", "group_size": 10},
    },
    "R18": {
        "data": {"name": "cifar10", "clients": 1000, "partition": {"name": "iid"}},
        "model": {"name": "resnet18", "projection": None},
        "train": {"participation": 0.004, "local_epochs": 1, "batch_size": 25},
        "executor": {"name": "sequential"},
    },
}


def config_of(workload: str, rounds: int, data_dir: Path, executor: dict[str, Any]) -> dict[str, Any]:
    work = WORKLOADS[workload]
    return {
        **work,
        "method": "fedavg",
        "data": {**work["data"], "dir": data_dir},
        "train": {**work["train"], "rounds": rounds + 1},  # one more than is run: the last is always evaluated
        "executor": {**work["executor"], **executor},
        "eval": {"every": NEVER, "last": 1},
        "wire": {"keep_payloads": "none"},
        "threads": 1,
    }


def cpu_seconds() -> float:
    """Of all processes in this network namespace, and of those that have ended and were waited for."""
    here, ticks = os.readlink("/proc/self/ns/net"), 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/net") == here:
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        except OSError:  # it has ended
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(workload: str, repeats: int, data_dir: Path, folder: Path) -> dict[str, Any]:
    import torch

    simulations = {
        name: begin(config_of(workload, repeats + 1, data_dir, executor), folder / name) for name, executor in CONTENDERS.items()
    }
    cpu: dict[str, list[float]] = {name: [] for name in simulations}
    wall: dict[str, list[float]] = {name: [] for name in simulations}
    for repeat in range(repeats + 1):
        for name, simulation in simulations.items():
            before, start = cpu_seconds(), time.monotonic()
            simulation.run_round()
            if repeat:  # the first one starts the workers
                cpu[name].append(cpu_seconds() - before)
                wall[name].append(time.monotonic() - start)
    first, *others = (simulation.state.row for simulation in simulations.values())
    if not all(torch.equal(first, other) for other in others):
        sys.exit(f"{workload}: the contenders end at different weights")
    for simulation in simulations.values():
        simulation.executor.close()
    extra = [there - here for there, here in zip(cpu["two on Ray"], cpu["two forked"], strict=True)]
    return {
        "cpu_seconds_a_round": {name: spread(values) for name, values in cpu.items()},
        "wall_seconds_a_round": {name: spread(values) for name, values in wall.items()},
        "ray_over_forked_cpu_seconds": spread(extra),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data-dir", type=Path, required="FEDPRIV_DATA" not in os.environ, help="default: FEDPRIV_DATA")
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if INSIDE not in os.environ:
        command = ["unshare", "--net", "--map-root-user", sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, INSIDE: "1", "OMP_NUM_THREADS": "1"}, check=False).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    data_dir = (options.data_dir or Path(os.environ["FEDPRIV_DATA"])).absolute()
    results: dict[str, Any] = {"benchmark": "cluster", **facts(("fedpriv", "torch", "ray")), "repeats": options.repeats}
    missed = []
    for workload in options.only or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            results[workload] = row = measure(workload, options.repeats, data_dir, Path(folder))
        for name in CONTENDERS:
            print(
                f"{workload} {name:12} CPU s a round {row['cpu_seconds_a_round'][name]}, wall {row['wall_seconds_a_round'][name]}"
            )
        extra = row["ray_over_forked_cpu_seconds"]
        print(f"{workload} Ray over forked: {extra} CPU s a round")
        missed += [f"{workload}: {extra['median']} CPU s a round over forked workers, above {OVERHEAD}"] * (
            extra["median"] > OVERHEAD
        )
    report(results, options.json, missed)


if __name__ == "__main__":
    main()
