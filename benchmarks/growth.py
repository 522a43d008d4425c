"""A round's time per participant with 10, 20, 40, 80 and 160 participants of 1000 clients (FedAvg, LeNet-5).

CPU time of a round (one thread) over its participants, in turn in one process, as a ratio to that of 10 participants. Images are
noise in the shape of Fashion-MNIST, 60 a client; clients train in groups of 10, and nothing is evaluated.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from machine import facts, parser_of, report, spread
from trial import NEVER, begin, use_noise

from fedpriv.simulation.simulation import Simulation

PARTICIPANTS = (10, 20, 40, 80, 160)
CLIENTS = 1000
LIMIT = 1.1
"""Largest time per participant over that with the fewest; allows for noise in the medians."""


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
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    use_noise("fashion_mnist")
    seconds: dict[int, list[float]] = {number: [] for number in PARTICIPANTS}
    with tempfile.TemporaryDirectory() as folder:
        simulations = {number: simulation(number, 99, Path(folder) / str(number)) for number in PARTICIPANTS}
        for repeat in range(1 + options.repeats):  # the first warms up
            for number, contender in simulations.items():
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
    most = max(ratio["median"] for ratio in ratios.values())
    report(results, options.json, [f"{most:.2f} times the time per participant, above {LIMIT}"] * (most > LIMIT))


if __name__ == "__main__":
    main()
