"""FedSiam-DA, written independently from the paper's equations: float64, whole modules, deep copies.

Shares nothing with fedpriv but the initial net, the clients' tensors and the order of the batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Batches = Callable[[int, int], list[list[Tensor]]]
"""(round, client) -> per epoch the list of index batches."""


@dataclass
class Setting:
    """Weights of each pull and of the push, the ablations, and the optimiser."""

    pull: float
    push: float
    lr: float
    momentum: float
    wd: float
    wd_bias: float
    history: str = "epoch"
    simultaneous: bool = False
    frozen_anchor: bool = False
    persistent: bool = False
    head_on_features: bool = False


class Sgd:
    """Heavy ball, one tensor after the other."""

    def __init__(self, net: nn.Module, setting: Setting) -> None:
        self.parameters, self.setting = list(net.parameters()), setting
        self.velocity: list[Tensor | None] = [None] * len(self.parameters)

    def step(self, loss: Tensor) -> None:
        s = self.setting
        grads = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for i, (p, g) in enumerate(zip(self.parameters, grads, strict=True)):
            full = (torch.zeros_like(p) if g is None else g) + (s.wd if p.ndim > 1 else s.wd_bias) * p.detach()
            v = self.velocity[i]
            self.velocity[i] = full if v is None else s.momentum * v + full
            p.data -= s.lr * self.velocity[i]  # type: ignore[operator]


def cos(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.dot(x, y) / (x.norm() * y.norm()) for x, y in zip(a, b, strict=True)]).mean()


def z_of(net: nn.Module, x: Tensor) -> Tensor:
    return net.projector(net.encoder(x))  # type: ignore[operator, no-any-return]


def without_trace(net: nn.Module, x: Tensor, training: bool) -> Tensor:
    with torch.no_grad():
        return z_of(copy.deepcopy(net).train(training), x)


def client_update(
    received: nn.Module, previous: nn.Module | None, x: Tensor, y: Tensor, epochs: list[list[Tensor]], s: Setting
) -> nn.Module:
    local = copy.deepcopy(previous if s.persistent and previous is not None else received).train()
    anchor = copy.deepcopy(received).train()
    past = previous
    for_local, for_anchor = Sgd(local, s), Sgd(anchor, s)
    for number, epoch in enumerate(epochs):
        if s.history == "epoch" and number:
            past = copy.deepcopy(local)
        for index in epoch:
            if len(index) < 2:
                continue
            z = z_of(local, x[index])
            p = local.predictor(z)  # type: ignore[operator]
            logits = local.head(local.encoder(x[index]) if s.head_on_features else z)  # type: ignore[operator]
            loss = -torch.log_softmax(logits, 1)[torch.arange(len(index)), y[index]].mean()
            if s.pull:
                target = without_trace(anchor, x[index], training=True)
                if not s.frozen_anchor:
                    of_anchor = anchor.predictor(z_of(anchor, x[index]))  # type: ignore[operator]
                    for_anchor.step(-s.pull * cos(of_anchor, z.detach()))
                    if not s.simultaneous:
                        target = without_trace(anchor, x[index], training=True)
                loss = loss - s.pull * cos(p, target)
            if s.push and past is not None:
                loss = loss + s.push * cos(without_trace(past, x[index], training=False), z)
            before = copy.deepcopy(local)
            for_local.step(loss)
            if s.history == "step":
                past = before
    return local


def dual(nets: list[nn.Module]) -> tuple[nn.Module, Tensor]:
    """-> (merged net, xi), with negative cosines as 0."""
    vectors = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets]
    mean = torch.stack(vectors).mean(0)
    c = torch.stack([torch.dot(v, mean) / (v.norm() * mean.norm()) for v in vectors]).clamp(min=0)
    xi = c / c.sum()
    merged = copy.deepcopy(nets[0])
    for name, tensor in merged.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(sum(w * net.state_dict()[name] for w, net in zip(xi, nets, strict=True)))
    return merged, xi


def run(
    initial: nn.Module, clients: list[tuple[Tensor, Tensor]], active: list[list[int]], batches: Batches, s: Setting
) -> tuple[nn.Module, dict[int, nn.Module]]:
    """-> (server's net, each trained client's last upload)."""
    server = copy.deepcopy(initial).double().requires_grad_(True)
    uploads: dict[int, nn.Module] = {}
    for t, chosen in enumerate(active, start=1):
        for i in chosen:
            x, y = clients[i][0].double(), clients[i][1]
            uploads[i] = client_update(server, uploads.get(i), x, y, batches(t, i), s)
        server, _ = dual([uploads[i] for i in chosen])
    return server, uploads
