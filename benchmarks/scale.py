"""Whether memory stays flat as clients are registered: the peak with 100, 1,000 and 10,000 clients, 10 of them in a round.

Every case is a fresh process, which reports its own ``ru_maxrss`` (in MB of 10^6 bytes). The work of a round is the same in
all: 10 clients of 6 images, one local epoch, LeNet-5 with a projector of 128. The images of Fashion-MNIST are dealt iid to
all clients; what a client holds beyond 6 images is set aside as its validation data, and the test images are dealt too
(``test: disjoint``). Five rounds without evaluation are timed (CPU and wall, median), then one is played in which all
clients are tested, then the peak is read.

    fedavg         nothing stays with a client
    fedrep         projector and head stay with the client, stored on disk at its turn: some clients have them
    fedrep-stored  all clients have them already (made up before the first round, 77 kB each)

Flat means: the peak of 10,000 clients is at most 1.1 times that of 100. ``fedrep-stored`` may add the cache of private
states on top of that, 256 MiB by design, whatever the number of clients: 10,000 states are 770 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts

CLIENTS = (100, 1_000, 10_000)
CASES = ("fedavg", "fedrep", "fedrep-stored")
PARTICIPANTS, SAMPLES, TIMED = 10, 6, 5
GROWTH = 1.1
"""Largest ratio of the peaks of most and fewest clients."""
CACHE_MB = 256 * 2**20 / 1e6
"""Default bound of ``fedpriv.simulation.checkpoint.Checkpoints``."""


def play(case: str, clients: int, data_dir: Path | None) -> dict[str, Any]:
    """One case, in this process."""
    import resource

    import torch

    from fedpriv.config import RunConfig, parse
    from fedpriv.simulation import setup
    from fedpriv.simulation.loop import Simulation
    from fedpriv.simulation.run_folder import RunFolder

    def peak() -> float:
        """MB; Linux counts ``ru_maxrss`` in KiB, macOS in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6

    if data_dir is None:
        from round_cost import synthetic

        noise = synthetic()
        setup.load_dataset = lambda *_: noise
    values = {
        "method": case.partition("-")[0],
        "data": {
            "name": "fashion_mnist",
            "dir": data_dir,
            "clients": clients,
            "partition": {"name": "iid", "test": "disjoint"},
            "validation_fraction": 1 - SAMPLES * clients / 60_000,
        },
        "model": {"name": "lenet5", "projection": 128},
        "train": {"rounds": TIMED + 2, "participation": PARTICIPANTS / clients, "local_epochs": 1},
        "eval": {"every": TIMED + 2, "last": 1},
        "tracking": {"uri": "none"},
    }
    with tempfile.TemporaryDirectory() as folder:
        federation = setup.build(parse(RunConfig, values, "benchmark"))
        simulation = Simulation(federation, RunFolder.create(federation.config, Path(folder)), print)
        simulation.start()
        if case == "fedrep-stored":
            fill(simulation)
        simulation.play_round()  # warms up
        cpu, wall = [], []
        for _ in range(TIMED):
            began, began_wall = time.process_time(), time.perf_counter()
            record = simulation.play_round()
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - began_wall)
            assert record["metrics"]["participants"] == PARTICIPANTS and not record["per_client"]
        before_test, began = peak(), time.process_time()
        record = simulation.play_round()
        assert len(record["per_client"]["accuracy"]) == clients
    return {
        "peak_mb": round(peak()),
        "peak_mb_before_test": round(before_test),
        "cpu_ms_per_round": round(1e3 * median(cpu), 1),
        "wall_ms_per_round": round(1e3 * median(wall), 1),
        "cpu_s_of_round_with_test": round(time.process_time() - began, 2),
        "threads": torch.get_num_threads(),
    }


def fill(simulation: Any) -> None:
    """Store a private state for every client. Without waiting for the disk: 10,000 times that is not what is measured."""
    fsync, os.fsync = os.fsync, lambda fd: None
    federation = simulation.federation
    for client in range(federation.config.data.clients):
        simulation.checkpoints.keep(client, 0, federation.method.first_private(client, federation.initial))
        simulation.progress.clients[client] = 0
    os.fsync = fsync


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all; may be repeated")
    parser.add_argument("--clients", type=int, action="append", help=f"default: {CLIENTS}; may be repeated")
    parser.add_argument("--data-dir", type=Path, help="folder that holds fashion_mnist/*.parquet; default: FEDPRIV_DATA")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the fresh process of one case
    options = parser.parse_args()
    data_dir = options.data_dir or (Path(os.environ["FEDPRIV_DATA"]) if os.environ.get("FEDPRIV_DATA") else None)
    if data_dir and not (data_dir / "fashion_mnist").is_dir():
        data_dir = None
    if options.here:
        print(json.dumps(play(options.case[0], options.clients[0], data_dir)))
        return

    data = "fashion_mnist" if data_dir else "synthetic"
    if not data_dir:
        print("Fashion-MNIST is not there (--data-dir, FEDPRIV_DATA): SYNTHETIC images of the same shape instead")
    about = facts(("fedpriv", "torch", "numpy", "safetensors"))
    results: dict[str, Any] = {"benchmark": "scale", **about, "data": data, "participants": PARTICIPANTS, "cases": {}}
    counts = sorted(options.clients or CLIENTS)
    failed = []
    for case in options.case or CASES:
        rows = results["cases"][case] = {}
        for clients in counts:
            rows[str(clients)] = row = in_fresh_process(case, clients, data_dir)
            print(
                f"{case:13} {clients:6} clients: peak {row['peak_mb']} MB ({row['peak_mb_before_test']} before the test), "
                f"a round {row['cpu_ms_per_round']} ms CPU, {row['wall_ms_per_round']} ms wall, "
                f"with test {row['cpu_s_of_round_with_test']} s CPU"
            )
        least, most = rows[str(counts[0])]["peak_mb"], rows[str(counts[-1])]["peak_mb"]
        bound = GROWTH * least + (CACHE_MB if case == "fedrep-stored" else 0)
        print(f"{case:13} peak of {counts[-1]} over that of {counts[0]}: {most / least:.3f}")
        if most > bound:
            failed.append(f"{case}: {most} MB is above {bound:.0f}")
    print(f"on {results['processor']}, load {results['load_average']}, Python {results['python']}, {results['versions']}, {data}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        sys.exit("memory is not flat: " + "; ".join(failed))


def in_fresh_process(case: str, clients: int, data_dir: Path | None) -> dict[str, Any]:
    """A child of this process, which imports nothing big: on Linux a child's ``ru_maxrss`` starts from its parent's."""
    command = [sys.executable, __file__, "--here", "--case", case, "--clients", str(clients)]
    command += ["--data-dir", str(data_dir)] if data_dir else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
