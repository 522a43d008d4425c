"""MpFedcon and FedRep, written independently from the papers' equations: float64, whole modules, deep copies.

Shares nothing with fedpriv but the initial net, the clients' tensors and the order of the batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

Batches = Callable[[int, int, int, int], list[list[Tensor]]]
"""(round, client, phase number from 1, epochs) -> per epoch the list of index batches."""


def project(net: nn.Module, x: Tensor) -> Tensor:
    return net.projector(net.encoder(x))  # type: ignore[operator, no-any-return]


def sgd_phase(
    net: nn.Module, trained: list[nn.Module], loss: Callable[[Tensor], Tensor], epochs: list[list[Tensor]],
    lr: float, momentum: float, wd: float, wd_bias: float,
) -> None:  # fmt: skip
    parameters = [p for part in trained for p in part.parameters()]
    velocity = [None] * len(parameters)
    for epoch in epochs:
        for index in epoch:
            grads = torch.autograd.grad(loss(index), parameters)
            for i, (p, g) in enumerate(zip(parameters, grads, strict=True)):
                step = g + (wd if p.ndim > 1 else wd_bias) * p.detach()
                velocity[i] = step if velocity[i] is None else momentum * velocity[i] + step
                p.data -= lr * velocity[i]


def run(
    initial: nn.Module, clients: list[tuple[Tensor, Tensor]], active: list[list[int]], batches: Batches, *,
    mu: float, tau: float, head_epochs: int, encoder_epochs: int,
    lr: float, momentum: float, wd: float, wd_bias: float, classes: int,
) -> tuple[nn.Module, dict[int, nn.Module], dict[int, Tensor]]:  # fmt: skip
    """-> (server's encoder, each trained client's whole last net, class -> centre)."""
    initial = copy.deepcopy(initial).double().requires_grad_(True)
    encoder = copy.deepcopy(initial.encoder)
    local: dict[int, nn.Module] = {}
    centers: dict[int, Tensor] = {}
    for t, clients_of_round in enumerate(active, start=1):
        uploads: list[tuple[float, nn.Module, dict[int, Tensor]]] = []
        for i in clients_of_round:
            x, y = clients[i][0].double(), clients[i][1]
            net = copy.deepcopy(local.get(i, initial))
            net.encoder = copy.deepcopy(encoder)
            reference = copy.deepcopy(net)
            known = dict(centers)

            def loss(index: Tensor, net: nn.Module = net, reference: nn.Module = reference, x: Tensor = x, y: Tensor = y, known: dict[int, Tensor] = known) -> Tensor:  # fmt: skip  # noqa: E501
                z = project(net, x[index])
                total = -torch.log_softmax(net.head(z), 1)[torch.arange(len(index)), y[index]].sum()  # type: ignore[operator]
                if mu:
                    with torch.no_grad():
                        z_negative = project(reference, x[index])
                    for row, label, other in zip(z, y[index].tolist(), z_negative, strict=True):
                        if label in known:
                            up = torch.exp(torch.dot(row, known[label]) / row.norm() / known[label].norm() / tau)
                            down = torch.exp(torch.dot(row, other) / row.norm() / other.norm() / tau)
                            total = total - mu * torch.log(up / (up + down))
                return total / len(index)

            sgd_phase(net, [net.projector, net.head], loss, batches(t, i, 1, head_epochs), lr, momentum, wd, wd_bias)
            sgd_phase(net, [net.encoder], loss, batches(t, i, 2, encoder_epochs), lr, momentum, wd, wd_bias)
            with torch.no_grad():
                z = project(net, x)
            uploads.append((len(y), net.encoder, {c: z[y == c].mean(0) for c in range(classes) if (y == c).any()}))
            local[i] = net
        total_n = sum(n for n, _, _ in uploads)
        for name, parameter in encoder.named_parameters():
            parameter.data = sum(n / total_n * dict(e.named_parameters())[name].data for n, e, _ in uploads)  # type: ignore[assignment]
        for c in range(classes):
            sent = [means[c] for _, _, means in uploads if c in means]
            if sent:
                centers[c] = torch.stack(sent).mean(0)
    return encoder, local, centers
