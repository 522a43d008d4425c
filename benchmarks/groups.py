"""Batched training of a group of clients against one client after another, by the size of a net without convolutions.

``mlp_lineage`` on digits resized to several sides, rounds alternating in one process. CPU time of one thread, the vectorized
executor's over the sequential one's; below 1, the group is faster. ``executor auto`` decides by the mean number of parameters a
step, which is smaller where a method trains its head on cached features (``LARGEST_DENSE`` in
fedpriv/simulation/choice/executor.py).

``--compile``: the same with the group's net compiled over the net as it is, for small nets on rows and digits; and what the first
rounds cost more, with the import of the compiler, first with an empty cache of compiled code and then with a full one. From both
follows the number of rounds from which on compiling is worth it.
"""

from __future__ import annotations

import csv
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

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


SMALL_NETS = {"rows of 13 columns": 13, "rows of 105 columns": 105, "digits": None}
"""Inputs of the ``mlp`` that is compiled: as many columns as heart disease has, as many as Adult has one-hot, or the digits."""


def spent() -> float:
    """CPU seconds of this process and of those that it has waited for, such as compilers."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def compiled(columns: int | None, rounds: int, folder: Path) -> dict[str, Any]:
    """What the net of a group gains and costs by being compiled, in this process."""
    keys: dict[str, Any] = {
        "method": "fedavg",
        "model": "mlp",
        "rounds": WARM + rounds + 1,
        "workers": 1,
        "executor": "vectorized",
    }
    keys |= {"tracking_uri": "none", "eval.every": 1000, "eval.last": 1, "keep_payloads": "none"}
    if columns is not None:
        draw = random.Random(0)
        with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow([*(f"x{i}" for i in range(columns)), "label"])
            for _ in range(1400):
                row = [round(draw.gauss(0, 1), 3) for _ in range(columns)]
                table.writerow([*row, "yes" if row[0] > 0 else "no"])
        keys |= {"dataset": str(folder / "rows.csv"), "clients": 20, "partition": "iid"}
    runs = [fedpriv.rounds(compile=mode, run_dir=folder / mode, **keys) for mode in ("none", "default")]
    times: list[list[float]] = [[], []]
    for _ in range(WARM + rounds):
        for run, seconds in zip(runs, times, strict=True):
            began = spent()
            next(run)
            seconds.append(spent() - began)
    for run in runs:
        run.close()
    plain, faster = (spread(seconds[WARM:]) for seconds in times)
    gain = plain["median"] - faster["median"]
    start = sum(times[1][:WARM]) - sum(times[0][:WARM])
    return {
        "plain_round": plain,
        "compiled_round": faster,
        "ratio": spread([b / a for a, b in zip(times[0][WARM:], times[1][WARM:], strict=True)]),
        "start": round(start, 2),
        "worth_from_round": round(start / gain) if gain > 0 else None,
    }


def compare_compiled(rounds: int, only: list[str] | None) -> list[dict[str, Any]]:
    """:func:`compiled` of each small net, in processes with an empty cache and then with a full one."""
    rows = []
    for name in only or SMALL_NETS:
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "full"):
                cached = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "compiled")), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
                asked = json.dumps({"columns": SMALL_NETS[name], "rounds": rounds, "folder": str(Path(folder, cache))})
                done = subprocess.run(
                    [sys.executable, __file__, "--in-this-process", asked],
                    stdout=subprocess.PIPE, text=True, check=True, env=os.environ | cached, encoding="utf-8",
                )  # fmt: skip
                row = {"net": f"mlp, {name}", "cache": cache, **json.loads(done.stdout.splitlines()[-1])}
                rows.append(row)
                print(
                    f"mlp, {name}, {cache} cache: {row['ratio']['median']:.2f} of a round "
                    f"({row['plain_round']['median']:.3f} CPU s), first rounds {row['start']:+.1f} CPU s, "
                    f"worth it from round {row['worth_from_round']}",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="compiled nets over those as they are")
    parser.add_argument("--only", choices=SMALL_NETS, action="append", help="with --compile: a net; default: all")
    parser.add_argument("--in-this-process", help=SUPPRESS)
    options = parser.parse_args()
    if options.in_this_process:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        asked = json.loads(options.in_this_process)
        folder = Path(asked["folder"])
        folder.mkdir()
        print(json.dumps(compiled(asked["columns"], asked["rounds"], folder)))
        return
    if options.compile:
        rows = compare_compiled(options.rounds, options.only)
        report(
            {"benchmark": "groups --compile", **facts(("fedpriv", "torch")), "rounds": options.rounds, "rows": rows}, options.json
        )
        return
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
