"""All rows of a batch from the span of the first linear layer's gradient, column by column.

The weight and bias gradient of a layer that is fed the rows is ``sum_i (dL/da_i) [x_i, 1]^T``. With fewer rows than the layer has
inputs and outputs, every row lies in the span of this matrix, and hardly any other vector does. DAGER (Petrov et al., NeurIPS
2024) tests words of a text against such a span; here levels of categories are tested. Restricted to the entries of some columns,
the span holds the one-hot entries of a true row, and hardly any that no row has. Columns are added one after the other, and
combinations of levels that lie outside are left out. The entries of all categories then determine the point of the span, and so
the numbers.

This needs neither ReLU nor the weights, and no label. It fails under noise, where the rank is full, and where the categories have
fewer entries than there are rows.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import SharedLinear
from fedpriv.attacks.gradients.rank import noise_level, rank

TOLERANCE = 1e-2
"""Largest distance of a true row's entries from the span."""
DETERMINED = 1e-4
"""Smallest singular value, as a share of the largest, of the categories' entries of a basis of the span, if these determine a
row."""
CANDIDATES = 20_000
"""Largest number of combinations of levels that are tested at once."""


def rows_in_span(layer: SharedLinear, encoding: RowEncoding, error: float = 0.0) -> Tensor:
    """The rows ``(k, F)`` in the span of a layer's gradient; those of a batch, and seldom others.

    Args:
        layer: fed the rows, with a bias.
        error: standard deviation of an entry of the weight gradient.

    Raises:
        Inapplicable: the rank is full, or the categories do not determine a row, or too many combinations of levels are possible.
    """
    basis = _span(layer, error)
    groups = _states(encoding)
    # A column with more entries leaves fewer combinations.
    groups.sort(key=lambda group: -len(group[0]))
    patterns = basis.new_ones(1, 1)  # of the constant input of the bias
    entries = [encoding.width]
    for places, states in groups:
        if len(patterns) * len(states) > CANDIDATES:
            raise Inapplicable(f"over {CANDIDATES:,} combinations of levels are possible")
        entries += places
        patterns = torch.stack([torch.cat([known, state]) for known, state in product(patterns, states.to(basis))])
        patterns = patterns[_distance(patterns, basis[:, entries]) <= TOLERANCE]
        if not len(patterns):
            raise Inapplicable("no combination of levels lies in the gradient's span")
    within = basis[:, entries]
    if int(torch.linalg.matrix_rank(within, rtol=DETERMINED)) < len(basis):
        raise Inapplicable("the categories have too few levels to determine a row")
    rows: Tensor = (patterns @ torch.linalg.pinv(within) @ basis)[:, :-1]
    return rows.to(layer.weight)


def determined_by(encoding: RowEncoding) -> int:
    """The largest number of rows whose span's points are determined by the entries of categories and gaps."""
    return 1 + sum(states.shape[0] - 1 for _, states in _states(encoding))


def _span(layer: SharedLinear, error: float) -> Tensor:
    """An orthonormal basis ``(r, F + 1)`` of the span of the gradient's rows, the bias gradient last."""
    assert layer.bias is not None
    if layer.kept is not None:
        raise Inapplicable(f"entries of {layer.name!r} were not sent, so that its gradient's span is not known")
    gradient = torch.cat([layer.weight, layer.bias[:, None]], 1).cpu()
    samples = rank(gradient, noise_level(error, gradient.shape))
    if samples is None:
        raise Inapplicable(
            f"the gradient of {layer.name!r} has full rank: there is noise, or as many rows as the layer has inputs"
        )
    basis: Tensor = torch.linalg.svd(gradient.double(), full_matrices=False).Vh[:samples]
    return basis


def _states(encoding: RowEncoding) -> list[tuple[list[int], Tensor]]:
    """For each category, and each number with gaps, its entries that have few states, and these states ``(states, entries)``."""
    groups = []
    for column, at in zip(encoding.columns, encoding.entries, strict=True):
        if isinstance(column, CategoryColumn):
            groups.append((list(range(at.start, at.stop)), torch.eye(column.width)))
        elif isinstance(column, NumberColumn) and column.gaps:
            groups.append(([at.stop - 1], torch.tensor([[0.0], [1.0]])))
    return groups


def _distance(patterns: Tensor, within: Tensor) -> Tensor:
    """Distances ``(k,)`` of patterns ``(k, e)`` from the span of the rows of ``within`` ``(r, e)``."""
    _, sizes, right = torch.linalg.svd(within, full_matrices=False)
    right = right[sizes > 1e-6]
    distances: Tensor = (patterns - patterns @ right.T @ right).norm(dim=1)
    return distances
