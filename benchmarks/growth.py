"""Whether a round's time per participant stays flat as more clients take part: 10, 20, 40, 80 and 160 of 200, FedAvg, LeNet-5.

CPU time of a round (one thread) over its participants, in turn in one process, as a ratio to that of 10 participants. Images are
noise in the shape of Fashion-MNIST, 60 a client; clients train in groups of 10, and nothing is evaluated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from machine import facts, spread
from trial import NEVER, begin, use_noise

from fedpriv.simulation.simulation import Simulation

PARTICIPANTS = (10, 20, 40, 80, 160)
CLIENTS = 1000
LIMIT = 1.1
"""Time per participant, over that of the fewest: what noise a median of some rounds may have."""


def simulation(participants: int, rounds: int, folder: Path) -> Simulation:
    config = {
        "method": "fedavg",
        "data": {"name": "fashion_mnist", "clients": CLIENTS, "partition": {"name": "iid"}},
        "model": {"name": "lenet5"},
        "train": {"rounds": rounds + 1, "participation": participants / CLIENTS, "local_epochs": 1, "batch_size": 32},
        "executor": {"name": "vectorized", "group_size": 10},
        "eval": {"every": NEVER, "last": 1},
    }
    return begin(config, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args()
    use_noise("fashion_mnist")
    seconds: dict[int, list[float]] = {number: [] for number in PARTICIPANTS}
    with tempfile.TemporaryDirectory() as folder:
        made = {number: simulation(number, 99, Path(folder) / str(number)) for number in PARTICIPANTS}
        for repeat in range(1 + options.repeats):  # the first warms up
            for number, contender in made.items():
                repetitions = max(PARTICIPANTS) // number if repeat else 1  # as many local updates for each
                began = time.process_time()
                for _ in range(min(repetitions, 4)):
                    contender.run_round()
                if repeat:
                    seconds[number].append((time.process_time() - began) / (min(repetitions, 4) * number))
    ratios = {n: spread([a / b for a, b in zip(of, seconds[PARTICIPANTS[0]], strict=True)]) for n, of in seconds.items()}
    for number, ratio in ratios.items():
        each = f"{spread(seconds[number], 5)['median'] * 1e3:.2f} ms"
        print(f"{number} participants: {each} each, {ratio['median']:.3f} times ({ratio['min']:.3f}-{ratio['max']:.3f})")
    results = {"benchmark": "growth", **facts(("fedpriv", "torch")), "threads": 1, "repeats": options.repeats}
    results |= {"cpu_seconds_per_participant": seconds, "ratio_to_fewest": ratios}
    print(f"on {results['processor']}, load {results['load_average']}, Python {results['python']}, {results['versions']}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if (most := max(ratio["median"] for ratio in ratios.values())) > LIMIT:
        sys.exit(f"missed: {most:.2f} times the time per participant, above {LIMIT}")


if __name__ == "__main__":
    main()
