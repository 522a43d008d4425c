"""SPEAR: all inputs of a batch from the gradient of a linear layer with ReLU (Dimitrov et al., NeurIPS 2024, arXiv:2403.03945).

With ``Z = X W^T + b`` for a batch ``X (B, in)`` the weight gradient is ``dL/dW = (dL/dZ)^T X``, of rank B. Any factorisation
``dL/dW = L R`` gives ``(dL/dZ)^T = L Q`` and ``X = Q^-1 R`` for an unknown ``Q``. With ReLU a column of ``(dL/dZ)^T`` is zero at
the neurons that its sample does not activate, so the columns of ``Q`` are the directions ``q`` for which ``L q`` is sparse. The
attacker knows ``W`` and ``b``, and that ReLU follows.

SPEAR takes the kernels of random sets of B - 1 rows, of which about one in ``2^(B-1) / B`` is right. Differs from the paper: the
sets are not random. A row of the gradient over its bias gradient is a mixture of samples; the neurons least active for this
mixture are also inactive for the samples that resemble it. The kernel of their rows starts a descent to the nearest local minimum
of ``|L q|_1`` on the sphere, by iteratively reweighted least squares (SPEAR++, arXiv:2510.24200, uses dictionary learning). A
direction is kept if its zeros determine it, and if some input could activate exactly the other neurons (a linear classification).
Finally directions are exchanged as long as more signs of Z agree with the zeros of dL/dZ, SPEAR's greedy filter. ``dL/db``, the
sum of the columns, gives the scale.

A weight change of several local steps works as well, if a sample activates mostly the same neurons in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.analytic import require_invertible_layers
from fedpriv.attacks.gradients.linear import SharedLinear, is_rectified
from fedpriv.attacks.gradients.multistep import as_gradient, rounding
from fedpriv.attacks.gradients.rank import noise_level, rank

LEAST_ACTIVE = (0.5, 0.25, 0.12)
"""A start is the kernel of the rows of this share of the neurons: those least active for a mixture. Values are used in turn."""
BATCH = 64
"""Number of starts per batch."""
PATIENCE = 6
"""Number of batches of starts without improvement that ends the search."""
DESCENT = (20, 0.65, 0.2)
"""Steps of a descent, and the smoothing of the absolute value: factor per step and initial value."""
ZERO = 1e-4
"""Without noise, entries below this share of the root mean square count as zeros."""
DEVIATIONS = 4.0
"""With noise, entries below this many standard deviations of their error count as zeros."""
SPARE = 0.03
"""Zeros that a direction must have beyond those that any direction can be made to have, as a share of the neurons."""
SAME = 0.01
"""Directions whose zeros differ in at most this share of the neurons are the same."""
SURE = 0.98
"""An input is certain if it agrees with its column at this share of the neurons; the search ends when all are."""
SEPARATED = 0.95
"""Smallest share of the active, and of the inactive, neurons that an input must classify correctly."""
PROMISING = 0.7
"""Smallest such share by least squares for which the classification is run."""
MAX_TESTED = 1000
"""Number of different directions that ends the search: noise produces ever more of them by chance."""
MAX_KEPT = 200
"""Number of the best directions that are considered."""
EXCHANGED = 4
"""Number of directions, those with the lowest agreement, that are exchanged for others."""


@dataclass(frozen=True)
class SpearOptions:
    """
    Attributes:
        starts: largest number of starts of the search for sparse directions.
        most: largest number of samples behind a message.
    """

    starts: int = 6400
    most: int = ranged(32, 1, 1000)


@dataclass(frozen=True)
class RecoveredInputs:
    """The recovered inputs of a layer.

    Attributes:
        inputs: ``(r, in)``, by descending agreement.
        agreement: ``(r,)``, the share of neurons at which two things agree: the input activates the neuron, and its column of
            ``dL/dZ`` is not zero there.
        rank: the number of samples, the gradient's rank.
    """

    inputs: Tensor
    agreement: Tensor
    rank: int


def rectified_layer(observation: Observation) -> tuple[SharedLinear, float]:
    """The first linear layer, which is fed the samples and followed by ReLU, with its gradient; and the standard deviation of an
    entry's error.

    Raises:
        Inapplicable: there is no such layer, or not all of it is known.
    """
    gradient = as_gradient(observation)
    first, kind = require_invertible_layers(gradient)[0]
    name = f"{first.name}.weight"
    if not kind.is_image:
        raise Inapplicable(
            f"the input of {first.name!r} is features, not the {'image' if observation.encoding is None else 'row'}"
        )
    if name not in gradient.weights or f"{first.name}.bias" not in gradient.weights:
        raise Inapplicable(f"the weights of {first.name!r} at which the client began are not known")
    if not is_rectified(gradient, first.name):
        raise Inapplicable(f"no ReLU follows {first.name!r}, so no entry of the gradient at its output is zero")
    if first.kept is not None:
        raise Inapplicable(f"entries of {first.name!r} were not sent, so the gradient's rank does not show the samples")
    return first, (gradient.altered.variance.get(name, 0.0) + rounding(observation, name) ** 2) ** 0.5


def projected(layer: SharedLinear, most: int, error: float = 0.0) -> tuple[Tensor, Tensor, int]:
    """The weight gradient as a basis ``(out, k)`` times a matrix ``(k, in)``, and its rank, the number of samples.

    Randomised range finding: a random projection of the outputs keeps the rank at a fraction of the cost.

    Args:
        error: standard deviation of an entry of the weight gradient.

    Raises:
        Inapplicable: the gradient does not show the number of samples, or there are more than ``most``.
    """
    gradient = layer.weight.double().cpu()
    directions = torch.randn(gradient.shape[1], min(2 * most + 8, *gradient.shape), generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(gradient @ directions.double())[0]
    small = basis.T @ gradient
    samples = rank(small.to(layer.weight.dtype), noise_level(error, gradient.shape))
    if samples is None or samples > most:
        shape = " x ".join(map(str, gradient.shape))
        raise Inapplicable(
            f"the gradient of {layer.name!r} ({shape}) does not have a rank of at most {most}, which would be the number of "
            "samples: there are more of them, or noise, or local steps that are lost in rounding"
        )
    return basis, small, samples


def unmix(
    layer: SharedLinear, weight: Tensor, bias: Tensor, options: SpearOptions, error: float = 0.0, seed: int = 0
) -> RecoveredInputs:
    """The inputs of a layer from its gradient.

    Args:
        weight, bias: of the layer before the client's steps, ``(out, in)`` and ``(out,)``.
        error: standard deviation of an entry of the weight gradient.

    Raises:
        Inapplicable: see :func:`projected`.
    """
    assert layer.bias is not None
    basis, small, samples = projected(layer, options.most, error)
    generator = torch.Generator().manual_seed(seed)
    gradient, columns = layer.weight.double().cpu(), layer.bias.double().cpu()
    svd = torch.linalg.svd(small, full_matrices=False)
    left, sizes, right = basis @ svd.U[:, :samples], svd.S[:samples], svd.Vh[:samples]
    rest = svd.S[samples:].square().sum() / max(1, (len(small) - samples) * (small.shape[1] - samples))
    # Leave out neurons that no sample activates.
    active = left.norm(dim=1) > ZERO**2 * left.norm(dim=1).max()
    columns, gradient, left = columns[active], gradient[active], left[active]
    weight, bias = weight.double().cpu()[active], bias.double().cpu()[active]
    search = _Search(left, float(rest.sqrt()) / sizes, sizes * (weight @ right.T), bias, left.T @ columns)
    if samples == 1:
        only = left.new_ones(1, 1)
        return RecoveredInputs(sizes * right / search.inverse(only)[1], search.agreement(only), samples)
    mixtures = gradient / torch.where(columns.abs() < 1e-300, 1e-300, columns)[:, None]
    least_active = (mixtures @ weight.T + bias).argsort(dim=1)
    directions, agreement, unimproved = left.new_zeros(0, samples), left.new_zeros(0), 0
    for number in range(-(-options.starts // BATCH)):
        rows = torch.randint(len(left), (BATCH,), generator=generator)
        unimproved += 1
        if search.add(search.starts(least_active[rows], LEAST_ACTIVE[number % len(LEAST_ACTIVE)], generator)):
            known, scores = search.best()
            if len(known) and (not len(directions) or scores.mean() > agreement.mean()):
                directions, agreement, unimproved = known, scores, 0
        if (len(directions) and (agreement.min() >= SURE or unimproved >= PATIENCE)) or len(search.tested) > MAX_TESTED:
            break
    if not len(directions):
        return RecoveredInputs(gradient.new_zeros(0, gradient.shape[1]), agreement, samples)
    mixing, scale = search.inverse(directions)
    order = agreement.argsort(descending=True)
    return RecoveredInputs((mixing * sizes @ right / scale[:, None])[order], agreement[order], samples)


class _Search:
    """The search for sparse directions.

    Args:
        left: orthonormal basis of the gradient's columns ``(m, r)``.
        errors: standard deviation of an entry along each basis vector ``(r,)``.
        outputs: the neurons' outputs, without bias, for a basis of the inputs ``(m, r)``; ``inverse(directions)`` are the inputs'
            coordinates in that basis.
        bias: of the neurons ``(m,)``.
        sums: the sum of the columns, in the basis ``left`` ``(r,)``.
    """

    def __init__(self, left: Tensor, errors: Tensor, outputs: Tensor, bias: Tensor, sums: Tensor) -> None:
        self.left, self.errors, self.outputs, self.bias, self.sums = left, errors, outputs, bias, sums
        self.whitened = torch.linalg.qr(torch.cat([outputs, bias[:, None]], 1))[0] * len(outputs) ** 0.5
        self.tested = torch.zeros(0, len(left), dtype=torch.bool)
        self.kept: list[tuple[float, Tensor]] = []

    def limits(self, directions: Tensor, columns: Tensor) -> Tensor:
        """Thresholds ``(s,)`` below which entries of ``columns`` ``(m, s)`` count as zeros, for directions ``(s, r)``."""
        noise = DEVIATIONS * (directions * self.errors).norm(dim=1)
        return torch.maximum(noise, ZERO * columns.square().mean(0).sqrt())

    def starts(self, orders: Tensor, share: float, generator: torch.Generator) -> Tensor:
        """Directions ``(2 s, r)`` from orders of the neurons ``(s, m)``: kernels of the first rows, and after descent."""
        m, r = self.left.shape
        place = orders.argsort(dim=1)
        first = (place < max(share * m, min(2 * r, m / 2))) & (torch.rand(place.shape, generator=generator) < 0.7)
        kernel = torch.linalg.eigh(self._gram(first.double() + 1e-6))[1][:, :, 0]
        q, (steps, factor, smooth) = kernel, DESCENT
        for step in range(steps):
            values = q @ self.left.T
            near = values.abs().mean(1, keepdim=True) * smooth * factor**step
            q = torch.linalg.solve_ex(self._gram((values.square() + near.square()).rsqrt()), q)[0]
            q = q / q.norm(dim=1, keepdim=True)
        return torch.cat([kernel, q])

    def add(self, directions: Tensor) -> int:
        """Keep new directions that their zeros determine and whose active neurons some input can activate; their number."""
        m, r = self.left.shape
        for _ in range(2):  # refit each direction to all of its zeros
            columns = self.left @ directions.T
            zeros = (columns.abs() <= self.limits(directions, columns)).T
            zeros = zeros[zeros.sum(1) >= r - 1 + max(2.0, SPARE * m)]
            if not len(zeros):
                return 0
            values, vectors = torch.linalg.eigh(self._gram(zeros.double()))
            directions = vectors[:, :, 0]
        determined = values[:, 1] > 1e-10
        before = len(self.kept)
        for direction, active in zip(directions[determined], ~zeros[determined], strict=True):
            if len(self.tested) and bool(((self.tested ^ active).sum(1) <= SAME * m).any()):
                continue
            self.tested = torch.cat([self.tested, active[None]])
            if (merit := self._separated(active)) >= SEPARATED:
                self.kept.append((merit, direction))
        return len(self.kept) - before

    def best(self) -> tuple[Tensor, Tensor]:
        """``r`` independent directions and their agreement ``(r,)``; none if there are fewer.

        Begins with the best separated ones, and exchanges single directions as long as the agreement rises.
        """
        known = torch.stack([direction for _, direction in sorted(self.kept, key=lambda entry: -entry[0])[:MAX_KEPT]])
        chosen = list[int]()
        for i in range(len(known)):
            if float(torch.linalg.svdvals(known[[*chosen, i]])[-1]) > 1e-6:
                chosen.append(i)
            if len(chosen) == known.shape[1]:
                break
        else:
            return known[:0], known.new_zeros(0)
        agreement = self.agreement(known[chosen])
        while agreement.min() < SURE:
            places = agreement.argsort()[:EXCHANGED]
            others = torch.tensor([i for i in range(len(known)) if i not in chosen], dtype=torch.long)
            exchanged = torch.tensor(chosen).repeat(len(places), len(others), 1)
            for row, place in zip(exchanged, places, strict=True):
                row[:, place] = others
            exchanged = exchanged.flatten(0, 1)
            agreements = self.agreement(known[exchanged])
            if not len(agreements) or agreements.mean(1).max() <= agreement.mean():
                break
            best = int(agreements.mean(1).argmax())
            chosen, agreement = exchanged[best].tolist(), agreements[best]
        return known[chosen], agreement

    def agreement(self, directions: Tensor) -> Tensor:
        """:attr:`RecoveredInputs.agreement` ``(..., r)`` for sets of directions ``(..., r, r)``."""
        columns = directions @ self.left.T
        mixing, scale = self.inverse(directions)
        activated = mixing @ self.outputs.T / scale[..., None] + self.bias > 0
        active = columns.abs() > self.limits(directions.flatten(0, -2), columns.flatten(0, -2).T).view(*columns.shape[:-1], 1)
        return (activated == active).double().mean(-1)

    def inverse(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs' coordinates ``(..., r, r)`` for directions ``(..., r, r)``, and the scale of each ``(..., r)``."""
        mixing: Tensor = torch.linalg.inv_ex(directions.mT).inverse
        return mixing, mixing @ self.sums

    def _gram(self, weights: Tensor) -> Tensor:
        return (self.left.T * weights[:, None, :]) @ self.left

    def _separated(self, active: Tensor) -> float:
        """How well some input can activate exactly these neurons ``(m,)``: the accuracy on the worse of the two classes."""
        from sklearn.linear_model import LogisticRegression  # whose import takes a second

        if bool(active.all()) or not bool(active.any()):
            return 1.0

        def right(guess: Tensor) -> float:
            return float(torch.minimum(guess[active].double().mean(), (~guess[~active]).double().mean()))

        signs = 2.0 * active.to(self.whitened) - 1
        if right(self.whitened @ (self.whitened.T @ signs) > 0) < PROMISING:
            return 0.0
        known, model = self.whitened.numpy(), LogisticRegression(C=1e4, fit_intercept=False, max_iter=300)
        return right(torch.from_numpy(model.fit(known, active.numpy()).predict(known)))
