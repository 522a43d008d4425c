"""The global baselines, written independently from the papers' formulae: float64, one tensor at a time.

Shares nothing with fedpriv but the initial net, the clients' tensors and the order of the batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Row = dict[str, Tensor]
Batches = Callable[[int, int], list[Tensor]]
"""(round, client) -> the index batches of all its epochs, in order."""


@dataclass
class World:
    """A federation and what is kept between rounds; ``server`` and ``clients`` hold whatever a method keeps."""

    net: nn.Module
    data: list[tuple[Tensor, Tensor]]
    batches: Batches
    lr: float
    momentum: float = 0.0
    wd: float = 0.0
    wd_bias: float = 0.0
    model: Row = field(default_factory=dict)
    server: dict[str, Row] = field(default_factory=dict)
    clients: dict[int, dict[str, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.net = copy.deepcopy(self.net).double().eval().requires_grad_(True)
        self.model = {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def outputs(self, row: Row, x: Tensor) -> Any:
        return torch.func.functional_call(self.net, row, (x.double(),))

    def gradient(
        self, row: Row, client: int, index: Tensor | slice, loss: Callable[[Row, Tensor, Tensor], Tensor] | None = None
    ) -> Row:
        """Of the cross-entropy (or ``loss``) with weight decay."""
        x, y = self.data[client][0][index], self.data[client][1][index]
        leaves = {name: t.clone().requires_grad_(True) for name, t in row.items()}
        value = (loss or self.cross_entropy)(leaves, x, y)
        gradients = torch.autograd.grad(value, list(leaves.values()))
        return {name: g + (self.wd if g.ndim > 1 else self.wd_bias) * row[name] for (name, g) in zip(row, gradients, strict=True)}

    def cross_entropy(self, row: Row, x: Tensor, y: Tensor) -> Tensor:
        logits = self.outputs(row, x).logits
        return -torch.log_softmax(logits, 1)[torch.arange(len(y)), y].mean()

    def steps(self, round: int, client: int, change: Callable[[str, Row], Tensor] | None = None, loss: Any = None, plain: set[str] = set()) -> Iterator[tuple[Row, Row]]:  # fmt: skip  # noqa: B006, E501
        """Local SGD from the model; after each step its raw gradient and the new row. ``change`` is added to the gradient."""
        row, velocity = {n: t.clone() for n, t in self.model.items()}, dict[str, Tensor]()
        for index in self.batches(round, client):
            raw, moved = self.gradient(row, client, index, loss), dict[str, Tensor]()
            for name in row:
                g = raw[name] + (change(name, row) if change else 0.0)
                velocity[name] = g if name in plain or name not in velocity else self.momentum * velocity[name] + g
                moved[name] = row[name] - self.lr * velocity[name]
            row = moved
            yield raw, row

    def mean(self, rows: list[Row], weights: list[float]) -> Row:
        total = sum(weights)
        return {name: sum(w / total * row[name] for w, row in zip(weights, rows, strict=True)) for name in self.model}  # type: ignore[misc]

    def zeros(self) -> Row:
        return {name: torch.zeros_like(t) for name, t in self.model.items()}

    def size(self, client: int) -> int:
        return len(self.data[client][1])


def fedprox(world: World, round: int, active: list[int], mu: float) -> None:
    rows = []
    for k in active:
        *_, (_, row) = world.steps(round, k, lambda n, row: mu * (row[n] - world.model[n]))
        rows.append(row)
    world.model = world.mean(rows, [world.size(k) for k in active])


def fednova(world: World, round: int, active: list[int], mu: float, uniform: bool, server_momentum: float) -> None:
    rows, a = [], []
    for k in active:
        *_, (_, row) = world.steps(round, k, lambda n, row: mu * (row[n] - world.model[n]))
        rows.append(row)
        x = v = 0.0  # the same steps on a line, along a constant gradient of one
        for _ in world.batches(round, k):
            v = world.momentum * v + 1 - mu * x
            x += world.lr * v
        a.append(x / world.lr)
    p = [1.0 if uniform else float(world.size(k)) for k in active]
    p = [share / sum(p) for share in p]
    tau = sum(pk * ak for pk, ak in zip(p, a, strict=True))
    old = world.server.setdefault("velocity", world.zeros())
    for n in world.model:
        d = tau * sum(pk * (world.model[n] - row[n]) / ak for pk, ak, row in zip(p, a, rows, strict=True))
        old[n] = server_momentum * old[n] + d
        world.model[n] = world.model[n] - old[n]


def scaffold(
    world: World, round: int, active: list[int], option: str, server_lr: float, masked: set[str], plain: bool, registered: int
) -> None:
    c = world.server.setdefault("c", world.zeros())
    rows, changes = [], []
    for k in active:
        ck = world.clients.setdefault(k, {"c": world.zeros()})["c"]
        raws = []
        change = lambda n, row, ck=ck: c[n] - ck[n] if n in masked else torch.zeros_like(c[n])  # noqa: E731
        for raw, row in world.steps(round, k, change, plain=masked if plain else set()):  # noqa: B007
            raws.append(raw)
        rows.append(row)
        new = world.zeros()
        full = world.gradient(world.model, k, slice(None)) if option == "I" else world.zeros()
        for n in masked:
            if option == "II":
                new[n] = ck[n] - c[n] + (world.model[n] - row[n]) / (len(raws) * world.lr)
            else:
                new[n] = full[n] if option == "I" else torch.stack([raw[n] for raw in raws]).mean(0)
        changes.append({n: new[n] - ck[n] for n in c})
        world.clients[k]["c"] = new
    m = len(active)
    for n in world.model:
        world.model[n] = world.model[n] + server_lr * sum(row[n] - world.model[n] for row in rows) / m
        c[n] = c[n] + m / registered * sum(d[n] for d in changes) / m


def feddyn(world: World, round: int, active: list[int], alpha: float, decay: float, registered: int) -> None:
    h = world.server.setdefault("h", world.zeros())
    rows = []
    for k in active:
        lam = world.clients.setdefault(k, {"lambda": world.zeros()})["lambda"]
        *_, (_, row) = world.steps(round, k, lambda n, row, lam=lam: -lam[n] + alpha * (row[n] - world.model[n]))
        world.clients[k]["lambda"] = {n: lam[n] - alpha * (row[n] - world.model[n]) for n in lam}
        rows.append(row)
    for n in world.model:
        h[n] = decay * h[n] - alpha / registered * sum(row[n] - world.model[n] for row in rows)
        world.model[n] = sum(row[n] for row in rows) / len(rows) - h[n] / alpha


def moon(world: World, round: int, active: list[int], mu: float, tau: float) -> None:
    rows = []
    received = dict(world.model)
    for k in active:
        previous = world.clients.get(k, {}).get("previous")

        def loss(row: Row, x: Tensor, y: Tensor, previous: Row | None = previous) -> Tensor:
            total = world.cross_entropy(row, x, y)
            if previous is None:
                return total
            z, zg, zp = (world.outputs(weights, x).projection for weights in (row, received, previous))
            cosine = lambda a, b: (a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)  # noqa: E731
            up, down = torch.exp(cosine(z, zg) / tau), torch.exp(cosine(z, zp) / tau)
            return total - mu * torch.log(up / (up + down)).mean()

        *_, (_, row) = world.steps(round, k, loss=loss)
        rows.append(row)
        world.clients[k] = {"previous": row}
    world.model = world.mean(rows, [world.size(k) for k in active])
