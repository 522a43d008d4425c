"""Rows of Adult recovered by our attacks and by TabLeak's public code, from the same gradients.

TabLeak (Vero et al., ICML 2023, github.com/eth-sri/tableak) is no dependency: name a checkout of it in the environment variable
TABLEAK. Its code reads the table, which it holds, and scores all attackers. All are given the net, the gradient and the labels,
and know the range of every number. The peer's settings are those of its experiment 46, which its authors call TabLeak.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.columns import CategoryColumn, Column, NumberColumn, RowEncoding
from fedpriv.attacks.core.observation import Observation, SplitNet, ThreatModel
from fedpriv.attacks.lab.nets import observe
from fedpriv.attacks.rows.closed_form import ClosedForm
from fedpriv.attacks.rows.tableak import TabLeak
from fedpriv.errors import FedprivError
from fedpriv.experiments.markdown import table

SIZES = (1, 2, 4, 8, 16)
BATCHES = 1
"""Of each size; the peer takes minutes for one."""
ATTACK = TabLeak()
STEPS = 1500
"""Of the peer."""
PEER: dict[str, Any] = {
    "reconstruction_loss": "cosine_sim", "initialization_mode": "uniform", "learning_rates": 0.06, "max_iterations": STEPS,
    "optimization_mode": "naive", "post_selection": 30, "sign_trick": True, "weight_trick": False, "softmax_trick": True,
    "sigmoid_trick": True, "temperature_mode": "constant", "pooling": "median+softmax",
}  # fmt: skip
ATTACKERS = ("TabLeak's code", "tableak", "closed-form")


class Scaled(nn.Module):
    """Scales the entries of rows, as TabLeak does those of categories, too."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, rows: Tensor) -> Tensor:
        """``(B, F)`` -> ``(B, F)``."""
        return (rows - self.mean) / self.std


class Peer:
    """A checkout of TabLeak's code, with its Adult."""

    def __init__(self, checkout: Path) -> None:
        with self._within(checkout):
            self.attacks, self.utils = (importlib.import_module(name) for name in ("attacks", "utils"))
            # Written in place into a leaf, which torch has refused since version 1.8.
            bound = self.utils.continuous_sigmoid_bound
            inversion = importlib.import_module("attacks.gradient_inversion_attack")
            setattr(inversion, "continuous_sigmoid_bound", lambda x, *args, **kwargs: bound(x.clone(), *args, **kwargs))  # noqa: B010
            self.data = importlib.import_module("datasets.adult").ADULT()
            self.data.standardize()

    @staticmethod
    @contextlib.contextmanager
    def _within(checkout: Path) -> Iterator[None]:
        before, path = Path.cwd(), list(sys.path)
        os.chdir(checkout)
        sys.path.insert(0, str(checkout))
        try:
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path

    @property
    def encoding(self) -> RowEncoding:
        """The columns, with the range of each number."""
        columns = list[Column]()
        for name, (kind, places) in self.data.train_feature_index_map.items():
            if kind == "cont":
                mean, std = (float(values[places[0]]) for values in (self.data.mean, self.data.std))
                low, high = map(float, self.data.continuous_bounds[name])
                columns.append(NumberColumn(name, mean, std, low=low, high=high))
            else:
                columns.append(CategoryColumn(name, tuple(self.data.train_features[name]), other=False))
        return RowEncoding(tuple(columns))

    def scale(self, encoding: RowEncoding) -> tuple[Tensor, Tensor]:
        """Means and deviations ``(F,)`` by which it scales the entries of categories; 0 and 1 for numbers, which are scaled."""
        mean, std = self.data.mean.clone(), self.data.std.clone()
        mean[encoding.numbers], std[encoding.numbers] = 0.0, 1.0
        return mean, std

    def cells_right(self, rows: Tensor, true: Tensor) -> float:
        """The share of cells of rows ``(B, F)`` that are right, both scaled by it."""
        guess, truth = (self.data.decode_batch(part.clone(), standardized=True) for part in (rows, true))
        errors = self.utils.match_reconstruction_ground_truth(truth, guess, self.data.create_tolerance_map())[1]
        return 1 - float(errors.mean())

    def invert(self, net: nn.Module, gradient: list[Tensor], true: Tensor, labels: Tensor) -> Tensor:
        """Its reconstruction ``(B, F)`` of rows that its code takes for their shape."""
        with contextlib.redirect_stdout(io.StringIO()):
            rows = self.attacks.invert_grad(net, nn.CrossEntropyLoss(), gradient, labels, true, dataset=self.data, **PEER)
        return rows.detach()


def measure(data_dir: str) -> list[dict[str, Any]]:
    """A row for each of :data:`SIZES`: the cells right in each of :data:`BATCHES` batches, and the CPU seconds.

    Raises:
        FedprivError: no checkout of TabLeak is named.
    """
    if not (checkout := os.environ.get("TABLEAK")):
        raise FedprivError("name a checkout of github.com/eth-sri/tableak in the environment variable TABLEAK")
    torch.set_num_threads(1)
    peer = Peer(Path(checkout).resolve())
    return [{"rows": size, "cells": measured(peer, size, ATTACKERS)} for size in SIZES]


def measured(peer: Peer, size: int, attackers: tuple[str, ...], batches: int = BATCHES) -> dict[str, Any]:
    """Per attacker, the share of cells right and the CPU seconds of each batch."""
    results: dict[str, Any] = {name: {"right": [], "cpu_seconds": []} for name in attackers}
    for number in range(batches):
        scaled, labels, net, message = case(peer, size, number)
        for name in attackers:
            attack = {"TabLeak's code": partial(peers, peer), "tableak": ours, "closed-form": read_off}[name]
            torch.manual_seed(number)
            began = time.process_time()
            rows = attack(net, message, scaled, labels)
            results[name]["cpu_seconds"].append(round(time.process_time() - began, 1))
            results[name]["right"].append(round(peer.cells_right(rows, scaled), 4))
    return results


def case(peer: Peer, size: int, number: int) -> tuple[Tensor, Tensor, nn.Sequential, Observation]:
    """A batch of training rows, and its gradient.

    Returns:
        the rows as the peer scales them ``(B, F)``, their labels ``(B,)``, a net at initialisation that takes such rows, and the
        message as our attacks get it, whose net takes rows with one-hot categories and scales them.
    """
    encoding, (mean, std) = peer.encoding, peer.scale(peer.encoding)
    generator = torch.Generator().manual_seed(1000 * size + number)
    chosen = torch.randint(len(peer.data.ytrain), (size,), generator=generator)
    scaled, labels = peer.data.Xtrain[chosen].clone(), peer.data.ytrain[chosen].clone()
    torch.manual_seed(1000 * size + number)
    body = nn.Sequential(nn.Linear(encoding.width, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    top = nn.Linear(100, 2)
    split = SplitNet(nn.Sequential(Scaled(mean, std), *body), top)
    message = observe(split, scaled * std + mean, labels, ThreatModel(labels=True))
    return scaled, labels, nn.Sequential(*body, top), replace(message, encoding=encoding)


def peers(peer: Peer, net: nn.Module, message: Observation, scaled: Tensor, labels: Tensor) -> Tensor:
    """The peer's rows."""
    return peer.invert(net, list(message.shared.values()), scaled, labels)


def ours(net: nn.Module, message: Observation, scaled: Tensor, labels: Tensor) -> Tensor:
    """The rows of our gradient matching, scaled as the peer's."""
    mean, std = scale_of(message)
    return (ATTACK.run([message], 0).raw - mean) / std


def read_off(net: nn.Module, message: Observation, scaled: Tensor, labels: Tensor) -> Tensor:
    """The rows of our closed form, from the gradient of the same net without its scaling, which is part of the first layer."""
    mean, std = scale_of(message)
    weight, bias = "body.1.weight", "body.1.bias"
    shared, weights = dict(message.shared), dict(message.weights)
    shared[weight] = shared[weight] * std + shared[bias][:, None] * mean
    weights[weight], weights[bias] = weights[weight] / std, weights[bias] - weights[weight] @ (mean / std)
    _, *layers = message.net.body.children()
    plain = SplitNet(nn.Sequential(nn.Identity(), *layers), message.net.top)
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("body.0.")}
    rows = ClosedForm().run([replace(message, net=plain, shared=shared, weights=weights)], 0).raw
    return (rows.nan_to_num(0.0) - mean) / std


def scale_of(message: Observation) -> tuple[Tensor, Tensor]:
    """Means and deviations ``(F,)`` by which the net scales rows."""
    return message.weights["body.0.mean"], message.weights["body.0.std"]


def render(rows: list[dict[str, Any]]) -> str:
    """A section of the report."""

    def cell(result: Mapping[str, Any]) -> str:
        right, seconds = result["right"], result["cpu_seconds"]
        return f"{100 * sum(right) / len(right):.1f} %, {sum(seconds) / len(seconds):.1f} s"

    lines = [[row["rows"], *(cell(row["cells"][name]) for name in ATTACKERS)] for row in rows]
    text = (
        "Adult without rows that lack a cell, 105 entries, through a perceptron of 100 and 100 units with ReLU at "
        "initialisation; all rows behind one gradient, labels given, one batch of each size. Share of the cells right by the "
        "peer's score (categories exact, numbers within 0.319 deviations), and CPU seconds. TabLeak's code takes "
        f"{STEPS:,} steps of 30 starts, as in its paper; `tableak` {ATTACK.steps} steps of up to {ATTACK.starts} starts, no "
        "further ones once the rows explain the gradient. One thread, on a machine with many other jobs, which makes all slower."
    )
    head = " | ".join(["rows behind the gradient", "TabLeak's public code", "`tableak`", "`closed-form`"])
    return "\n\n".join(["## Rows of a table beside TabLeak's code, on the same gradients", text, table(head, lines)])
