"""What a start, a round, a step, controls of an audit and a copy to MLflow take, in counts.

Unlike times they are the same on every machine.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

import fedpriv
from fedpriv.tracking.mirror import sync
from tests.conftest import simulated

UNUSED = (
    "torch._dynamo", "torch._inductor", "sklearn", "scipy.stats", "pandas", "matplotlib", "transformers", "opacus", "kornia",
    "mlflow", "ray", "flwr", "ot", "datasets",
)  # fmt: skip
"""Packages that the quick start does not use before its first round."""

START = """
import gc, json, os, sys
started = []
sys.addaudithook(lambda name, _: started.append(name) if name in ("os.fork", "subprocess.Popen") else None)
class UntilTheFirstRound:
    shown = ""
    def __init__(self, stream): self.stream = stream
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        self.shown += text
        if "accuracy" in self.shown.partition("round 1/2")[2]:
            collections = gc.get_stats()[2]["collections"]
            print(json.dumps({"modules": sorted(sys.modules), "processes": len(started), "collections": collections}), flush=True)
            os._exit(0)
        return len(text)
sys.stderr = UntilTheFirstRound(sys.stderr)
from fedpriv.cli import main
main(sys.argv[1:])
"""
"""A program that runs the command line until the first round is shown, and prints what it took."""

CONTROLS = """
import json, sys, torch
from fedpriv.attacks.inference.membership_controls import positive_controls
from fedpriv.audit.images.pictures import grid
positive_controls(4)
grid({"original": torch.rand(1, 1, 8, 8)})
print(json.dumps(sorted(sys.modules)), flush=True)
"""
"""A program that computes the controls of membership attacks (gradients of samples, and several nets trained as one), and a
picture."""
UNUSED_BY_AUDITS = ("sympy", "torch._dynamo", "torch._inductor", "matplotlib", "transformers", "opacus", "mlflow")

PROCESS = """
import json, sys
def ready(*of, **options):
    print(json.dumps(sorted(sys.modules)), flush=True)
    sys.exit()
"""
DEPLOYED = {
    "SuperLink": "import flwr.superlink.cli as at; at.flower_superlink = ready\n"
    "from fedpriv.deploy.flower.link import run_link; run_link(sys.argv[1])",
    "SuperExec": "from fedpriv.deploy.flower import tasks as at; at._await_listener = ready\n"
    "at.run_node_tasks('127.0.0.1:9', __import__('pathlib').Path(sys.argv[1]))",
    "node": "from fedpriv.deploy.flower import node as at; at.flower_supernode = ready; at.run_node('127.0.0.1:9', 1.0)",
    "client": "from fedpriv.deploy.client import socket_server as at; at.serve = ready\n"
    "from fedpriv.deploy.flower.machines import serve_client; serve_client()",
}
"""Processes of a deployment, until they hand over to Flower, or could answer; ``sys.argv[1]`` is a client's file."""

Counts = dict[str, float]
BOUNDS = Path(__file__).with_name("bounds.json")


@dataclass(frozen=True)
class Bound:
    """What a count was when it was last committed, what it may be at most, and why."""

    count: float
    bound: float
    reason: str


def count_start(folder: Path) -> Counts:
    """What the quick start takes until its first round is shown, in a process of its own."""
    words = ["train", "--method", "mpfedcon", "--rounds", "2", "--tracking-uri", "none", "--run-dir", str(folder / "start")]
    process = subprocess.run([sys.executable, "-c", START, *words], capture_output=True, text=True, timeout=300, encoding="utf-8")
    facts = json.loads(process.stdout)
    return {
        "start: modules": len(facts["modules"]),
        "start: packages without a use": len(set(UNUSED).intersection(facts["modules"])),
        "start: processes": facts["processes"],
        "start: full garbage collections": facts["collections"],
    }


def count_deployment(folder: Path) -> Counts:
    """What the processes of a deployment import until they are ready; it needs Flower."""
    from fedpriv.deploy.flower.paths import make

    file, counts = make(folder / "deployment", 1, "127.0.0.1").client_file(0), Counts()
    for name, code in DEPLOYED.items():
        command = [sys.executable, "-c", PROCESS + code, str(file), "socket"]
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, encoding="utf-8")
        modules = json.loads(process.stdout)
        unused = {"torch", *UNUSED} - {"flwr"} if name != "client" else {*UNUSED}
        counts[f"{name}: modules"] = len(modules)
        counts[f"{name}: packages without a use"] = len(unused.intersection(modules))
    return counts


def count_controls(folder: Path) -> Counts:
    """What the controls of membership attacks and pictures import, in a process of their own."""
    process = subprocess.run(
        [sys.executable, "-c", CONTROLS], cwd=folder, capture_output=True, text=True, timeout=300, encoding="utf-8"
    )
    return {"audit: packages without a use": len(set(UNUSED_BY_AUDITS).intersection(json.loads(process.stdout)))}


@contextmanager
def _operations() -> Iterator[Counter[str]]:
    """The operations on tensors, by name; and how often a batch passes through the whole net, which ends in ten classes."""
    counter = Counter[str]()

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counter["operations"] += 1
            counter[func.overloadpacket._qualified_op_name] += 1
            return func(*args, **(kwargs or {}))

    def called(module: nn.Module, *_: object) -> None:
        counter["passes"] += isinstance(module, nn.Linear) and module.out_features == 10

    hook = register_module_forward_hook(called)
    try:
        with Operations():
            yield counter
    finally:
        hook.remove()


@contextmanager
def _calls() -> Iterator[Counter[str]]:
    """The Python functions that are called in this thread."""
    counter, before = Counter[str](), sys.getprofile()

    def called(frame: Any, event: str, argument: Any) -> None:
        counter["calls"] += event == "call"

    sys.setprofile(called)
    try:
        yield counter
    finally:
        sys.setprofile(before)


@contextmanager
def _disk() -> Iterator[Counter[str]]:
    """The syncs, and the bytes of the files that are synced."""
    counter, real = Counter[str](), os.fsync

    def synced(descriptor: int) -> None:
        facts = os.fstat(descriptor)
        counter["syncs"] += 1
        counter["bytes"] += facts.st_size if stat.S_ISREG(facts.st_mode) else 0

    os.fsync = synced
    try:
        yield counter
    finally:
        os.fsync = real


def _second_round(
    folder: Path, executor: str, counting: Callable[[], AbstractContextManager[Counter[str]]], **overrides: Any
) -> Counter[str]:
    """What the second round of FedAvg on digits takes, with three clients of up to three batches."""
    run = folder / f"{executor}{counting.__name__}{len(overrides)}"
    simulation = simulated(run, "fedavg", False, **{"executor.name": executor, "train.rounds": 2, **overrides})
    rounds = simulation.rounds()
    next(rounds)
    with counting() as counter:
        next(rounds)
    return counter


def count_rounds(folder: Path) -> Counts:
    """What a round takes, one client after another and in a group, and its checkpoint."""
    alone, group = (_second_round(folder, executor, _operations) for executor in ("sequential", "vectorized"))
    few, many = (_second_round(folder, "vectorized", _calls, **{"train.local_epochs": epochs})["calls"] for epochs in (2, 4))
    steps_of_few = _second_round(folder, "vectorized", _operations, **{"train.local_epochs": 2})["aten::_fused_sgd_"]
    disk = _second_round(folder, "sequential", _disk)
    copies = ("aten::copy_", "aten::clone", "aten::_to_copy")
    return {
        "round: calls of fused SGD": alone["aten::_fused_sgd_"],
        "round: forward passes": alone["passes"],
        "round: operations on tensors": alone["operations"],
        "round: tensors copied": sum(alone[name] for name in copies),
        "group: calls of fused SGD": group["aten::_fused_sgd_"],
        "group: operations on tensors": group["operations"],
        "group: tensors copied": sum(group[name] for name in copies),
        "group: Python calls a step": round((many - few) / steps_of_few, 1),
        "checkpoint: syncs": disk["syncs"],
        "checkpoint: kB": round(disk["bytes"] / 1000),
    }


def count_queries(folder: Path) -> Counts:
    """The queries to MLflow's SQL store with which a run of one round, and one of three, are copied."""
    queries = Counter[int]()
    rounds = 0

    def asked(*_: object) -> None:
        queries[rounds] += 1

    event.listen(Engine, "before_cursor_execute", asked)
    try:
        for rounds in (2, 1, 3):  # the first creates the store
            run = fedpriv.train(
                method="fedavg", dataset="digits", clients=2, rounds=rounds, tracking_uri="none",
                run_dir=folder / f"rounds{rounds}", **{"train.local_epochs": 1},
            )  # fmt: skip
            sync(run.path, f"sqlite:///{folder / 'mlflow.db'}", "counts")
    finally:
        event.remove(Engine, "before_cursor_execute", asked)
    return {"tracking: queries a run": queries[1], "tracking: queries of two rounds more": queries[3] - queries[1]}


def measure(folder: Path) -> Counts:
    """All counts; ``folder`` is for the runs."""
    deployment = count_deployment(folder) if find_spec("flwr") is not None else {}
    return count_start(folder) | count_controls(folder) | count_rounds(folder) | count_queries(folder) | deployment


def bounds() -> dict[str, Bound]:
    """The committed table, by count."""
    return {name: Bound(**row) for name, row in json.loads(BOUNDS.read_text(encoding="utf-8")).items()}


def lines(counts: Counts) -> Iterator[str]:
    """Each count in a line, with its difference from the committed table and its bound."""
    table = bounds()
    for name, count in counts.items():
        row = table[name]
        change = f"{count - row.count:+g}" if count != row.count else "as before"
        yield f"{name:40}{count:>8g}{change:>12}   at most {row.bound:g}: {row.reason}"
