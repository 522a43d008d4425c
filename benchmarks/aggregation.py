"""The cost of a merge: every registered aggregation, and loops over state dicts, relative to the plain mean.

The uploads of a round are those of ResNet-18 (11.2 M entries with BatchNorm's statistics), 10 or 100 clients, as one float32
matrix K x p. Measures the CPU time of ``Aggregation.merge`` (``time.process_time``, one thread) as a ratio to the mean's in
the same repetition; the contenders take turns. Peak memory is measured in a fresh process per cell, by ``ru_maxrss`` before and
after one merge. Aggregations that need statistics of a particular client part are skipped, and listed.

    loop-mean, loop-m-dawa, loop-l-dawa   for each client, for each array of its state dict, in float32
    loop-simprox                          the same for each pair of clients (10 clients only: pairs grow with the square)

Limits: with 10 clients M-DAWA and L-DAWA take at most 2.5 times the mean and SimProx at most 8 times; with 100, SimProx stays
within 10 GiB, of which the matrix is 4.2.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from machine import facts, parser_of, peak_bytes, report, spread

CLIENTS = (10, 100)
LIMITS = {("m-dawa", 10): 2.5, ("l-dawa", 10): 2.5, ("simprox", 10): 8.0}
"""Largest median ratio to the mean."""
MEMORY_GIB = {("simprox", 100): 10.0}
PACKAGES = ("fedpriv", "torch", "numpy", "POT")
State = dict[str, Any]


def round_of(clients: int) -> Any:
    """Uploads of a round: the start, and changes of about a hundredth of it."""
    import torch

    from fedpriv.aggregation import Uploads
    from fedpriv.models.registry import build_model
    from fedpriv.parameters import ParameterSpace
    from fedpriv.wire import statistic

    torch.manual_seed(0)
    net = build_model("resnet18", (3, 32, 32), 10, projection=None)
    space = ParameterSpace.of(net)
    previous = space.row_of(net)
    change = 0.01 * previous.std() * torch.randn(space.size)
    rows = previous.repeat(clients, 1)
    for client, row in enumerate(rows):
        row += torch.roll(change, 7919 * client)
    statistics = {
        statistic("loss"): torch.tensor(1.0),
        statistic("steps"): torch.tensor(10),
        statistic("step_weight"): torch.tensor(10.0),
    }
    return Uploads(space, rows, previous, list(range(100, 100 + clients)), [statistics] * clients, range(clients), 1, clients)


def contenders(uploads: Any) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Merges by name, and what is left out and why."""
    import torch

    from fedpriv.aggregation import aggregations
    from fedpriv.config import load_config
    from fedpriv.interfaces import Context
    from fedpriv.seeding import generator

    space = uploads.space
    config = load_config(None, {"train.selection": "all", "train.participation": 1.0})
    context = Context(
        config,
        space,
        10,
        512,
        lambda label: uploads.previous,
        lambda purpose: generator(0, purpose),
        layers=tuple(entry.name for entry in space.entries if entry.kind != "buffer"),
    )
    merges: dict[str, Callable[[], Any]] = {}
    left_out = {}
    for name, kind in aggregations().items():
        if kind.reads:
            left_out[name] = f"needs {', '.join(sorted(kind.reads))} of an objective"
            continue
        options = {"fedu_part": "head"} if name.endswith("fedu") else {}
        aggregation = kind(kind.Params(**options), context)
        memory = aggregation.start(uploads.previous)
        merges[name] = lambda aggregation=aggregation, memory=memory: aggregation.merge(uploads, memory)  # type: ignore[misc]
    names = [entry.name for entry in space.entries]
    parameters = [entry.name for entry in space.entries if entry.kind != "buffer"]

    def states() -> tuple[State, list[State]]:
        return space.unpack(uploads.previous), [space.unpack(row) for row in uploads.rows]

    def scaled_sum(clients: list[State], weights: list[dict[str, float]]) -> State:
        merged = {name: torch.zeros_like(clients[0][name]) for name in names}
        for client, weight in zip(clients, weights, strict=True):
            for name in names:
                merged[name] += weight[name] * client[name]
        return merged

    def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-12))

    def whole(state: State) -> torch.Tensor:
        return torch.cat([state[name].reshape(-1) for name in parameters])

    def mean() -> State:
        _, clients = states()
        return scaled_sum(clients, [dict.fromkeys(names, 1 / len(clients)) for _ in clients])

    def l_dawa() -> State:
        start, clients = states()
        weights = [
            {n: (cosine(client[n], start[n]) if n in parameters else 1.0) / len(clients) for n in names} for client in clients
        ]
        return scaled_sum(clients, weights)

    def m_dawa() -> State:
        start, clients = states()
        flat = whole(start)
        return scaled_sum(clients, [dict.fromkeys(names, cosine(whole(client), flat) / len(clients)) for client in clients])

    def simprox() -> State:
        start, clients = states()
        flat, k = [whole(client) for client in clients], len(clients)
        distance = [[float((a - b).norm()) for b in flat] for a in flat]
        sigma = sum(map(sum, distance)) / (k * (k - 1))
        scores = []
        for i, client in enumerate(flat):
            others = [j for j in range(k) if j != i]
            alike = [0.7 * cosine(client, flat[j]) + 0.3 * math.exp(-(distance[i][j] ** 2) / (2 * sigma**2)) for j in others]
            scores.append(math.exp(-float((client - whole(start)).norm())) * (1 + sum(alike) / len(alike)))
        alpha = torch.softmax(torch.tensor(scores) / sum(scores), 0).tolist()
        return scaled_sum(clients, [dict.fromkeys(names, weight) for weight in alpha])

    merges |= {"loop-mean": mean, "loop-m-dawa": m_dawa, "loop-l-dawa": l_dawa}
    if len(uploads) <= 10:
        merges["loop-simprox"] = simprox
    else:
        left_out["loop-simprox"] = "pairs grow with the square"
    return merges, left_out


def timed(clients: int, repeats: int, only: list[str] | None) -> dict[str, Any]:
    """The contenders on one round, in turn, in this process."""
    import torch

    from fedpriv.errors import UsageError

    torch.set_num_threads(1)
    merges, left_out = contenders(round_of(clients))
    if only:
        merges = {name: merge for name, merge in merges.items() if name in {"mean", *only}}
    for name, merge in list(merges.items()):  # warms up
        try:
            merge()
        except UsageError as error:
            left_out[name] = str(error)
            del merges[name]
    seconds: dict[str, list[float]] = {name: [] for name in merges}
    for _ in range(repeats):
        for name, merge in merges.items():
            began = time.process_time()
            merge()
            seconds[name].append(time.process_time() - began)
    ratios = {name: [own / mean for own, mean in zip(of, seconds["mean"], strict=True)] for name, of in seconds.items()}
    return {
        "cpu_seconds": {name: spread(of) for name, of in seconds.items()},
        "ratio_to_mean": {name: spread(of) for name, of in ratios.items()},
        "left_out": left_out,
    }


def peak(clients: int, name: str) -> dict[str, float]:
    """Peak memory of this process in GiB: with the round in memory, and after one merge."""
    import torch

    torch.set_num_threads(1)

    uploads = round_of(clients)
    merge = contenders(uploads)[0][name]
    before = peak_bytes() / 2**30
    merge()
    return {
        "before_gib": round(before, 2),
        "peak_gib": round(peak_bytes() / 2**30, 2),
        "matrix_gib": round(uploads.rows.nbytes / 2**30, 2),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, action="append", help=f"default: {CLIENTS}; may be repeated")
    parser.add_argument("--repeats", type=int, default=7, help="with 10 clients; with more, a third of them")
    parser.add_argument("--only", action="append", metavar="NAME", help="beside the mean; default: all; may be repeated")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak of each cell")
    parser.add_argument("--here", nargs=2, metavar=("WHAT", "CLIENTS"), help=argparse.SUPPRESS)  # the fresh process of one cell
    options = parser.parse_args()
    if options.here:
        what, clients = options.here[0], int(options.here[1])
        print(json.dumps(timed(clients, options.repeats, options.only) if what == "times" else peak(clients, what)))
        return

    results: dict[str, Any] = {"benchmark": "aggregation", **facts(PACKAGES), "threads": 1, "clients": {}}
    failed = []
    for clients in options.clients or CLIENTS:
        repeats = options.repeats if clients <= 10 else max(2, options.repeats // 3)
        print(f"{clients} clients, {repeats} repetitions; median (least-greatest)")
        cells = in_fresh_process("times", clients, "--repeats", str(repeats), *(f"--only={name}" for name in options.only or ()))
        results["clients"][str(clients)] = {"repeats": repeats, **cells, "memory": (memory := {})}
        for name, ratio in sorted(cells["ratio_to_mean"].items(), key=lambda cell: cell[1]["median"]):
            seconds = cells["cpu_seconds"][name]["median"]
            span = f"{ratio['median']:7.2f} times the mean ({ratio['min']:.2f}-{ratio['max']:.2f})"
            line = f"K={clients:3} {name:16} {span}, {seconds:.3f} s"
            if not options.no_memory:
                memory[name] = cell = in_fresh_process(name, clients)
                line += f", peak {cell['peak_gib']:.2f} GiB, of which the matrix is {cell['matrix_gib']:.2f}"
                if cell["peak_gib"] > MEMORY_GIB.get((name, clients), math.inf):
                    failed.append(f"{name} with {clients} clients: {cell['peak_gib']} GiB")
            print(line, flush=True)
            if ratio["median"] > LIMITS.get((name, clients), math.inf):
                failed.append(f"{name} with {clients} clients: {ratio['median']} times the mean")
        for name, why in cells["left_out"].items():
            print(f"K={clients:3} {name:16} left out: {why}")
    report(results, options.json, failed)


def in_fresh_process(what: str, clients: int, *more: str) -> Any:
    """One cell, in a child of this process, which imports nothing big: a child's ``ru_maxrss`` starts from its parent's."""
    command = [sys.executable, __file__, "--here", what, str(clients), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, encoding="utf-8")
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
