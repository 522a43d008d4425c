"""Baselines without a message: an attack that scores no better has found nothing. All ``(n, C, H, W)``."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 256


def grey(true: Tensor) -> Tensor:
    """A flat image of 0.5."""
    return torch.full_like(true, 0.5)


def flat(true: Tensor) -> Tensor:
    """Each image's mean colour, which no attacker knows: the best constant image."""
    return true.mean((2, 3), keepdim=True).expand_as(true).clone()


def mean_image(true: Tensor, reference: Tensor) -> Tensor:
    """The mean of reference images ``(r, C, H, W)``, which an attacker may have."""
    return reference.mean(0).expand_as(true).clone()


def class_mean(true: Tensor, labels: Tensor, reference: Tensor, reference_labels: Tensor) -> Tensor:
    """The mean of the reference images of each image's class; of all of them where the class has none."""
    means = mean_image(true, reference)
    for label in torch.unique(labels):
        members = reference[reference_labels == label]
        if len(members):
            means[labels == label] = members.mean(0)
    return means


def nearest(true: Tensor, reference: Tensor) -> Tensor:
    """The nearest reference image of each image: an upper bound for copying, as the choice uses the true image."""
    flat = reference.flatten(1)
    index = torch.cat([torch.cdist(part.flatten(1), flat).argmin(1) for part in torch.split(true, CHUNK)])
    return reference[index]


def baselines(
    true: Tensor, labels: Tensor | None = None, reference: Tensor | None = None, reference_labels: Tensor | None = None
) -> dict[str, Tensor]:
    """All baselines that the arguments allow, by name."""
    images = {"grey image": grey(true), "own mean colour": flat(true)}
    if reference is not None and len(reference):
        images |= {"mean image": mean_image(true, reference), "nearest public": nearest(true, reference)}
        if labels is not None and reference_labels is not None:
            images["class mean"] = class_mean(true, labels, reference, reference_labels)
    return images
