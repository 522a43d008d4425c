"""The speed-up of an experiment of four equal runs by two jobs.

Wall time of ``fedpriv experiment run`` with ``--jobs 1`` and ``--jobs 2`` in turn, on the built-in digits (MpFedcon, 20 rounds).
Limit: two jobs are at least 1.8 times as fast, on two idle cores.
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

MIN_SPEEDUP = 1.8
EXPERIMENT = """
title: Four runs of equal length
base:
  data: {name: digits}
  method: {name: mpfedcon}
  train: {rounds: 20}
  tracking: {uri: none}
runs:
  one: {}
  two: {train: {lr: 0.02}}
seeds: [0, 1]
target: one
claims: []
"""


def seconds(jobs: int) -> float:
    """Of the whole experiment, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "paper", "experiment.yaml")
        file.parent.mkdir()
        file.write_text(EXPERIMENT, encoding="utf-8")
        command = [sys.executable, "-m", "fedpriv", "experiment", "run", str(file), "--jobs", str(jobs)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--runs-dir", folder], cwd=folder, capture_output=True, text=True, env=dict(os.environ), encoding="utf-8"
        )
        if done.returncode:
            sys.exit(done.stderr)
        return time.monotonic() - began


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    pairs = [(seconds(1), seconds(2)) for _ in range(options.repeats)]
    single, double = zip(*pairs, strict=True)
    results: dict[str, Any] = {"benchmark": "jobs", **facts(("fedpriv", "torch")), "repeats": options.repeats}
    results |= {"one_job_seconds": spread(single), "two_jobs_seconds": spread(double)}
    results["times_as_fast"] = ratio = spread([a / b for a, b in pairs])
    print(f"two jobs are {ratio['median']:.2f} times as fast as one ({ratio['min']:.2f}-{ratio['max']:.2f}): "
          f"{results['one_job_seconds']['median']:.0f} and {results['two_jobs_seconds']['median']:.0f} s")  # fmt: skip
    report(results, options.json, [f"{ratio['median']:.2f} is less than {MIN_SPEEDUP}"] * (ratio["median"] < MIN_SPEEDUP))


if __name__ == "__main__":
    main()
