"""The positive control of the membership attacks: clients that memorised a few samples, whose members must be found.

Eight clients train the reference net with a linear first layer (:func:`fedpriv.attacks.lab.nets.perceptron`) on eight small
images each, by 50 full-batch steps of plain SGD. Labels are drawn at random, so a net can only memorise them. The attacks score
these images and as many others, with as many shadows as in the audit, or with the other seven clients. Each client also sends
the class centres of its images, two of a class on average, in the features of its net. The gradient regression is controlled on
the first step of such clients, as it is exact there. The negative control, an upload trained on
no candidate, is up to the caller, since it needs the attacked messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.class_centers import trace
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import Array, Mask, Use, confidence, fedmia, halves, in_every_use
from fedpriv.attacks.inference.row_distance import RowDistance
from fedpriv.attacks.lab.controls import Control
from fedpriv.attacks.lab.nets import perceptron
from fedpriv.attacks.scoring.operating_points import area

Kind = Literal["confidence", "row distance", "class centre", "gradient", "running statistics"]
"""The statistic: :func:`fedpriv.attacks.inference.membership.confidence`, :mod:`fedpriv.attacks.inference.row_distance`,
:func:`fedpriv.attacks.inference.class_centers.trace`, :mod:`fedpriv.attacks.inference.gradient_regression`, or
:mod:`fedpriv.attacks.inference.running_statistics`, whose control is
:func:`fedpriv.attacks.inference.running_statistics_control.positive_control`."""
SURE = 0.999
"""Confidence of the interval that must lie above an AUC of 0.5."""

_CLIENTS, _CANDIDATES, _CLASSES, _SIDE = 8, 16, 4, 8
_SCHEDULE = Schedule(lr=1.0, steps=50, batch_size=_CANDIDATES // 2)


@mounting()
def positive_controls(shadows: int, seed: int = 0) -> dict[tuple[Kind, Use], Control]:
    """The control of every attack, with the number of shadows that the attack will use; less than a CPU second at 32.

    Raises:
        ValueError: too few shadows for LiRA.
    """
    began = time.process_time()
    clients = [_client(shadows, seed, number) for number in range(_CLIENTS)]
    members = np.concatenate([one.members for one in clients])
    every = [one.scores | _against_others(one, clients) for one in clients]
    each = (time.process_time() - began) / len(every[0])
    found: dict[tuple[Kind, Use], Control] = {}
    for kind, use in every[0]:
        by = f", by {shadows} shadow models" if use.startswith("LiRA") else ""
        who = f"members of {_CLIENTS} undefended clients that memorised {_CANDIDATES // 2} images{by}"
        found[kind, use] = _control(who, np.concatenate([scores[kind, use] for scores in every]), members, each)
    began = time.process_time()
    regressed = np.concatenate([_regressed(seed, number) for number in range(_CLIENTS)])
    who = f"members of {_CLIENTS} undefended clients that took one step on {_CANDIDATES // 2} images"
    found["gradient", "alone"] = _control(who, regressed, members, time.process_time() - began)
    return found


def _control(who: str, scores: Array, members: Mask, cpu_seconds: float) -> Control:
    points = area(scores, members, SURE)
    needed = f"AUC {points.value:.2f}, {SURE:.1%} interval {points.low:.2f} to {points.high:.2f}; it must lie above 0.5"
    return Control("positive", points.is_above_chance, f"{who} ({needed})", cpu_seconds)


@dataclass(frozen=True)
class _Client:
    """
    Attributes:
        scores: of the attacks on the client's message alone.
        seen: a message -> the statistics of this client's candidates.
    """

    scores: dict[tuple[Kind, Use], Array]
    members: Mask
    message: Observation
    seen: Callable[[Observation], dict[Kind, Array]]


def _against_others(client: _Client, clients: Sequence[_Client]) -> dict[tuple[Kind, Use], Array]:
    """The scores with the other clients as the null; they hold the same classes, and started from the same net."""
    null = [client.seen(other.message) for other in clients if other is not client]
    mine = client.seen(client.message)
    return {(kind, "FedMIA"): fedmia([mine[kind]], [np.stack([one[kind] for one in null])]) for kind in mine}


def _drawn(seed: int, number: int) -> tuple[Tensor, Tensor, Mask, torch.Generator]:
    """The candidates of a client, their labels, which of them it trains on, and the generator for what else is drawn."""
    draw = torch.Generator().manual_seed(1000 * seed + number)
    images = torch.rand(_CANDIDATES, 1, _SIDE, _SIDE, generator=draw)
    labels = torch.randint(_CLASSES, (_CANDIDATES,), generator=draw)
    members = np.zeros(_CANDIDATES, dtype=np.bool_)
    members[torch.randperm(_CANDIDATES, generator=draw)[: _CANDIDATES // 2].numpy()] = True
    return images, labels, members, draw


def _regressed(seed: int, number: int) -> Array:
    """The scores of a client's candidates by the regression of its first step; the attacker has two images of each class."""
    images, labels, members, draw = _drawn(seed, number)
    _, (message,) = _trained(images, labels, members[None], seed, replace(_SCHEDULE, steps=1))
    known = torch.arange(_CLASSES).repeat(2)
    public = LabelledSamples({"": _normalised(torch.rand(len(known), 1, _SIDE, _SIDE, generator=draw))}, known, itemgetter(""))
    (scores,) = gradient_regression(
        [message], LabelledSamples({"": _normalised(images)}, labels, itemgetter("")), public, [message.weights]
    )
    return scores


def _client(shadows: int, seed: int, number: int) -> _Client:
    images, labels, members, draw = _drawn(seed, number)
    inside = halves(shadows, _CANDIDATES, 1000 * seed + number)
    known = torch.cat([images, torch.rand(images.shape, generator=draw)])
    classes = torch.cat([labels, torch.randint(_CLASSES, labels.shape, generator=draw)])
    before, messages = _trained(images, labels, np.concatenate([members[None], inside]), seed, _SCHEDULE)
    rows = RowDistance.of(before, [_normalised(images)])

    def seen(message: Observation) -> dict[Kind, Array]:
        centers = dict(zip(message.statistics["classes"].tolist(), message.statistics["centers"], strict=True))
        return {
            "confidence": confidence(_outputs(message, images), labels),
            "row distance": rows(message),
            "class centre": trace(_outputs(message, known, "body"), classes, _CANDIDATES, centers),
        }

    every = [seen(one) for one in messages]
    scores = {
        (kind, use): values
        for kind in every[0]
        for use, values in in_every_use(every[0][kind], np.stack([one[kind] for one in every[1:]]), inside).items()
    }
    return _Client(scores, members, messages[0], seen)


def _trained(images: Tensor, labels: Tensor, who: Mask, seed: int, schedule: Schedule) -> tuple[Observation, list[Observation]]:
    """A message without any change, and for every row of ``who`` ``(s, n)`` the message of training on the images it selects."""
    net = perceptron(seed, _CLASSES, 1, _SIDE, _SIDE)
    start = {name: parameter.detach() for name, parameter in net.named_parameters()}
    chosen = torch.from_numpy(who).nonzero()[:, 1].reshape(len(who), -1)
    inputs, targets = _normalised(images)[chosen], labels[chosen]

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, weights, (x,)), y)

    weights = {name: tensor.repeat(len(who), *[1] * tensor.ndim).requires_grad_() for name, tensor in start.items()}
    for _ in range(schedule.steps):
        # The gradient of a sum, as each net is in one term only; `torch.func.grad` would import modules for seconds.
        gradients = torch.autograd.grad(vmap(loss)(weights, inputs, targets).sum(), list(weights.values()))
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
    held = [(images[one], labels[one]) for one in torch.from_numpy(who)]
    return before, [replace(one, statistics=_centers(one, *data)) for one, data in zip(sent, held, strict=True)]


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
    found: Tensor = functional_call(net, weights, (_normalised(images),))
    return found
