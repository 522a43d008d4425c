"""What the merges of an L-DAWA experiment did to the weights, from its stored results, as a Markdown table.

python experiments/l-dawa/shrinking.py experiments/l-dawa/cpu_tier.yaml [ROUND ...]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import fmean

from fedpriv.experiments import Result, read
from fedpriv.experiments.markdown import table

NORM, COSINE = "l-dawa/norm/", "l-dawa/d/"
HEAD = (
    "run | seed | round | loss | mean cosine: convolutions | norm weights | norm biases | smallest | "
    "convolutions' norm after a round, over before | over that after round 1 | probe, all labels"
)


def rows(result: Result, at: int) -> tuple[str, ...]:
    """The table's row of a run in a round (1-based)."""
    traces = result.traces
    names = [name.removeprefix(NORM) for name in traces if name.startswith(NORM)]
    norms = [name for name in names if ".bn" in name or ".shortcut.1." in name or ".downsample.1." in name]
    weights = [name for name in names if name.startswith("encoder.") and name not in norms and name.endswith("weight")]
    scales, shifts = ([name for name in norms if name.endswith(end)] for end in ("weight", "bias"))

    def cosine(of: list[str]) -> str:
        return f"{fmean(traces[COSINE + name][at - 1] for name in of):.4f}"

    def norm(round: int) -> float:
        return math.sqrt(math.fsum(traces[NORM + name][round - 1] ** 2 for name in weights))

    probe = dict(zip(result.curve["round"], result.curve.get("probe/1", []), strict=False)).get(at)
    loss = result.curve["train_loss"][result.curve["round"].index(at)]
    factor = f"{norm(at) / norm(at - 1):.4f}" if at > 1 else "–"
    smallest = f"{traces['l-dawa/d_min'][at - 1]:.3f}"
    told = "–" if probe is None else f"{100 * probe:.1f}"
    cosines = cosine(weights), cosine(scales), cosine(shifts), smallest
    return (result.label, str(result.seed), str(at), f"{loss:.3f}", *cosines, factor, f"{norm(at) / norm(1):.3f}", told)


def main(file: Path, rounds: list[int]) -> None:
    experiment = read(file)
    found = []
    for label, seed in experiment.select():
        path = experiment.result_file(label, seed)
        if path.exists():
            result = Result.load(path)
            last = int(result.summary["rounds"])
            found += [rows(result, at) for at in rounds or (last // 3, 2 * last // 3, last)]
    print(table(HEAD, found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(text) for text in sys.argv[2:]])
