"""Per-FedAvg, APFL and Ditto, written independently from the papers' equations: float64, named tensors.

Shares nothing with fedpriv but the initial net, the clients' tensors and the order of the batches. The Hessian of Per-FedAvg is
exact here, by double differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Model = dict[str, Tensor]
Batches = Callable[[int, int, int, int], list[Tensor]]
"""(round, client, phase number from 1, epochs) -> the index batches of all its steps."""


@dataclass
class Sgd:
    """Momentum and weight decay as ``torch.optim.SGD`` documents them, on named tensors."""

    lr: float
    momentum: float
    decay: float
    velocity: Model = field(default_factory=dict)

    def step(self, model: Model, gradient: Model) -> Model:
        moved = {}
        for name, w in model.items():
            g = gradient[name] + (self.decay if w.ndim > 1 else 0.0) * w
            self.velocity[name] = g if name not in self.velocity else self.momentum * self.velocity[name] + g
            moved[name] = w - self.lr * self.velocity[name]
        return moved


@dataclass
class World:
    net: nn.Module
    lr: float
    momentum: float
    decay: float

    def sgd(self, lr: float | None = None) -> Sgd:
        return Sgd(lr or self.lr, self.momentum, self.decay)

    def loss(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(self.net, model, (x,)).logits
        return -torch.log_softmax(logits, 1)[torch.arange(len(y)), y].mean()

    def gradient(self, model: Model, x: Tensor, y: Tensor, create_graph: bool = False) -> Model:
        leaves = {name: w if create_graph else w.detach().requires_grad_() for name, w in model.items()}
        gradients = torch.autograd.grad(self.loss(leaves, x, y), list(leaves.values()), create_graph=create_graph)
        return dict(zip(model, gradients, strict=True))


def perfedavg(
    world: World, w: Model, x: Tensor, y: Tensor, batches: list[Tensor], parts: int, a: float, b: float, second_order: bool
) -> Model:  # fmt: skip
    """A local update; ``second_order``: with the exact Hessian-vector product on the third part."""
    outer = world.sgd(b)
    for index in batches:
        pieces = index.tensor_split(parts) if len(index) >= parts else [index] * parts
        inner = world.gradient(w, x[pieces[0]], y[pieces[0]])
        adapted = {name: value - a * inner[name] for name, value in w.items()}
        v = world.gradient(adapted, x[pieces[1]], y[pieces[1]])
        if second_order:
            product = hessian_vector(world, w, v, x[pieces[2]], y[pieces[2]])
            v = {name: value - a * product[name] for name, value in v.items()}
        w = outer.step(w, v)
    return w


def hessian_vector(world: World, w: Model, v: Model, x: Tensor, y: Tensor) -> Model:
    leaves = {name: value.detach().requires_grad_() for name, value in w.items()}
    gradient = world.gradient(leaves, x, y, create_graph=True)
    along = sum((gradient[name] * v[name].detach()).sum() for name in w)
    return dict(zip(w, torch.autograd.grad(along, list(leaves.values())), strict=True))  # type: ignore[arg-type]


def apfl(
    world: World, w: Model, v: Model, alpha: float, x: Tensor, y: Tensor, batches: list[Tensor], adaptive: bool, alpha_lr: float
) -> tuple[Model, Model, float]:
    """A local update."""
    of_w, of_v = world.sgd(), world.sgd()
    for index in batches:
        mix = {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
        at_w, at_mix = world.gradient(w, x[index], y[index]), world.gradient(mix, x[index], y[index])
        slope = float(sum((at_mix[name] * (v[name] - w[name])).sum() for name in w))
        w, v = of_w.step(w, at_w), of_v.step(v, {name: alpha * g for name, g in at_mix.items()})
        if adaptive:
            alpha = min(1.0, max(0.0, alpha - alpha_lr * slope))
    return w, v, alpha


def descend(
    world: World, w: Model, x: Tensor, y: Tensor, batches: list[Tensor], lam: float = 0.0, to: Model | None = None
) -> Model:
    """SGD epochs, with Ditto's pull towards ``to`` in the gradient."""
    optimiser = world.sgd()
    for index in batches:
        gradient = world.gradient(w, x[index], y[index])
        if to is not None:
            gradient = {name: g + lam * (w[name] - to[name]) for name, g in gradient.items()}
        w = optimiser.step(w, gradient)
    return w


def run(
    world: World, initial: Model, clients: list[tuple[Tensor, Tensor]], active: list[list[int]], batches: Batches,
    method: str, epochs: int, options: dict[str, Any],
) -> tuple[Model, dict[int, Model], dict[int, float]]:  # fmt: skip
    """-> (the server's model, each trained client's personal one, and its alpha)."""
    server, personal, alphas = dict(initial), dict[int, Model](), dict[int, float]()
    for t, chosen in enumerate(active, start=1):
        uploads: list[tuple[float, Model]] = []
        for i in chosen:
            x, y = clients[i][0].double(), clients[i][1]
            steps = batches(t, i, 1, epochs)
            weight = 1.0
            if method == "perfedavg":
                w = perfedavg(world, server, x, y, steps, options["parts"], options["a"], options["b"], options["second_order"])
            elif method == "apfl":
                v, alpha = personal.get(i, initial), alphas.get(i, options["alpha"])
                w, personal[i], alphas[i] = apfl(
                    world, server, v, alpha, x, y, steps, options["adaptive"], options.get("alpha_lr", world.lr)
                )
            else:
                w, weight = descend(world, server, x, y, steps), float(len(y))
                v = personal.get(i, initial)
                personal[i] = descend(world, v, x, y, batches(t, i, 2, options["personal_epochs"]), options["lam"], server)
            uploads.append((weight, w))
        total = sum(weight for weight, _ in uploads)
        server = {name: sum(weight / total * w[name] for weight, w in uploads) for name in server}  # type: ignore[misc]
    return server, personal, alphas
