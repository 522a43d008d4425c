"""What two worker processes gain and cost, by the length of a run; ``executor.workers auto`` decides by it.

Each case is trained with one process and with two in turn, in a new folder, without tracking. Wall seconds show the gain, on two
idle cores only; CPU seconds of all processes show the cost on any machine. The estimate is that of ``least_seconds`` in
fedpriv/simulation/choice/executor.py, whose constants stand on the last two columns: it must not exceed the rounds' CPU seconds.
"""

from __future__ import annotations

import resource
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from machine import facts, parser_of, report, spread

import fedpriv
from fedpriv.api.keys import config_of
from fedpriv.server.sampling import participants
from fedpriv.simulation.choice.costs import least_seconds
from fedpriv.simulation.setup import build

CASES: dict[str, dict[str, Any]] = {
    "quick start, 2 rounds": {"method": "mpfedcon", "rounds": 2},
    "quick start, 5 rounds": {"method": "mpfedcon", "rounds": 5},
    "quick start, 10 rounds": {"method": "mpfedcon", "rounds": 10},
    "quick start, 30 rounds": {"method": "mpfedcon", "rounds": 30},
    "FedAvg, 5 rounds": {"method": "fedavg", "rounds": 5},
    "FedAvg, 100 rounds": {"method": "fedavg", "rounds": 100},
    "ResNet-9, 2 rounds": {"method": "fedavg", "model": "resnet9_narrow", "rounds": 2, "local_epochs": 2},
}
"""Runs on the built-in digits, short and long."""
KEYS = {"tracking_uri": "none", "keep_payloads": "none"}


def seconds(workers: int, keys: dict[str, Any], folder: Path) -> tuple[float, float, float]:
    """Wall seconds and CPU seconds of a whole run, and its rounds' CPU seconds as the run itself counts them."""

    def spent() -> float:
        return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    began, before = time.perf_counter(), spent()
    run = fedpriv.train(run_dir=folder, workers=workers, **keys, **KEYS)
    return time.perf_counter() - began, spent() - before, run.summary["cpu_seconds"]


def estimate(keys: dict[str, Any]) -> float:
    """The least CPU seconds of the run's training, by which ``auto`` decides."""
    federation = build(config_of(None, {**keys, **KEYS}))
    places = federation.places
    sizes = [places.size(client) for client in participants(federation.agreement, 1)]
    samples = places.train(places.nonempty[0]).inputs
    return least_seconds(federation.config, federation.resident.net, samples, sizes, federation.method.phases(round=1))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=CASES, action="append", help="a case; default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        seconds(1, {"method": "fedavg", "rounds": 1}, Path(folder, "warm"))
        for name in options.only or CASES:
            pairs = [
                [seconds(workers, CASES[name], Path(folder, f"{name}-{repeat}-{workers}")) for workers in (1, 2)]
                for repeat in range(options.repeats)
            ]
            least = estimate(CASES[name])
            row = {
                "case": name,
                "estimate": round(least, 2),
                "wall_of_one": spread([one[0] for one, _ in pairs]),
                "times_as_fast": spread([one[0] / two[0] for one, two in pairs]),
                "more_cpu_seconds": spread([two[1] - one[1] for one, two in pairs]),
                "rounds_cpu_of_one": spread([one[2] for one, _ in pairs]),
                "rounds_cpu_of_two": spread([two[2] for _, two in pairs]),
            }
            rows.append(row)
            print(
                f"{name}: estimate {least:.2f} CPU s, rounds take {row['rounds_cpu_of_one']['median']:.2f} (two workers: "
                f"{row['rounds_cpu_of_two']['median']:.2f}); two workers are {row['times_as_fast']['median']:.2f} times as fast, "
                f"and cost {row['more_cpu_seconds']['median']:+.2f} CPU s",
                flush=True,
            )
            if least > row["rounds_cpu_of_one"]["median"]:
                wrong.append(f"{name}: the estimate {least:.2f} is more than the rounds take")
    report({"benchmark": "workers", **facts(("fedpriv", "torch")), "repeats": options.repeats, "rows": rows}, options.json, wrong)


if __name__ == "__main__":
    main()
