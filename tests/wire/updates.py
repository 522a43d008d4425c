"""Real messages: one round of each method, and what its server expects."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from fedpriv.aggregation import aggregations
from fedpriv.methods import methods
from fedpriv.methods.base import Method, ServerState
from fedpriv.objectives import objectives
from fedpriv.wire import Direction, Expected, Sealed
from tests.simulation.small import simulation
from tests.simulation.texts_and_pairs import narrow_fusion

TINY = {
    "data.limit": 120,
    "data.clients": 4,
    "train.participation": 0.5,
    "train.batch_size": 20,
    "model.name": "mlp",  # small, as every fault is sealed again
    "executor.name": "sequential",
    "wire.keep_payloads": "none",
}
PAIRS = {
    "data.name": "disaster_synthetic",
    "data.limit": 40,
    "data.image_size": 16,
    "data.image_only": 0.5,
    "data.text_only": 0.5,
    "model.name": None,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "counts": ("mpfedcon", {"method.center_weighting": "counts", "data.partition.name": "iid"}),
    "gradients": ("feddual", {"method.server_object": "lossgrad_mean"}),
    "moved and steps": ("simprox", {"method.prev": "own", "method.per_step": True}),
    "momentum": ("fednova", {"train.momentum": 0.9, "train.local_steps": 3}),
    "BatchNorm": ("fedbn", {"model.name": "resnet9_narrow", "data.limit": 60}),
    "waiting layers": ("fedavg", {"aggregation": "euc", "aggregation.start": 1, "train.participation": 1.0, "train.rounds": 3}),
    "pairs": ("scaffold", {**PAIRS, "train.participation": 1.0, "train.lr": 0.01}),
    "client-level DP": ("fedavg", {"privacy.level": "client", "privacy.noise": 0.05, "privacy.clip": 0.1}),
    "mask": ("scaffold", {"wire.transforms": [{"name": "mask", "last": 1}]}),
    "mask of statistics": ("mpfedcon", {"wire.transforms": [{"name": "mask", "names": ["statistic.*"]}]}),
    "clip": ("fedavg", {"wire.transforms": [{"name": "clip", "norm": 0.1}, {"name": "gaussian"}]}),
    "prune": ("mpfedcon", {"wire.transforms": [{"name": "prune"}]}),
    "quantise": ("fednova", {"wire.transforms": [{"name": "quantise"}]}),
    "five bits": ("fedavg", {"wire.transforms": [{"name": "quantise", "bits": 5}]}),
    "prune and quantise": ("scaffold", {"wire.transforms": [{"name": "prune"}, {"name": "quantise"}]}),
    "prune and five bits": ("fedrep", {"wire.transforms": [{"name": "prune"}, {"name": "quantise", "bits": 5}]}),
    "half": ("fednova", {"wire.transforms": [{"name": "cast"}]}),
    "prune and half": ("mpfedcon", {"wire.transforms": [{"name": "prune"}, {"name": "cast", "dtype": "bfloat16"}]}),
}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> method and options: every method that sends, every half that none of them has, every transform."""
    sending = {name: kind for name, kind in sorted(methods().items()) if kind.shared}
    theirs = {half for kind in sending.values() for half in (kind.objective_class, kind.aggregation_class)}
    cases: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in sending}
    for name, half in sorted(objectives().items()):
        if half not in theirs:
            cases[f"objective {name}"] = ("fedavg", {"objective": name, "aggregation": "mean"})
    for name, half in sorted(aggregations().items()):
        if half not in theirs:
            all_of_them = {"train.participation": 1.0} if half.suggests.get("train.selection") == "all" else {}
            cases[f"aggregation {name}"] = ("fedavg", {"objective": "cross-entropy", "aggregation": name, **all_of_them})
    return cases | VARIANTS


@dataclass(frozen=True)
class Played:
    """A few rounds, and the messages of the last.

    Attributes:
        received: what the participants were sent.
        uploads: theirs, by client.
        expected: what the server expects of each of them.
        server: its state before it merges them.
    """

    method: Method
    received: Mapping[str, Tensor]
    uploads: Mapping[int, Sealed]
    expected: Mapping[int, Expected]
    server: ServerState


@cache
def played(case: str) -> Played:
    """Played once a process."""
    name, options = cases()[case]
    with TemporaryDirectory() as folder, narrow_fusion():
        run = simulation(Path(folder) / "run", name, **TINY | {"train.rounds": 2} | options)
        crossed: list[tuple[Direction, Sealed]] = []
        run.taps.append(lambda direction, sealed: crossed.append((direction, sealed)))
        run.start()
        while run.progress.round < run.config.train.rounds:
            crossed.clear()
            server = copy.deepcopy(run.state)
            run.run_round()
    fed, agreed = run.federation, run.agreement
    received = next(sealed for direction, sealed in crossed if direction == "down").tensors()
    uploads = {sealed.client: sealed for direction, sealed in crossed if direction == "up" and sealed.client is not None}
    samples = sum(map(fed.data.size, fed.data.nonempty))
    round = fed.config.train.rounds
    examples = None if fed.config.privacy.level == "client" else (1, samples)

    def expected(client: int) -> Expected:
        branch = f"encoder.{fed.data.lacking(client)}."
        unused = frozenset(name for name in agreed.space.names if name.startswith(branch))
        forms = agreed.method.forms(received, round, samples, unused)
        return Expected(round, client, forms, received, examples, max_update_norm=1e3).through(agreed.transforms, agreed.linear)

    return Played(fed.method, received, uploads, {client: expected(client) for client in uploads}, server)
