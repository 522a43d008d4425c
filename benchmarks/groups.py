"""Batched training of a group of clients against one client after another, by the size of a net without convolutions.

``mlp_lineage`` on digits resized to several sides, rounds alternating in one process. CPU time of one thread, the vectorized
executor's over the sequential one's; below 1, the group is faster. ``executor auto`` decides by the mean number of parameters a
step, which is smaller where a method trains its head on cached features (``LARGEST_DENSE`` in
fedpriv/simulation/executor_choice.py).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

import torch
from machine import facts, parser_of, report, spread

import fedpriv
from fedpriv.models import build_model

EXECUTORS = ("sequential", "vectorized")
WARM = 2
"""Rounds that are not timed."""


def ratios(method: str, side: int, batch: int, rounds: int, folder: Path) -> list[float]:
    """The vectorized executor's CPU time over the sequential one's, for each round."""
    keys = {"method": method, "batch_size": batch, "data.image_size": side, "rounds": WARM + rounds + 1, "workers": 1}
    keys |= {"tracking_uri": "none", "eval.every": 1000, "eval.last": 1, "keep_payloads": "none"}
    runs = [fedpriv.rounds(executor=name, run_dir=folder / name, **keys) for name in EXECUTORS]
    values = []
    for _ in range(WARM + rounds):
        seconds = []
        for run in runs:
            began = time.process_time()
            next(run)
            seconds.append(time.process_time() - began)
        values.append(seconds[1] / seconds[0])
    for run in runs:
        run.close()
    return values[WARM:]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for side in (8, 12, 16, 22, 28):
        parameters = sum(parameter.numel() for parameter in build_model("mlp_lineage", (1, side, side), 10, 128).parameters())
        for method in ("fedavg", "fedrep", "mpfedcon"):
            for batch in (10, 32):
                with tempfile.TemporaryDirectory() as folder:
                    ratio = spread(ratios(method, side, batch, options.rounds, Path(folder)))
                rows.append({"parameters": parameters, "method": method, "batch": batch, "ratio": ratio})
                print(f"{parameters} parameters, {method}, batch {batch}: {ratio['median']:.2f} ({ratio['min']}-{ratio['max']})")
    results = {"benchmark": "groups", **facts(("fedpriv", "torch")), "rounds": options.rounds, "rows": rows}
    report(results, options.json)


if __name__ == "__main__":
    main()
