"""The cost of MpFedcon's rounds relative to FedAvg's with the same encoder, side by side in one process.

CIFAR-10 (synthetic images of its shape if missing), ``cnn10`` with a projector, 100 clients of 2 classes, 10 a round,
batch 10: MpFedcon with 10 head epochs and 1 encoder epoch against FedAvg with 1 local epoch. CPU time of a round (one thread)
over FedAvg's, in turn, without evaluation, with these executors:

    cached      features of the frozen encoder are computed once a phase, clients one after another
    vectorized  the same, the ten clients as one wide net
    recomputed  features are computed in every head epoch (``train.cache_features: false``)

A client's images go through the encoder three times in MpFedcon (features for the head, the encoder's epoch, the class centres)
and once in FedAvg, so that 1.7 would be expected if a step on the head cost nothing: one of the three is a step's forward and
backward pass, two are forward passes alone.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from machine import facts, parser_of, report, spread
from trial import NEVER, begin, find_or_noise

from fedpriv.simulation.simulation import Simulation

LIMIT = 1.6
"""MpFedcon's best over FedAvg's best."""
TOGETHER = {"name": "vectorized", "group_size": 10}
"""All of a round's clients together, as in ``round_cost.py``; the default splits them for a second core."""
CONTENDERS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedavg vectorized": {"method": "fedavg", "executor": TOGETHER},
    "cached": {"method": "mpfedcon"},
    "vectorized": {"method": "mpfedcon", "executor": TOGETHER},
    "recomputed": {"method": "mpfedcon", "train": {"cache_features": False}},
}


def simulation(contender: dict[str, Any], rounds: int, data_dir: Path | None, folder: Path) -> Simulation:
    train = {"rounds": rounds + 1, "participation": 0.1, "local_epochs": 1, "batch_size": 10}
    config = {
        "data": {"name": "cifar10", "dir": data_dir, "clients": 100, "partition": {"name": "classes", "classes_per_client": 2}},
        "model": {"name": "cnn10", "projection": 128},
        "executor": {"name": "sequential"},
        "eval": {"every": NEVER, "last": 1},
        **contender,
        "train": {**train, **contender.get("train", {})},
    }
    return begin(config, folder)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, help="folder that holds cifar10/*.parquet; default: FEDPRIV_DATA")
    options = parser.parse_args()
    data_dir = find_or_noise("cifar10", options.data_dir)
    data = "cifar10" if data_dir else "synthetic"
    seconds: dict[str, list[float]] = {who: [] for who in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        simulations = {who: simulation(how, 1 + options.repeats, data_dir, Path(folder) / who) for who, how in CONTENDERS.items()}
        for repeat in range(1 + options.repeats):  # the first warms up
            for who, contender in simulations.items():
                began = time.process_time()
                contender.run_round()
                if repeat:
                    seconds[who].append(time.process_time() - began)
    ratios = {who: spread([a / b for a, b in zip(of, seconds["fedavg"], strict=True)]) for who, of in seconds.items()}
    for who, ratio in ratios.items():
        print(f"{who}: {ratio['median']:.2f} times FedAvg ({ratio['min']:.2f}-{ratio['max']:.2f}, n = {options.repeats})")
    mpfedcon, fedavg = (
        min(ratios[who]["median"] for who in names) for names in (("cached", "vectorized"), ("fedavg", "fedavg vectorized"))
    )
    print(f"MpFedcon at its best over FedAvg at its best: {mpfedcon / fedavg:.2f}")
    results = {"benchmark": "layered", **facts(("fedpriv", "torch")), "threads": 1, "data": data, "repeats": options.repeats}
    results |= {"cpu_seconds_per_round": seconds, "ratio_to_fedavg": ratios, "best_over_best": round(mpfedcon / fedavg, 3)}
    report(results, options.json, [f"above {LIMIT}"] * (mpfedcon / fedavg > LIMIT))


if __name__ == "__main__":
    main()
