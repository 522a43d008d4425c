"""The inputs of a whole batch from the gradient of a linear layer that is followed by ReLU, without any guess of an image.

With ``Z = X W^T + b`` for a batch ``X (B, in)`` the weight gradient is ``dL/dW = (dL/dZ)^T X``, of rank B (SPEAR, Dimitrov et
al., NeurIPS 2024, arXiv:2403.03945): a factorisation ``dL/dW = L R`` gives ``(dL/dZ)^T = L Q`` and ``X = Q^-1 R`` for an unknown
``Q``. Behind ReLU a column of ``(dL/dZ)^T`` is zero where the sample leaves a neuron inactive, so the columns of ``Q`` are the
directions ``q`` for which ``L q`` is sparse.

SPEAR finds them in the kernels of random sets of B - 1 rows; about one set in ``2^(B-1) / B`` is right. Here the sets are not
random: a row of the gradient over its bias gradient is a mixture of samples, and the attacker, who knows W, takes the neurons
that are least active for this mixture, where samples that resemble it are inactive together. The kernel of these rows starts a
descent to the nearest local minimum of ``|L q|_1`` on the sphere by reweighted least squares; SPEAR++ (arXiv:2510.24200) replaces
the random sets by dictionary learning, too. A direction counts if its zeros determine it, and if some input could activate just
the other neurons, which is a linear classification. Last, directions are exchanged as long as more signs of Z agree with the
zeros of dL/dZ, SPEAR's greedy filter. ``dL/db``, the sum of the columns, gives the scale.

A weight change of several local steps has the same rows as long as a sample activates mostly the same neurons in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import SharedLinear
from fedpriv.attacks.gradients.rank import noise_level, rank

FARTHEST = (0.5, 0.25, 0.12)
"""Shares of the neurons, those least active for a mixture, that starts are made of in turn."""
BATCH = 64
"""Starts at once."""
PATIENCE = 6
"""Batches of starts without a better result that end the search."""
DESCENT = (20, 0.65, 0.2)
"""Steps of a descent, and the smoothing of the absolute value: its factor per step, and where it begins."""
ZERO = 1e-4
"""Entries below this share of the root mean square count as zeros where there is no noise."""
DEVIATIONS = 4.0
"""Entries below so many standard deviations of their error count as zeros where there is."""
SPARE = 0.03
"""Zeros beyond those that any direction could have, as a share of the neurons."""
ALIKE = 0.01
"""Directions whose zeros differ in at most this share of the neurons are the same."""
SURE = 0.98
"""An input is certain, and the search at its end, if it agrees with its column at this share of the neurons."""
SEPARATED = 0.95
"""Least share of the active and of the inactive neurons that an input must explain."""
PROMISING = 0.7
"""The same share at least by least squares, without which no classification is tried."""
MOST_MET = 1000
"""So many different directions end the search: under noise, chance makes ever more of them."""
MOST_KEPT = 200
"""The best so many directions are considered."""
DOUBTED = 4
"""Directions at once that others are tried for: those that agree least."""


@dataclass(frozen=True)
class SpearOptions:
    """
    Attributes:
        starts: of the search for sparse directions at most.
        most: largest number of samples behind a message.
    """

    starts: int = 6400
    most: int = ranged(32, 1, 1000)


@dataclass(frozen=True)
class RecoveredInputs:
    """The inputs of a layer that were found.

    Attributes:
        inputs: ``(r, in)``, those whose signs agree best first.
        agreement: ``(r,)`` share of the neurons that an input activates if its column of ``dL/dZ`` is not zero there, else not.
        rank: number of samples that the gradient shows.
    """

    inputs: Tensor
    agreement: Tensor
    rank: int


def projected(layer: SharedLinear, most: int, error: float = 0.0) -> tuple[Tensor, Tensor, int]:
    """The weight gradient as a basis ``(out, k)`` times a matrix ``(k, in)``, and its rank, the number of samples.

    A random projection of the outputs keeps the rank, and the singular values up to it, at a fraction of the cost.

    Args:
        error: standard deviation of an entry of the weight gradient.

    Raises:
        Inapplicable: the gradient does not show the number of samples, or there are more than ``most``.
    """
    gradient = layer.weight.double().cpu()
    draw = torch.randn(gradient.shape[1], min(2 * most + 8, *gradient.shape), generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(gradient @ draw.double())[0]
    small = basis.T @ gradient
    found = rank(small.to(layer.weight.dtype), noise_level(error, gradient.shape))
    if found is None or found > most:
        shape = " x ".join(map(str, gradient.shape))
        raise Inapplicable(
            f"the gradient of {layer.name!r} ({shape}) does not have a rank of at most {most}, which would be the number of "
            "samples: there are more of them, or noise, or local steps that are lost in rounding"
        )
    return basis, small, found


def unmix(
    layer: SharedLinear, weight: Tensor, bias: Tensor, options: SpearOptions, error: float = 0.0, seed: int = 0
) -> RecoveredInputs:
    """The inputs of the layer.

    Args:
        weight, bias: of the layer at which the client began, ``(out, in)`` and ``(out,)``.
        error: standard deviation of an entry of the weight gradient.

    Raises:
        Inapplicable: see :func:`projected`.
    """
    assert layer.bias is not None
    basis, small, found = projected(layer, options.most, error)
    draw = torch.Generator().manual_seed(seed)
    gradient, columns = layer.weight.double().cpu(), layer.bias.double().cpu()
    whole = torch.linalg.svd(small, full_matrices=False)
    left, sizes, right = basis @ whole.U[:, :found], whole.S[:found], whole.Vh[:found]
    rest = whole.S[found:].square().sum() / max(1, (len(small) - found) * (small.shape[1] - found))
    # Neurons that no sample activates show nothing.
    live = left.norm(dim=1) > ZERO**2 * left.norm(dim=1).max()
    columns, gradient, left = columns[live], gradient[live], left[live]
    weight, bias = weight.double().cpu()[live], bias.double().cpu()[live]
    search = _Search(left, float(rest.sqrt()) / sizes, sizes * (weight @ right.T), bias, left.T @ columns)
    if found == 1:  # of one sample, the gradient is its only column
        only = left.new_ones(1, 1)
        return RecoveredInputs(sizes * right / search.inverse(only)[1], search.agreement(only), found)
    mixtures = gradient / torch.where(columns.abs() < 1e-300, 1e-300, columns)[:, None]
    least_active = (mixtures @ weight.T + bias).argsort(dim=1)
    directions, agreement, since = left.new_zeros(0, found), left.new_zeros(0), 0
    for number in range(-(-options.starts // BATCH)):
        rows = torch.randint(len(left), (BATCH,), generator=draw)
        since += 1
        if search.add(search.starts(least_active[rows], FARTHEST[number % len(FARTHEST)], draw)):
            known, better = search.best()
            if len(known) and (not len(directions) or better.mean() > agreement.mean()):
                directions, agreement, since = known, better, 0
        if (len(directions) and (agreement.min() >= SURE or since >= PATIENCE)) or len(search.met) > MOST_MET:
            break
    if not len(directions):
        return RecoveredInputs(gradient.new_zeros(0, gradient.shape[1]), agreement, found)
    mixing, scale = search.inverse(directions)
    order = agreement.argsort(descending=True)
    return RecoveredInputs((mixing * sizes @ right / scale[:, None])[order], agreement[order], found)


class _Search:
    """The sparse directions of ``left`` ``(m, r)``, an orthonormal basis of the gradient's columns.

    Args:
        errors: standard deviation of an entry along each of the directions ``(r,)``.
        fed: what the neurons make of the basis of the inputs ``(m, r)``; the inputs are ``inverse(directions)`` of that basis.
        bias: of the neurons ``(m,)``.
        sums: the sum of the columns, in the basis ``left`` ``(r,)``.
    """

    def __init__(self, left: Tensor, errors: Tensor, fed: Tensor, bias: Tensor, sums: Tensor) -> None:
        self.left, self.errors, self.fed, self.bias, self.sums = left, errors, fed, bias, sums
        self.whitened = torch.linalg.qr(torch.cat([fed, bias[:, None]], 1))[0] * len(fed) ** 0.5
        self.met = torch.zeros(0, len(left), dtype=torch.bool)
        self.kept: list[tuple[float, Tensor]] = []

    def limits(self, directions: Tensor, at: Tensor) -> Tensor:
        """The largest entries of ``at`` ``(m, s)`` that count as zeros ``(s,)``, for directions ``(s, r)``."""
        noise = DEVIATIONS * (directions * self.errors).norm(dim=1)
        return torch.maximum(noise, ZERO * at.square().mean(0).sqrt())

    def starts(self, orders: Tensor, share: float, draw: torch.Generator) -> Tensor:
        """Directions ``(2 s, r)`` from orders of the neurons ``(s, m)``: nearly a kernel of the first ones, and after descent."""
        m, r = self.left.shape
        place = orders.argsort(dim=1)
        first = (place < max(share * m, min(2 * r, m / 2))) & (torch.rand(place.shape, generator=draw) < 0.7)
        begun = torch.linalg.eigh(self._gram(first.double() + 1e-6))[1][:, :, 0]
        q, (steps, factor, smooth) = begun, DESCENT
        for step in range(steps):
            values = q @ self.left.T
            near = values.abs().mean(1, keepdim=True) * smooth * factor**step
            q = torch.linalg.solve_ex(self._gram((values.square() + near.square()).rsqrt()), q)[0]
            q = q / q.norm(dim=1, keepdim=True)
        return torch.cat([begun, q])

    def add(self, directions: Tensor) -> int:
        """Keep those that their zeros determine, and whose active neurons some input activates; how many are new."""
        m, r = self.left.shape
        for _ in range(2):  # all zeros together determine a direction better than the start did
            at = self.left @ directions.T
            zeros = (at.abs() <= self.limits(directions, at)).T
            zeros = zeros[zeros.sum(1) >= r - 1 + max(2.0, SPARE * m)]
            if not len(zeros):
                return 0
            values, vectors = torch.linalg.eigh(self._gram(zeros.double()))
            directions = vectors[:, :, 0]
        determined = values[:, 1] > 1e-10
        before = len(self.kept)
        for direction, active in zip(directions[determined], ~zeros[determined], strict=True):
            if len(self.met) and bool(((self.met ^ active).sum(1) <= ALIKE * m).any()):
                continue
            self.met = torch.cat([self.met, active[None]])
            if (merit := self._separated(active)) >= SEPARATED:
                self.kept.append((merit, direction))
        return len(self.kept) - before

    def best(self) -> tuple[Tensor, Tensor]:
        """``r`` independent directions and their agreement ``(r,)``: those that an input explains best, then exchanged one by one
        as long as the agreement rises; none where there are not as many."""
        known = torch.stack([direction for _, direction in sorted(self.kept, key=lambda one: -one[0])[:MOST_KEPT]])
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
            places = agreement.argsort()[:DOUBTED]
            others = torch.tensor([i for i in range(len(known)) if i not in chosen], dtype=torch.long)
            exchanged = torch.tensor(chosen).repeat(len(places), len(others), 1)
            for row, place in zip(exchanged, places, strict=True):
                row[:, place] = others
            exchanged = exchanged.flatten(0, 1)
            found = self.agreement(known[exchanged])
            if not len(found) or found.mean(1).max() <= agreement.mean():
                break
            best = int(found.mean(1).argmax())
            chosen, agreement = exchanged[best].tolist(), found[best]
        return known[chosen], agreement

    def agreement(self, directions: Tensor) -> Tensor:
        """See :attr:`RecoveredInputs.agreement`, for sets of directions ``(..., r, r)``: ``(..., r)``."""
        at = directions @ self.left.T
        mixing, scale = self.inverse(directions)
        activated = mixing @ self.fed.T / scale[..., None] + self.bias > 0
        active = at.abs() > self.limits(directions.flatten(0, -2), at.flatten(0, -2).T).view(*at.shape[:-1], 1)
        return (activated == active).double().mean(-1)

    def inverse(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs ``(..., r, r)`` in their basis for directions ``(..., r, r)``, and the scale of each ``(..., r)``."""
        mixing: Tensor = torch.linalg.inv_ex(directions.mT).inverse
        return mixing, mixing @ self.sums

    def _gram(self, weights: Tensor) -> Tensor:
        return (self.left.T * weights[:, None, :]) @ self.left

    def _separated(self, active: Tensor) -> float:
        """How well an input can activate these neurons ``(m,)`` and no others: the lesser share that is right of either."""
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
