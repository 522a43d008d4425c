"""The victim of a cell: its net, and a client's message with the transforms of a run's wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Kind, Observation, Schedule, SplitNet, blank
from fedpriv.attacks.lab.nets import lenet, uniform_
from fedpriv.audit.record.alteration import alteration
from fedpriv.data.dataset import Dataset
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.experiments.leakage.cell import Cell, ImagesSpec, VictimSpec
from fedpriv.noise_source import Seed
from fedpriv.wire import Payload, Transform, TransformContext, transform_and_seal
from fedpriv.wire.coding import decoded

Report = Callable[[str, float], None]
"""Receives the name and value of a transform's report (signal-to-noise ratio, whether it clipped)."""


def victim_net(spec: VictimSpec, classes: int, channels: int, height: int, width: int) -> SplitNet:
    """The net, split where sharing ends, with parameters drawn by the spec's seed."""
    features = 12 * -(-height // 4) * -(-width // 4)
    drawn = lenet(classes, spec.layers, spec.masked, channels, features)
    whole = [*drawn.body, *drawn.top]  # type: ignore[misc]
    if spec.activation == "relu":
        whole = [nn.ReLU() if isinstance(layer, nn.Sigmoid) else layer for layer in whole]
    cut = len(drawn.body)  # type: ignore[arg-type]
    if spec.convolutions:
        cut = [i for i, layer in enumerate(whole) if isinstance(layer, nn.Conv2d)][-spec.convolutions]
    net = SplitNet(nn.Sequential(*whole[:cut]), nn.Sequential(*whole[cut:]))
    if spec.convolutions:  # attackers expect flat features
        stride = {1: 4, 2: 2}[spec.convolutions]  # total stride of the remaining convolutions
        maps = (12, -(-height // stride), -(-width // stride))
        net = SplitNet(nn.Sequential(*net.body, nn.Flatten()), nn.Sequential(nn.Unflatten(1, maps), *net.top))  # type: ignore[misc]
    if not spec.bias:
        for layer in net.body.children():
            if isinstance(layer, nn.Linear):
                layer.register_parameter("bias", None)
    uniform_(net, torch.Generator().manual_seed(spec.seed))
    return net


def observations(cell: Cell, dealt: CellImages, report: Report = lambda name, value: None) -> list[Observation]:
    """The observations of the cell's clients, each of which holds ``batch`` consecutive images.

    Args:
        report: called with the transforms' reports, client by client.

    Raises:
        UsageError: a transform is unknown, or does not fit this net.
    """
    spec, (channels, height, width) = cell.victim, dealt.images.shape[1:]
    net = victim_net(spec, dealt.classes, channels, height, width)
    hidden = spec.masked > 0
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    sent = [name for name in weights if not (hidden and name.startswith("top."))]
    known = {name: w for name, w in weights.items() if name in sent or cell.attacker.top != "unknown"}
    schedule = Schedule(spec.lr, spec.steps, spec.batch)
    transforms = build_transforms(cell.defence)
    clients = zip(torch.split(dealt.images, spec.batch), torch.split(dealt.labels, spec.batch), strict=True)
    found = []
    for number, (mine, of_mine) in enumerate(clients):
        kind: Kind = "gradient" if spec.steps == 1 else "change"
        news = _change(net, weights, mine, of_mine, spec) if kind == "change" else _gradient(net, weights, mine, of_mine)
        arrived, altered = carried({name: news[name] for name in sent}, kind, net, transforms, (spec.seed, number), report)
        shape, threat = tuple(mine.shape[1:]), cell.attacker.threat
        message = Observation(arrived, kind, known, blank(net), shape, dealt.classes, threat, altered=altered)
        found.append(replace(message, num_examples=spec.batch, schedule=schedule))
    return found


def carried(
    news: Mapping[str, Tensor], kind: Kind, net: nn.Module, transforms: Sequence[Transform], seed: tuple[int, int], report: Report
) -> tuple[dict[str, Tensor], Altered]:
    """A gradient, or a change of weights, as the server receives it: transformed, sealed and decoded as in a run; with the
    attacker's knowledge of the transforms."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in news.items()}  # the reference of both
    linear = tuple(name for name, layer in net.named_modules() if isinstance(layer, nn.Linear))

    def context(index: int) -> TransformContext:
        return TransformContext(zeros, tuple(news), Seed(seed[0]).draws(*seed[1:], "leakage", index), linear, report)

    payload = Payload(news, round=1, client=seed[1], kind="gradient" if kind == "gradient" else "delta")
    sealed = transform_and_seal(payload, transforms, context)
    return decoded(sealed, zeros).tensors(), alteration(sealed, zeros, transforms)


def _gradient(net: SplitNet, weights: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean cross-entropy, by name."""
    free = {name: w.clone().requires_grad_() for name, w in weights.items()}
    loss = F.cross_entropy(functional_call(net, free, (images,)), labels)
    return dict(zip(free, torch.autograd.grad(loss, list(free.values())), strict=True))


def _change(net: SplitNet, weights: Mapping[str, Tensor], images: Tensor, labels: Tensor, spec: VictimSpec) -> dict[str, Tensor]:
    """The change of the weights over the local steps; hidden layers are trained, too."""
    now = dict(weights)
    for _ in range(spec.steps):
        gradient = _gradient(net, now, images, labels)
        now = {name: w - spec.lr * gradient[name] for name, w in now.items()}
    return {name: now[name] - w for name, w in weights.items()}


@dataclass(frozen=True)
class CellImages:
    """The images of a cell ``(n, C, H, W)`` in [0, 1], their labels ``(n,)``, and the number of classes."""

    images: Tensor
    labels: Tensor
    classes: int


def deal(dataset: Dataset, spec: ImagesSpec) -> CellImages:
    """The first ``n`` test images in an order drawn by the seed.

    Raises:
        UsageError: the data set has fewer.
    """
    if spec.n > len(dataset.test_images):
        raise UsageError(f"images.n = {spec.n}: {dataset.name} has {len(dataset.test_images)} test images")
    order = torch.randperm(len(dataset.test_images), generator=torch.Generator().manual_seed(spec.seed))[: spec.n]
    return CellImages(dataset.test_images[order].float() / 255, dataset.test_labels[order], len(dataset.classes))


def mean_of(reports: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The mean of the reports over the clients, by name."""
    by_name: dict[str, list[float]] = {}
    for name, value in reports:
        by_name.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in by_name.items()}
