"""Memory and time of a round with 100, 1,000 and 10,000 registered clients, 10 of which take part.

The work of a round is always the same: 10 clients of 6 images, one local epoch, LeNet-5 with a projector of 128. Fashion-MNIST is
partitioned iid over all clients, the test images too (``test: disjoint``); a client's images beyond 6 are its validation data.

    fedavg         clients keep no state
    fedrep         clients keep projector and head, stored on disk at their first local update
    fedrep-stored  all clients have such a state from the start (77 kB each)

    registered     no training: only the server's work in a round (client selection, table of client states, checkpoint), with
                   every client in the table. For more clients than any data set here can be split over; only with
                   ``--case registered``, usually with ``--clients 1000000``

Memory: a fresh process per number of clients runs rounds, tests all clients, and reports its ``ru_maxrss`` (MB of 10^6 bytes).
Time: a fresh process runs rounds of all numbers in turn, without evaluation; CPU time relative to that with the fewest clients.
Limit: ratios of at most 1.1, for time that of the medians.
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
from typing import Any

from machine import facts, parser_of, peak_bytes, report, spread
from trial import begin, find, use_noise

CLIENTS = (100, 1_000, 10_000)
CASES = ("fedavg", "fedrep", "fedrep-stored")
REGISTERED = "registered"
PARTICIPANTS, SAMPLES, WARM = 10, 6, 3
GROWTH = 1.1
"""Largest ratio of most to fewest clients."""


def begun(case: str, clients: int, data_dir: Path | None, folder: Path) -> Any:
    """A simulation of a case after its first rounds."""
    if data_dir is None:
        use_noise("fashion_mnist")
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
        "train": {"rounds": 1000, "participation": PARTICIPANTS / clients, "local_epochs": 1},
        "eval": {"every": 1000, "last": 1},
        "wire": {"keep_payloads": "none"},
    }
    simulation = begin(values, folder)
    if case == "fedrep-stored":
        fill(simulation)
    for _ in range(WARM):
        simulation.run_round()
    return simulation


def measured(case: str, clients: int, data_dir: Path | None) -> dict[str, Any]:
    """Memory of a case, and the time to test all clients, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = begun(case, clients, data_dir, Path(folder))
        before, seconds = round(peak_bytes() / 1e6), []
        for _ in range(3):
            start = time.process_time()
            evaluation = simulation.scorer.score(simulation.state, simulation.progress.clients, WARM)
            seconds.append(time.process_time() - start)
            assert len((evaluation.per_client or {})["accuracy"]) == clients
    return {
        "peak_mb": round(peak_bytes() / 1e6),
        "peak_mb_before_test": before,
        "executor": str(simulation.federation.choice),
        "test_of_all_cpu_s": spread(seconds, 2),
        "test_of_a_client_cpu_ms": round(1e3 * min(seconds) / clients, 3),
    }


def registered(clients: int, repeats: int) -> dict[str, Any]:
    """The server's work in a round with that many clients in CPU ms, and the size of its table in bytes."""
    from types import SimpleNamespace

    import torch

    from fedpriv.client.store import ClientStore
    from fedpriv.config import load_config
    from fedpriv.server.sampling import participants
    from fedpriv.storage.checkpoints import Checkpoints, Progress

    times: dict[str, list[float]] = {"select": [], "select_dp": [], "commit": [], "restore": []}

    def timed_as(name: str, act: Any) -> Any:
        start = time.process_time()
        result = act()
        times[name].append(1e3 * (time.process_time() - start))
        return result

    def terms(**privacy: Any) -> Any:
        values = {"data.clients": clients, "train.participation": PARTICIPANTS / clients, "train.selection": "uniform", **privacy}
        method = SimpleNamespace(participants=lambda round, chosen, everyone: chosen)
        return SimpleNamespace(config=load_config(None, values), trainable=range(clients), method=method)

    plain, private = terms(), terms(**{"privacy.level": "client", "privacy.noise": 1.0})
    with tempfile.TemporaryDirectory() as folder:
        store = ClientStore(Path(folder) / "clients")
        server, progress = {"model": torch.zeros(44_426)}, Progress(clients=dict.fromkeys(range(clients), 0))
        checkpoints = Checkpoints(Path(folder) / "checkpoints", "", store)
        for number in range(1, repeats + 1):
            chosen = timed_as("select", lambda number=number: participants(plain, number))
            assert len(chosen) == PARTICIPANTS
            if number <= 2:  # a draw per client
                timed_as("select_dp", lambda number=number: participants(private, number))
            progress.round = number
            progress.clients.update(dict.fromkeys(chosen, number))
            timed_as("commit", lambda: checkpoints.commit(progress, server))
        held = sum(file.stat().st_size for file in checkpoints.folder.iterdir()) // 2 - 4 * 44_426
        store.damaged = lambda states: None  # type: ignore[method-assign]  # no client has trained, so there are no states
        restored, _, complaints = timed_as("restore", lambda: Checkpoints(checkpoints.folder, "", store).latest())
        assert restored.clients == progress.clients and not complaints
    row = {name: spread(values, 1) for name, values in times.items()}
    return {"cpu_ms": row, "table_bytes": held, "table_bytes_a_client": round(held / clients, 2)}


def timed(case: str, counts: list[int], repeats: int, data_dir: Path | None) -> dict[str, Any]:
    """CPU time of a case's rounds by number of clients, in this process, and its ratio to that of the fewest."""
    with tempfile.TemporaryDirectory() as folder:
        simulations = {clients: begun(case, clients, data_dir, Path(folder) / str(clients)) for clients in counts}
        cpu: dict[int, list[float]] = {clients: [] for clients in counts}
        for repeat in range(repeats):
            for clients in counts[:: 1 if repeat % 2 else -1]:
                start = time.process_time()
                record = simulations[clients].run_round()
                cpu[clients].append(time.process_time() - start)
                assert record["metrics"]["participants"] == PARTICIPANTS and not record["per_client"]
    ratios = {n: [time / least for time, least in zip(cpu[n], cpu[counts[0]], strict=True)] for n in counts}
    return {
        "repeats": repeats,
        "round_cpu_ms": {str(n): spread([1e3 * seconds for seconds in values], 1) for n, values in cpu.items()},
        "ratio": {str(n): spread(values) for n, values in ratios.items()},
    }


def fill(simulation: Any) -> None:
    """Store a private state for every client, without waiting for the disk 10,000 times."""
    fsync, os.fsync = os.fsync, lambda fd: None
    federation = simulation.federation
    for client in range(federation.config.data.clients):
        simulation.store.keep(client, 0, federation.method.initial_private(client, federation.initial))
        simulation.progress.clients[client] = 0
    os.fsync = fsync


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--case", choices=(*CASES, REGISTERED), action="append", help=f"default: {CASES}; may be repeated")
    parser.add_argument("--clients", type=int, action="append", help=f"default: {CLIENTS}; may be repeated")
    parser.add_argument("--data-dir", type=Path, help="folder that holds fashion_mnist/*.parquet; default: FEDPRIV_DATA")
    parser.add_argument("--repeats", type=int, default=40, help="timed rounds of each number of clients")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the fresh process of one measurement
    options = parser.parse_args()
    counts = sorted(options.clients or CLIENTS)
    if options.here:
        data_dir = options.data_dir
        case = options.case[0]
        if case == REGISTERED:
            print(json.dumps(registered(counts[0], options.repeats)))
            return
        print(
            json.dumps(
                measured(case, counts[0], data_dir) if len(counts) == 1 else timed(case, counts, options.repeats, data_dir)
            )
        )
        return

    data_dir = find("fashion_mnist", options.data_dir)
    data = "fashion_mnist" if data_dir else "synthetic"
    about = facts(("fedpriv", "torch", "numpy", "safetensors"))
    results: dict[str, Any] = {"benchmark": "scale", **about, "data": data, "participants": PARTICIPANTS, "cases": {}}
    failed = []
    if REGISTERED in (options.case or ()):
        results["cases"][REGISTERED] = {str(n): in_fresh_process(REGISTERED, [n], options.repeats, None) for n in counts}
        for clients, row in results["cases"][REGISTERED].items():
            print(f"{REGISTERED:13} {clients:>7} clients: CPU ms {row['cpu_ms']}, {row['table_bytes_a_client']} bytes a client")
    for case in (case for case in options.case or CASES if case != REGISTERED):
        memory = {}
        for clients in counts:
            memory[str(clients)] = row = in_fresh_process(case, [clients], options.repeats, data_dir)
            print(
                f"{case:13} {clients:6} clients: peak {row['peak_mb']} MB ({row['peak_mb_before_test']} before the test), "
                f"test of all {row['test_of_all_cpu_s']['median']} s CPU, {row['test_of_a_client_cpu_ms']} ms a client"
            )
        peak = memory[str(counts[-1])]["peak_mb"] / memory[str(counts[0])]["peak_mb"]
        results["cases"][case] = {"memory": memory, "peak_ratio": round(peak, 3)}
        print(f"{case:13} peak of {counts[-1]} clients over that of {counts[0]}: {peak:.3f}")
        failed += [f"{case}: memory {peak:.3f}"] if peak > GROWTH else []
        if len(counts) > 1:
            rounds = results["cases"][case]["rounds"] = in_fresh_process(case, counts, options.repeats, data_dir)
            for clients in map(str, counts):
                cpu, ratio = rounds["round_cpu_ms"][clients], rounds["ratio"][clients]
                print(f"{case:13} {clients:>6} clients: a round {cpu} ms CPU, ratio {ratio}")
            slow = rounds["ratio"][str(counts[-1])]["median"]
            failed += [f"{case}: time {slow:.3f}"] if slow > GROWTH else []
    report(results, options.json, [f"{ratio} times that of {counts[0]} clients, above {GROWTH}" for ratio in failed])


def in_fresh_process(case: str, counts: list[int], repeats: int, data_dir: Path | None) -> dict[str, Any]:
    """The results of a fresh process. On Linux a child's ``ru_maxrss`` starts from its parent's, so this one stays small."""
    command = [sys.executable, __file__, "--here", "--case", case, "--repeats", str(repeats)]
    command += [part for clients in counts for part in ("--clients", str(clients))]
    command += ["--data-dir", str(data_dir)] if data_dir else []
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, encoding="utf-8"
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
