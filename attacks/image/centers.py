"""Class centres in a message: they list the client's classes, and can be inverted to images.

A client of MpFedcon uploads, for each class it holds, the mean projection of its samples. The list of classes *is* its label set:
that is a finding about the protocol, not an attack. The centre of a class with one sample is that sample's projection under the
weights that the client uploads with it; with more samples it is their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import from_picture, known_net
from fedpriv.attacks.gradients.variables import total_variation

CENTERS, CLASSES, COUNTS = "statistic.centers", "statistic.classes", "statistic.counts"
Embed = Callable[[Tensor], Tensor]
"""Normalised images ``(B, C, H, W)`` -> projections ``(B, k)``."""


@dataclass(frozen=True)
class LabelSet:
    """
    Attributes:
        present: ``(C,)`` bool.
        counts: ``(C,)`` samples of each class, where they were sent.
        centers: ``(m, k)`` of the present classes, in ascending order of the class.
    """

    present: Tensor
    counts: Tensor | None
    centers: Tensor


def read_label_set(observation: Observation) -> LabelSet:
    """The client's label set, which the message states.

    A dense table ``(C, k)`` without a list of classes states it as well: the rows of absent classes are zero.

    Raises:
        Inapplicable: no centres were sent.
    """
    sent, present = observation.statistics, torch.zeros(observation.classes, dtype=torch.bool)
    if CENTERS not in sent:
        raise Inapplicable("no class centres were sent")
    centers = sent[CENTERS].cpu()
    if CLASSES not in sent:
        if len(centers) != observation.classes:
            raise Inapplicable("the centres were sent without their classes")
        present = (centers != 0).any(dim=1)
        return LabelSet(present, None, centers[present])
    classes = sent[CLASSES].long().cpu()
    present[classes] = True
    order = classes.argsort()
    counts = None
    if COUNTS in sent:
        counts = torch.zeros(observation.classes, dtype=torch.long)
        counts[classes] = sent[COUNTS].long().cpu()
    return LabelSet(present, counts, centers[order])


def uploaded_body(observation: Observation) -> Embed:
    """The net's body in evaluation mode with the uploaded weights, with which the client computed its centres.

    For a gradient, the body as it was sent to the client.
    """
    net, weights = known_net(observation)
    if observation.kind == "change":
        weights = {name: w + observation.shared[name] if name in observation.shared else w for name, w in weights.items()}
    prefix = "body."
    body = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    missing = [name for name in state_names(net.get_submodule("body")) if name not in body]
    if missing:
        raise Inapplicable(f"inverting centres needs the weights of the body; {missing[0]!r} is not known")

    def embed(x: Tensor) -> Tensor:
        features: Tensor = functional_call(net.get_submodule("body"), body, (x,))
        return features

    return embed


def embedding(observation: Observation, projector: nn.Module | Embed | None) -> Embed:
    """``projector(body(x))``; the projector is the attacker's (of round 0, or an oracle's), ``None`` where features are sent."""
    body = uploaded_body(observation)
    return body if projector is None else lambda x: projector(body(x))


@dataclass(frozen=True)
class CenterOptions:
    """
    Attributes:
        distance: ``cosine``; ``relative``: also the length of the centre, ``|z - m|^2 / |m|^2``.
        tv: weight of the total variation.
        restarts: further starts per centre, all in one batch; the one with the smallest objective is returned.
    """

    distance: Literal["cosine", "relative"] = "cosine"
    steps: int = 500
    lr: float = 0.05
    tv: float = 0.01
    restarts: int = 1


@dataclass(frozen=True)
class Inverted:
    """
    Attributes:
        images: ``(m, C, H, W)`` in [0, 1], one for each centre.
        distance: ``(m,)`` of its projection to the centre, without the total variation.
    """

    images: Tensor
    distance: Tensor


def invert_centers(
    observation: Observation, embed: Embed, centers: Tensor, options: CenterOptions | None = None, seed: int = 0
) -> Inverted:
    """For each centre ``(m, k)`` an image with that embedding, by Adam with a cosine schedule.

    All centres and restarts are one batch, so ``embed`` must treat samples independently (evaluation mode). Starts are grey with
    a little noise; a sigmoid keeps pixels in [0, 1].
    """
    options = options or CenterOptions()
    variation = torch.vmap(total_variation)
    m = len(centers)
    wanted = centers.repeat(1 + options.restarts, 1)
    drawn = torch.Generator().manual_seed(seed)
    raw = 0.5 * torch.randn(len(wanted), *observation.input_shape, generator=drawn, dtype=centers.dtype)
    raw = raw.to(centers.device).requires_grad_()
    optimiser = torch.optim.Adam([raw], lr=options.lr)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
    for _ in range(options.steps):
        images = raw.sigmoid()
        away = _distance(embed(from_picture(observation, images)), wanted, options.distance)
        # A sum, so that a row's gradient does not depend on the number of rows.
        (raw.grad,) = torch.autograd.grad((away + options.tv * variation(images)).sum(), raw)
        optimiser.step()
        rate.step()
    with torch.no_grad():
        images = raw.sigmoid()
        away = _distance(embed(from_picture(observation, images)), wanted, options.distance)
        objective = (away + options.tv * variation(images)).nan_to_num(torch.inf).reshape(-1, m)
        best = objective.argmin(dim=0) * m + torch.arange(m, device=centers.device)
        return Inverted(images[best], away[best])


def _distance(z: Tensor, wanted: Tensor, kind: str) -> Tensor:
    if kind == "cosine":
        away: Tensor = 1 - F.cosine_similarity(z, wanted, dim=1)
        return away
    missed: Tensor = (z - wanted).square().sum(dim=1) / wanted.square().sum(dim=1).clamp(min=1e-30)
    return missed
