"""The positive controls of the membership attacks: clients whose members must be found.

Eight clients train the reference net with a linear first layer (:func:`fedpriv.attacks.lab.nets.perceptron`) on eight small
images each, by 50 full-batch steps of plain SGD. Labels are random, so the nets can only memorise them. The attacks score these
images and as many others, with as many shadow models as in the audit, or against the other seven clients. Each client also sends
the class centres of its images, two of a class on average, in the features of its net. The control of the gradient regression is
the first step of such clients, on which it is exact. That of the attack on running statistics is eight clients that pass one
batch each through a net with BatchNorm and send its running statistics alone.

The negative control, an upload trained on no candidate, is up to the caller, as it needs the attacked messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, Passes, Schedule, SplitNet, ThreatModel, blank, state_names
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.class_centers import trace
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import Array, Mask, Use, confidence, fedmia, in_every_use, random_halves
from fedpriv.attacks.inference.row_distance import RowDistance
from fedpriv.attacks.inference.running_statistics import shares_of_batches
from fedpriv.attacks.lab.control import Control, cached_controls
from fedpriv.attacks.lab.nets import perceptron
from fedpriv.attacks.scoring.operating_points import area

Kind = Literal["confidence", "row distance", "class centre", "gradient", "running statistics"]
"""The statistic of a candidate: :func:`fedpriv.attacks.inference.membership.confidence`,
:mod:`fedpriv.attacks.inference.row_distance`, :func:`fedpriv.attacks.inference.class_centers.trace`,
:mod:`fedpriv.attacks.inference.gradient_regression`, or :mod:`fedpriv.attacks.inference.running_statistics`."""
SURE = 0.999
"""Confidence of the interval that must lie above an AUC of 0.5."""

KEYS: tuple[tuple[Kind, Use], ...] = (
    *((kind, use) for kind in ("confidence", "row distance", "class centre") for use in ("alone", "LiRA", "LiRA offline")),
    *((kind, "FedMIA") for kind in ("confidence", "row distance", "class centre")),
    ("gradient", "alone"),
)
"""What :func:`positive_controls` are of, in their order."""

_CLIENTS, _CANDIDATES, _CLASSES, _SIDE, _CHANNELS = 8, 16, 4, 8, 16
_SCHEDULE = Schedule(lr=1.0, steps=50, batch_size=_CANDIDATES // 2)


@dataclass(frozen=True)
class _Asked:
    """What decides the positive controls, besides the code."""

    shadows: int
    seed: int


def kept_controls(shadows: int, seed: int = 0) -> dict[tuple[Kind, Use], Control]:
    """:func:`positive_controls`, from the cache of controls if they are there."""

    def compute() -> list[Control]:
        controls = positive_controls(shadows, seed)
        return [controls[key] for key in KEYS]

    return dict(zip(KEYS, cached_controls(_Asked(shadows, seed), compute=compute), strict=True))


@mounting()
def positive_controls(shadows: int, seed: int = 0) -> dict[tuple[Kind, Use], Control]:
    """The controls of all attacks but that on running statistics; two CPU seconds at 32 shadow models.

    Args:
        shadows: the number of shadow models that the attacks will use.

    Raises:
        ValueError: too few shadow models for LiRA.
    """
    began = time.process_time()
    clients = [_client(shadows, seed, number) for number in range(_CLIENTS)]
    members = np.concatenate([client.members for client in clients])
    scores = [client.scores | _against_others(client, clients) for client in clients]
    seconds = (time.process_time() - began) / len(scores[0])
    controls: dict[tuple[Kind, Use], Control] = {}
    for kind, use in scores[0]:
        by = f", by {shadows} shadow models" if use.startswith("LiRA") else ""
        did = f"memorised {_CANDIDATES // 2} images{by}"
        controls[kind, use] = _control(did, np.concatenate([of_client[kind, use] for of_client in scores]), members, seconds)
    began = time.process_time()
    regressed = np.concatenate([_regressed(seed, number) for number in range(_CLIENTS)])
    seconds = time.process_time() - began
    controls["gradient", "alone"] = _control(f"took one step on {_CANDIDATES // 2} images", regressed, members, seconds)
    return controls


@mounting()
def running_statistics_control(seed: int = 0) -> Control:
    """The control of the attack on running statistics; a fraction of a CPU second."""
    began = time.process_time()
    scores = np.concatenate([_scores_of_batch(1000 * seed + number) for number in range(_CLIENTS)])
    members = np.tile(np.arange(_CANDIDATES) < _CANDIDATES // 2, _CLIENTS)
    did = f"passed one batch of {_CANDIDATES // 2} images through a net with BatchNorm"
    return _control(did, scores, members, time.process_time() - began)


def _control(did: str, scores: Array, members: Mask, cpu_seconds: float) -> Control:
    auc = area(scores, members, SURE)
    needed = f"AUC {auc.value:.2f}, {SURE:.1%} interval {auc.low:.2f} to {auc.high:.2f}; it must lie above 0.5"
    sentence = f"members of {_CLIENTS} undefended clients that {did} ({needed})"
    return Control("positive", auc.is_above_chance, sentence, cpu_seconds)


def _scores_of_batch(seed: int) -> Array:
    """The scores of the eight images of a client's batch, and of eight others, by the running statistics that it sends."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(_CANDIDATES, 1, _SIDE, _SIDE, generator=generator)
    body = nn.Sequential(
        nn.Conv2d(1, _CHANNELS, 3, padding=1), nn.BatchNorm2d(_CHANNELS), nn.ReLU(),
        nn.Conv2d(_CHANNELS, _CHANNELS, 3, 2), nn.BatchNorm2d(_CHANNELS), nn.Flatten(),
    )  # fmt: skip
    net = SplitNet(body, nn.Linear(_CHANNELS * 9, 2)).train()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
        before = {name: net.state_dict()[name].clone() for name in state_names(net)}
        net(images[: _CANDIDATES // 2])
    sent = {name: buffer.clone() for name, buffer in net.named_buffers() if name in before}
    message = Observation(
        {}, "change", before, blank(net), tuple(images.shape[1:]), 2, ThreatModel(), num_examples=_CANDIDATES // 2,
        buffers=sent, passes=Passes(1, _CANDIDATES // 2),
    )  # fmt: skip
    return shares_of_batches(message, lambda: iter([images]))


@dataclass(frozen=True)
class _Client:
    """
    Attributes:
        scores: by the attacks that need only the client's message.
        seen: computes the statistics of this client's candidates from a message.
    """

    scores: dict[tuple[Kind, Use], Array]
    members: Mask
    message: Observation
    seen: Callable[[Observation], dict[Kind, Array]]


def _against_others(client: _Client, clients: Sequence[_Client]) -> dict[tuple[Kind, Use], Array]:
    """FedMIA's scores, with the other clients' messages as the null."""
    null = [client.seen(other.message) for other in clients if other is not client]
    own = client.seen(client.message)
    return {(kind, "FedMIA"): fedmia([own[kind]], [np.stack([scores[kind] for scores in null])]) for kind in own}


def _drawn(seed: int, number: int) -> tuple[Tensor, Tensor, Mask, torch.Generator]:
    """A client's candidates, their labels, which of them it trains on, and the generator for all further draws."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    images = torch.rand(_CANDIDATES, 1, _SIDE, _SIDE, generator=generator)
    labels = torch.randint(_CLASSES, (_CANDIDATES,), generator=generator)
    members = np.zeros(_CANDIDATES, dtype=np.bool_)
    members[torch.randperm(_CANDIDATES, generator=generator)[: _CANDIDATES // 2].numpy()] = True
    return images, labels, members, generator


def _regressed(seed: int, number: int) -> Array:
    """The scores of a client's candidates by the regression of its first step; the attacker knows two images of each class."""
    images, labels, members, generator = _drawn(seed, number)
    _, (message,) = _trained(images, labels, members[None], seed, replace(_SCHEDULE, steps=1))
    known = torch.arange(_CLASSES).repeat(2)
    public = LabelledSamples(
        {"": _normalised(torch.rand(len(known), 1, _SIDE, _SIDE, generator=generator))}, known, itemgetter("")
    )
    (scores,) = gradient_regression(
        [message], LabelledSamples({"": _normalised(images)}, labels, itemgetter("")), public, [message.weights]
    )
    return scores


def _client(shadows: int, seed: int, number: int) -> _Client:
    images, labels, members, generator = _drawn(seed, number)
    inside = random_halves(shadows, _CANDIDATES, 1000 * seed + number)
    known = torch.cat([images, torch.rand(images.shape, generator=generator)])
    classes = torch.cat([labels, torch.randint(_CLASSES, labels.shape, generator=generator)])
    before, messages = _trained(images, labels, np.concatenate([members[None], inside]), seed, _SCHEDULE)
    rows = RowDistance.of(before, [_normalised(images)])

    def seen(message: Observation) -> dict[Kind, Array]:
        centers = dict(zip(message.statistics["classes"].tolist(), message.statistics["centers"], strict=True))
        return {
            "confidence": confidence(_outputs(message, images), labels),
            "row distance": rows(message),
            "class centre": trace(_outputs(message, known, "body"), classes, _CANDIDATES, centers),
        }

    observed, *shadow_scores = [seen(message) for message in messages]
    scores = {
        (kind, use): values
        for kind in observed
        for use, values in in_every_use(observed[kind], np.stack([shadow[kind] for shadow in shadow_scores]), inside).items()
    }
    return _Client(scores, members, messages[0], seen)


def _trained(images: Tensor, labels: Tensor, who: Mask, seed: int, schedule: Schedule) -> tuple[Observation, list[Observation]]:
    """A message without any change, and for each row of ``who`` ``(s, n)`` that of training on the images it selects."""
    net = perceptron(seed, _CLASSES, 1, _SIDE, _SIDE)
    start = {name: parameter.detach() for name, parameter in net.named_parameters()}
    chosen = torch.from_numpy(who).nonzero()[:, 1].reshape(len(who), -1)
    inputs, targets = _normalised(images)[chosen], labels[chosen]

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, weights, (x,)), y)

    weights = {name: tensor.repeat(len(who), *[1] * tensor.ndim).requires_grad_() for name, tensor in start.items()}
    for _ in range(schedule.steps):
        # The gradient of a sum, as each net is in one term only; `torch.func.grad` would import modules for seconds.
        gradients = torch.autograd.grad(vmap_or_loop(loss, weights, inputs, targets).sum(), list(weights.values()))
        with torch.no_grad():
            for tensor, gradient in zip(weights.values(), gradients, strict=True):
                tensor -= schedule.lr * gradient
    still = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    before = Observation(
        still, "change", start, net, tuple(images.shape[1:]), _CLASSES, ThreatModel(), (0.5,), (0.5,),
        num_examples=schedule.batch_size, schedule=schedule,
    )  # fmt: skip
    changes = [{name: tensor[i].detach() - start[name] for name, tensor in weights.items()} for i in range(len(who))]
    sent = [replace(before, shared=change) for change in changes]
    data = [(images[chosen], labels[chosen]) for chosen in torch.from_numpy(who)]
    return before, [replace(message, statistics=_centers(message, *own)) for message, own in zip(sent, data, strict=True)]


def _centers(message: Observation, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The means by class of the features of the net that a client trained."""
    features, classes = _outputs(message, images, "body"), torch.unique(labels)
    return {"centers": torch.stack([features[labels == label].mean(0) for label in classes]), "classes": classes}


def _normalised(images: Tensor) -> Tensor:
    return (images - 0.5) / 0.5


def _outputs(message: Observation, images: Tensor, part: Literal["", "body"] = "") -> Tensor:
    """Logits ``(n, C)`` by the weights that were sent, or the features ``(n, d)`` of the body."""
    after = {name: message.weights[name] + change for name, change in message.shared.items()}
    within = {name.removeprefix("body."): tensor for name, tensor in after.items() if name.startswith("body.")}
    net, weights = (message.net.body, within) if part else (message.net, after)
    outputs: Tensor = functional_call(net, weights, (_normalised(images),))
    return outputs
