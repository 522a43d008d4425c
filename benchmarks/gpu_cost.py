"""The cost of a round on a GPU: the bare PyTorch loop, fedpriv in groups and one by one, and pfl, in wall time.

The workloads and the loop are those of ``round_cost.py``, with net and samples on the device. All take turns, round by round. The
first round loads kernels and is not timed. ``replay`` is a step of an ``mlp`` on digits in a bare loop, and the same step
replayed as a CUDA graph: the most that graphs could gain.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from machine import facts, parser_of, report, spread
from round_cost import WORKLOADS, Client, Fedpriv, Floor, Pfl
from torch import nn
from torch.nn import functional as F
from trial import find_or_noise

Seconds = dict[str, list[float]]


def timed(run: Callable[[], object], device: str) -> float:
    """Wall seconds until all that was begun on the device is done."""
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    finish()
    began = time.perf_counter()
    run()
    finish()
    return time.perf_counter() - began


def measure(name: str, device: str, rounds: int, data_dir: Path | None, folder: Path) -> dict[str, Any]:
    """All contenders on one workload."""
    work = WORKLOADS[name]
    grouped, alone = (
        Fedpriv(work, 1 + rounds, data_dir, folder / f"{name}-{executor}", device, name=executor)
        for executor in ("vectorized", "sequential")
    )
    clients: list[Client] = []
    for client in range(work.clients):
        inputs, labels = grouped.federation.data.train(client)
        clients.append((inputs.to(device), labels.to(device)))  # type: ignore[union-attr]
    floor = Floor(grouped, clients)
    floor.net.to(device)
    contenders: dict[str, Callable[[int], object]] = {
        "floor": lambda round: floor.run(round, grouped.row, grouped.participants(round)),
        "fedpriv": grouped.run,
        "sequential": alone.run,
    }
    try:
        contenders["pfl"] = Pfl(grouped, clients, grouped.participants).run
    except ImportError as error:
        print(f"pfl is left out: {error}")
    seconds: Seconds = {who: [] for who in contenders}
    for round in range(1, 2 + rounds):
        for who, run in contenders.items():
            taken = timed(lambda run=run, round=round: run(round), device)  # type: ignore[misc]
            seconds[who] += [taken] * (round > 1)
    ratios = {who: spread([a / b for a, b in zip(values, seconds["floor"], strict=True)]) for who, values in seconds.items()}
    for who, ratio in ratios.items():
        print(f"{name} {who}: {spread(seconds[who])['median']} s a round, {ratio['median']:.2f} times the floor", flush=True)
    choice = str(grouped.federation.choice)
    print(f"{name} clients are run {choice}")
    return {"executor": choice, "seconds": {who: spread(values) for who, values in seconds.items()}, "ratio_to_floor": ratios}


def replay(device: str, steps: int = 300) -> dict[str, float | None]:
    """Microseconds of a step of a bare net, and of its replay as a CUDA graph (``None`` on a CPU)."""
    sizes = (64, 512, 256, 64, 10)
    layers = [layer for wide, narrow in pairwise(sizes) for layer in (nn.Linear(wide, narrow), nn.ReLU())]
    net = nn.Sequential(*layers[:-1]).to(device)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)
    x, y = torch.randn(10, 64, device=device), torch.randint(10, (10,), device=device)

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        F.cross_entropy(net(x), y).backward()
        optimiser.step()

    def microseconds(one_step: Callable[[], object]) -> float:
        return round(timed(lambda: [one_step() for _ in range(steps)], device) / steps * 1e6, 1)

    if device != "cuda":
        step()
        return {"step_us": microseconds(step), "replayed_us": None}
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # as a capture must not be the first to allocate
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    eager, graph = microseconds(step), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return {"step_us": eager, "replayed_us": microseconds(graph.replay)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a trial")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="folder that holds fashion_mnist/*.parquet; default: FEDPRIV_DATA")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data_dir = find_or_noise("fashion_mnist", options.data_dir)
    results: dict[str, Any] = {"benchmark": "gpu_cost", **facts(["fedpriv", "torch", "pfl"]), "workloads": {}}
    results["gpu"] = torch.cuda.get_device_name() if options.device == "cuda" else None
    results["replay"] = replay(options.device)
    print(f"a step of the bare mlp: {results['replay']}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in WORKLOADS if options.workload == "all" else [options.workload]:
            results["workloads"][name] = measure(name, options.device, options.rounds, data_dir, Path(folder))
    report(results, options.json)


if __name__ == "__main__":
    main()
