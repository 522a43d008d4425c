"""The victim of a cell: its images, its net, and its clients' messages with the transforms of a run's wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Kind, Observation, Schedule, SplitNet, blank
from fedpriv.attacks.lab.nets import lenet, uniform_
from fedpriv.audit.record.alteration import alteration
from fedpriv.data.dataset import Dataset
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.experiments.leakage.spec import Cell, ImagesSpec, VictimSpec
from fedpriv.noise_source import SeededSource
from fedpriv.wire import Payload, Transform, TransformContext, transform_and_seal
from fedpriv.wire.coding import decoded

Report = Callable[[str, float], None]
"""Receives the name and value of a transform's report, such as a signal-to-noise ratio."""


@dataclass(frozen=True)
class CellImages:
    """The images of a cell ``(n, C, H, W)`` in [0, 1], their labels ``(n,)``, and the number of classes."""

    images: Tensor
    labels: Tensor
    classes: int


def pick_images(dataset: Dataset, spec: ImagesSpec) -> CellImages:
    """The first ``n`` test images in an order drawn by the seed.

    Raises:
        UsageError: the data set has fewer.
    """
    if spec.n > len(dataset.test_images):
        raise UsageError(f"images.n = {spec.n}: {dataset.name} has {len(dataset.test_images)} test images")
    order = torch.randperm(len(dataset.test_images), generator=torch.Generator().manual_seed(spec.seed))[: spec.n]
    return CellImages(dataset.test_images[order].float() / 255, dataset.test_labels[order], len(dataset.classes))


def victim_net(spec: VictimSpec, classes: int, channels: int, height: int, width: int) -> SplitNet:
    """The net, split where sharing ends, with parameters drawn by the spec's seed."""
    maps = 12, -(-height // 4), -(-width // 4)
    net = lenet(classes, spec.layers, spec.masked, channels, maps[0] * maps[1] * maps[2])
    if spec.convolutions:  # the last one is hidden; attackers expect flat features
        whole = [*net.body, *net.top]  # type: ignore[misc]
        last = max(i for i, layer in enumerate(whole) if isinstance(layer, nn.Conv2d))
        net = SplitNet(nn.Sequential(*whole[:last], nn.Flatten()), nn.Sequential(nn.Unflatten(1, maps), *whole[last:]))
    if not spec.bias:
        for layer in net.body.children():
            if isinstance(layer, nn.Linear):
                layer.register_parameter("bias", None)
    uniform_(net, torch.Generator().manual_seed(spec.seed))
    return net


def observations(cell: Cell, victims: CellImages, report: Report = lambda name, value: None) -> list[Observation]:
    """The observations of the cell's clients, each of which holds ``batch`` consecutive images.

    Args:
        report: called with the transforms' reports, client by client.

    Raises:
        UsageError: a transform is unknown, or does not fit this net.
    """
    spec, shape = cell.victim, tuple(victims.images.shape[1:])
    net = victim_net(spec, victims.classes, *shape)
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    sent = [name for name in weights if not (spec.masked and name.startswith("top."))]
    known = {name: w for name, w in weights.items() if name in sent or cell.attacker.top != "unknown"}
    kind: Kind = "gradient" if spec.steps == 1 else "change"
    transforms = build_transforms(cell.defence)
    clients = zip(torch.split(victims.images, spec.batch), torch.split(victims.labels, spec.batch), strict=True)
    observed = []
    for number, (images, labels) in enumerate(clients):
        update = _gradient(net, weights, images, labels) if spec.steps == 1 else _change(net, weights, images, labels, spec)
        received, altered = _receive({name: update[name] for name in sent}, kind, net, transforms, (spec.seed, number), report)
        message = Observation(received, kind, known, blank(net), shape, victims.classes, cell.attacker.threat, altered=altered)
        observed.append(replace(message, num_examples=spec.batch, schedule=Schedule(spec.lr, spec.steps, spec.batch)))
    return observed


def _receive(
    update: Mapping[str, Tensor],
    kind: Kind,
    net: nn.Module,
    transforms: Sequence[Transform],
    seed: tuple[int, int],
    report: Report,
) -> tuple[dict[str, Tensor], Altered]:
    """A gradient, or a change of weights, as the server receives it: transformed, sealed and decoded as in a run; and how the
    transforms altered it."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in update.items()}  # the reference of both
    linear = tuple(name for name, layer in net.named_modules() if isinstance(layer, nn.Linear))

    def context(index: int) -> TransformContext:
        return TransformContext(zeros, tuple(update), SeededSource(seed[0]).noise(*seed[1:], "leakage", index), linear, report)

    payload = Payload(update, round=1, client=seed[1], kind="gradient" if kind == "gradient" else "delta")
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
