"""The share of each class among a client's samples, by least squares on the gradient of the last layer.

For one sample of label y with features h and prediction p, the gradient of that layer's weight and bias is
``(p - e_y) (h, 1)^T``. A client's gradient is the mean over its samples. With ``G_c``, the mean gradient of samples of class c,
it is about ``sum_c s_c G_c``, and the shares ``s_c`` solve a least-squares problem with shares that are not negative. ``G_c`` is
computed from features of each class: those of public samples, or those that the message gives away (Ma et al. 2023).

A change of several steps is a sum of gradients at the weights on the client's path. The attacker knows both ends of the path, and
takes the mean of ``G_c`` over the line between them. Steps are short where gradients are short, so more steps lie there; each
point of the line is weighted by 1 / (length of the gradient along the line). That length follows from the shares, so both are
computed in turn, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import nnls
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import SharedLinear
from fedpriv.attacks.gradients.multistep import response

BOOLE = ((0.0, 7 / 90), (0.25, 32 / 90), (0.5, 12 / 90), (0.75, 32 / 90), (1.0, 7 / 90))
"""Points of the unit interval and their weights (Boole's rule)."""
PASSES = 4
"""How often the shares are computed, each time with the gradient lengths of the previous shares."""
SHORTEST = 0.05
"""Smallest length of a gradient on the path, as a share of the longest."""
HARD = 10.0
"""The weight of the exact equation that shares sum to 1, relative to the others."""


@dataclass(frozen=True)
class Path:
    """The path of the last layer from a client's first step to its last: ``begin + t * change``, ``t`` from 0 to ``until``.

    Attributes:
        begin, change: ``(C, d + 1)``, of the weight, and of the bias as the last column.
        until: the place of the last step's gradient; 0 for a gradient, or for a change of one step.
    """

    begin: Tensor
    change: Tensor
    until: float

    def points(self) -> list[tuple[float, float]]:
        """Points ``t`` of the path and their weights in an integral over it."""
        return [(t * self.until, weight) for t, weight in BOOLE] if self.until else [(0.0, 1.0)]


def likely_change(observation: Observation) -> dict[str, Tensor]:
    """The client's change of the weights, by name; none for a gradient.

    Under noise of known variance it is shrunk towards zero, as by the James-Stein estimator, so that noise that is longer than
    the change is not taken for the client's path.
    """
    if observation.kind == "gradient":
        return {}
    change = {}
    for name, tensor in observation.shared.items():
        noise = observation.altered.variance.get(name, 0.0) * tensor.numel()
        change[name] = tensor * max(0.0, 1 - noise / max(float(tensor.double().square().sum()), 1e-300))
    return change


def path_of(observation: Observation, layer: SharedLinear) -> Path:
    """The path of the last layer.

    Raises:
        Inapplicable: its weights at the client's start are not known.
    """
    begin = observation.weights.get(f"{layer.name}.weight")
    offset = observation.weights.get(f"{layer.name}.bias")
    if begin is None or (layer.bias is not None and offset is None):
        raise Inapplicable("counting labels by features needs the weights of the last layer")
    change = likely_change(observation)
    moved = [change.get(f"{layer.name}.{kind}") for kind in ("weight", "bias")]
    return Path(
        with_bias(begin, offset),
        with_bias(torch.zeros_like(begin) if moved[0] is None else moved[0], moved[1]),
        _until(observation),
    )


def _until(observation: Observation) -> float:
    """The place of the last step's gradient on the path if all steps are alike; 1 where their number is not known."""
    if observation.kind == "gradient":
        return 0.0
    schedule = observation.schedule
    if schedule is None:
        return 1.0
    return response(replace(schedule, steps=schedule.steps - 1), 0.0).gain / response(schedule, 0.0).gain


def with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Append the bias ``(C,)`` (default: zeros) to the weight ``(C, d)`` as a column: ``(C, d + 1)``, double, on the CPU."""
    column = torch.zeros(len(weight)) if bias is None else bias
    return torch.cat([weight.double().cpu(), column.double().cpu()[:, None]], dim=1)


def class_shares(
    path: Path, gradient: Tensor, weights: Tensor, features: Callable[[float], Tensor], labels: Tensor, sums_to_one: bool
) -> Tensor:
    """The shares of the classes ``(C,)``; 0 for classes without features.

    Args:
        gradient: the client's mean gradient ``(C, d + 1)``, the bias as the last column.
        weights: of the equations ``(C, d + 1)``; 0 for entries that are not used.
        features: the layer's inputs ``(m, d)`` as a function of the place on the path.
        labels: the classes of these inputs ``(m,)``.
        sums_to_one: ``False`` where the gradient is known only up to a factor.
    """
    classes, points = len(gradient), path.points()
    held = [(labels == c).nonzero().flatten() for c in range(classes)]
    there = torch.tensor([len(rows) > 0 for rows in held])
    inputs, errors = list[Tensor](), list[Tensor]()
    for t, _ in points:
        h = features(t)
        inputs.append(torch.cat([h, h.new_ones(len(h), 1)], dim=1))
        logits = inputs[-1] @ (path.begin + t * path.change).T
        errors.append(logits.softmax(dim=1).nan_to_num(1 / classes) - torch.eye(classes, dtype=h.dtype)[labels])
    target = gradient * weights
    integral = torch.tensor([weight for _, weight in points], dtype=torch.float64)
    place, shares = integral, torch.zeros(classes, dtype=torch.float64)
    for number in range(PASSES if len(points) > 1 else 1):
        if number:
            along = torch.stack([((error @ target) * h).sum(1) for error, h in zip(errors, inputs, strict=True)])
            lengths = sum(shares[c] * along[:, rows].mean(1) for c, rows in enumerate(held) if len(rows))
            assert isinstance(lengths, Tensor)
            place = torch.tensor([weight for _, weight in points]) / lengths.clamp(
                min=max(SHORTEST * float(lengths.max()), 1e-300)
            )
            place = (place / place.sum()).double()
        means = torch.stack([_mean(place, errors, inputs, rows) * weights for rows in held if len(rows)])
        shares[there] = _solved(means.flatten(1).T, target.flatten(), sums_to_one)
    return shares


def _mean(place: Tensor, errors: Sequence[Tensor], inputs: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The mean gradient ``(C, d + 1)`` of some samples over the path."""
    parts = [weight * (error[rows].T @ h[rows]) for weight, error, h in zip(place, errors, inputs, strict=True)]
    return torch.stack(parts).sum(0) / len(rows)


def _solved(system: Tensor, target: Tensor, sums_to_one: bool) -> Tensor:
    """Solve ``system`` ``(n, C)`` for the ``target`` ``(n,)`` by least squares with shares ``(C,)`` that are not negative.

    With ``sums_to_one``, they sum to 1 nearly exactly.
    """
    scale = float(system.norm()) / max(1, system.shape[1]) ** 0.5 or 1.0
    both = torch.cat([system, target[:, None]], dim=1) / scale
    if sums_to_one:
        both = torch.cat([both, both.new_full((1, both.shape[1]), HARD)])
    if len(both) > both.shape[1]:
        both = torch.linalg.qr(both, mode="r").R  # the same least squares with few equations
    shares, _ = nnls(both[:, :-1].numpy(), both[:, -1].numpy())
    return torch.from_numpy(shares)
