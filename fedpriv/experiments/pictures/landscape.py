"""The sharpness of a run's final minimum: the loss around it, and the largest curvature at it.

Directions are filter-normalised (Li et al. 2018): Gaussian directions whose filters have the norms of the model's, so that radii
are comparable between nets of different scales. A surface shows a single pair of directions; the rises are means over many pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.core.functional import functional_call
from fedpriv.client.resident import Resident
from fedpriv.parameters import ParameterSpace
from fedpriv.samples import Inputs, split

CHUNK = 500
"""Samples per pass."""

Loss = Callable[[Tensor], float]
"""A model ``(p,)`` -> its loss in nats."""


class SampleLoss:
    """Mean cross-entropy of models on fixed samples, in evaluation mode.

    Args:
        inputs: n samples.
        labels: ``(n,)``.
    """

    def __init__(self, resident: Resident, inputs: Inputs, labels: Tensor) -> None:
        self.resident, self.inputs, self.labels = resident, resident.shaped(inputs), labels

    @torch.no_grad()
    def __call__(self, row: Tensor) -> float:
        self.resident.row.copy_(row)
        total = 0.0
        for inputs, labels in self._chunks():
            logits = self.resident.from_features(self.resident.features(inputs)).logits
            total += float(F.cross_entropy(logits, labels, reduction="sum"))
        return total / len(self.labels)

    def curvature(self, row: Tensor, along: Tensor) -> Tensor:
        """Hessian of the loss at ``row`` times ``along``, both ``(p,)``; entries of buffers are 0."""
        self.resident.set_trained(frozenset())
        space, point = self.resident.space, row.clone().requires_grad_(True)
        product = torch.zeros_like(row)
        for inputs, labels in self._chunks():
            logits = functional_call(self.resident.net, space.unpack(point), (inputs,)).logits
            value = F.cross_entropy(logits, labels, reduction="sum") / len(self.labels)
            (gradient,) = torch.autograd.grad(value, point, create_graph=True)
            product += torch.autograd.grad(gradient @ along, point)[0]
        for entry in space.entries:
            if entry.kind == "buffer":
                product[entry.start : entry.stop] = 0
        return product

    def _chunks(self) -> list[tuple[Inputs, Tensor]]:
        return list(zip(split(self.inputs, CHUNK), torch.split(self.labels, CHUNK), strict=True))


def filter_direction(space: ParameterSpace, row: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction ``(p,)`` whose filters (first index of a weight) have the model's norms; 0 for all other entries."""
    direction = torch.randn(row.shape, generator=generator).to(row)
    for entry in space.entries:
        part = space.view(direction, entry.name)
        if entry.kind != "weight":
            part.zero_()
            continue
        drawn, own = part.flatten(1), space.view(row, entry.name).flatten(1)
        drawn.mul_(own.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True).clamp(min=1e-12))
    return direction


def surface(loss: Loss, row: Tensor, directions: tuple[Tensor, Tensor], steps: Sequence[float]) -> list[list[float]]:
    """``loss(row + a d1 + b d2)`` for all a, b of ``steps``; the result has a row for each b."""
    across, up = directions
    return [[loss(row + a * across + b * up) for a in steps] for b in steps]


@dataclass(frozen=True)
class Rise:
    """The increase of the loss at a radius, in nats: mean and maximum over the points of all pairs, and each pair's mean."""

    radius: float
    mean: float
    maximum: float
    per_pair: tuple[float, ...]


def rises(loss: Loss, row: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], radii: Sequence[float], angles: int = 8) -> list[Rise]:
    """The loss at ``angles`` points of circles in the plane of each pair of directions, minus the loss at the centre."""
    middle = loss(row)
    risen = []
    for radius in radii:
        table = [
            [
                loss(row + radius * (math.cos(angle) * across + math.sin(angle) * up)) - middle
                for angle in (2 * math.pi * i / angles for i in range(angles))
            ]
            for across, up in pairs
        ]
        per_pair = tuple(sum(values) / angles for values in table)
        risen.append(Rise(radius, sum(per_pair) / len(per_pair), max(max(values) for values in table), per_pair))
    return risen


def top_eigenvalue(
    times: Callable[[Tensor], Tensor], start: Tensor, iterations: int = 60, tolerance: float = 1e-3
) -> tuple[float, int]:
    """The largest eigenvalue of a symmetric matrix by power iteration, and the number of matrix-vector products.

    Where the eigenvalue of largest magnitude is negative, the iteration continues with the matrix shifted by it.

    Args:
        times: vector -> matrix times vector.
        start: any vector that is not orthogonal to the eigenvector.
        tolerance: relative change of the value at which the iteration stops.
    """
    dominant, taken = _dominant(times, start, iterations, tolerance)
    if dominant >= 0:
        return dominant, taken
    shifted, more = _dominant(lambda vector: times(vector) - dominant * vector, start, iterations, tolerance)
    return shifted + dominant, taken + more


def _dominant(times: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float) -> tuple[float, int]:
    vector, value = start / start.norm(), math.inf
    for taken in range(1, iterations + 1):
        product = times(vector)
        before, value = value, float(vector.double() @ product.double())
        if abs(value - before) <= tolerance * abs(value) or not product.any():
            return value, taken
        vector = product / product.norm()
    return value, iterations
