"""Statistics under differential privacy: of numbers within declared bounds, with noise.

A number in [a, b] becomes t in [-1, 1]. A row adds (1, t, t^2) for each column of numbers (zeros where one is missing), and 1 to
the count of its class: with c columns, a vector of L2 norm at most sqrt(3 c + 1). Of images, and of arrays, it adds for each
channel the means of t and t^2 over its pixels. At client level a client sends the mean of its rows' vectors, whose norm is no
larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.encoding import CategoryColumn, Column, Encoding, NumberColumn
from fedpriv.data.statistics.cells import ArrayCells, numbers_in
from fedpriv.data.statistics.fitting import Levels, SampleKind
from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.totals import Inquiry
from fedpriv.errors import UsageError
from fedpriv.wire import Form, statistic

Bounds = Mapping[str, tuple[float, float]]
NOISY = statistic("noisy")
_PLACES = 2.0**20
"""Numbers are sent as whole multiples of its reciprocal, which secure sums add."""
_LARGEST = 2.0**40
_FLAT = 1e-4
"""The least variance of t, as noise may make that of equal numbers negative."""
PIXELS = (0.0, 255.0)


def sensitivity(inquiry: Inquiry) -> float:
    """The largest L2 norm of what a row (a client) adds."""
    return math.sqrt(3 * inquiry.summed + bool(inquiry.classes))


def noisy_forms(inquiry: Inquiry) -> dict[str, Form]:
    """The form of a client's statistics."""
    size = 3 * inquiry.summed + inquiry.classes
    return {NOISY: Form((size,), torch.int64, least=-_LARGEST, most=_LARGEST)}


def check_declared(kind: SampleKind, bounds: Bounds, levels: Levels, level: str) -> None:
    """Check that bounds and levels are declared of all columns.

    Args:
        level: of privacy, for the message.

    Raises:
        UsageError: a column lacks them.
    """
    why = f"privacy.level {level}: no client may tell"
    for column in (*kind.columns, *kind.labels):
        if column.left_out is None and column.kind == "number" and column.name not in bounds:
            hint = "" if column is kind.target else ", or leave it out (data.drop)"
            raise UsageError(
                f"{why} how large the numbers of column {column.name!r} are; --set data.bounds.{column.name}=[LEAST,GREATEST]"
                f"{hint}"
            )
        if column.left_out is None and column.kind == "category" and column.name not in levels:
            raise UsageError(
                f"{why} the levels of column {column.name!r}; --set data.levels.{column.name}=[NAME,...], "
                "or leave it out (data.drop)"
            )
    if kind.arrays is not None and kind.arrays not in bounds:
        raise UsageError(f"{why} how large the numbers of the arrays are; --set data.bounds.{kind.arrays}=[LEAST,GREATEST]")


def contribution(rows: TrainingRows, inquiry: Inquiry, bounds: Bounds, by_client: bool) -> NDArray[np.float64]:
    """What a client adds, without noise: the sum of its rows' vectors, or, by client, their mean.

    Raises:
        UsageError: bounds are not declared, or a column is not there.
    """
    cells, parts = {column.name: column for column in rows.cells}, list[NDArray[np.float64]]()
    for name in inquiry.numbers:
        if name not in bounds:
            raise UsageError(f"the bounds of column {name!r} are not declared")
        numbers = numbers_in(cells, name).train[rows.held]
        scaled = _scaled(numbers[~np.isnan(numbers)], bounds[name])
        parts.append(np.array([len(scaled), scaled.sum(), (scaled**2).sum()]))
    if inquiry.channels:
        samples, limits = _samples(rows, bounds)
        for channel in range(inquiry.channels):
            scaled = _scaled(samples[:, channel].reshape(len(samples), -1).astype(np.float64), limits)
            parts.append(np.array([len(scaled), scaled.mean(1).sum(), (scaled**2).mean(1).sum()]))
    if inquiry.classes:
        parts.append(np.bincount(rows.labels.numpy()[rows.held], minlength=inquiry.classes).astype(np.float64))
    total = np.concatenate(parts)
    return total / max(1, len(rows.held)) if by_client else total


def as_tensors(numbers: NDArray[np.float64]) -> dict[str, Tensor]:
    """Numbers ``(d,)`` as the tensors of a message, which are added over the clients."""
    return {NOISY: torch.from_numpy(np.rint(numbers * _PLACES).astype(np.int64))}


def from_tensors(tensors: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """The inverse of :func:`as_tensors`, up to rounding."""
    return np.asarray(tensors[NOISY].numpy() / _PLACES, dtype=np.float64)


def noisy_encoding(kind: SampleKind, inquiry: Inquiry, numbers: Sequence[float], bounds: Bounds, levels: Levels) -> Encoding:
    """The encoding that follows from the sum of the clients' numbers ``(d,)``, noise included.

    A column of numbers always has an entry for missing ones, so that the rows' width does not depend on the clients' data.

    Args:
        numbers: empty: the inquiry was not asked; numbers are then scaled as if they were uniform within their bounds.
    """
    known = [bounds[name] for name in inquiry.numbers]
    known += [PIXELS if kind.arrays is None else bounds[kind.arrays] for _ in range(inquiry.channels)]
    moments = [_moments(numbers[3 * place : 3 * place + 3], within) for place, within in enumerate(known)]
    by_name = dict(zip(inquiry.numbers, moments, strict=False))
    columns: list[Column] = [
        NumberColumn(column.name, *by_name[column.name], gaps=True)
        if column.kind == "number"
        else CategoryColumn(column.name, levels[column.name])
        for column in kind.columns
    ]
    channels, scale = moments[len(inquiry.numbers) :], 255 if kind.images else 1
    mean, std = (tuple(channel[place] / scale for channel in channels) for place in (0, 1))
    counts = tuple(max(0, round(count)) for count in numbers[3 * inquiry.summed :])
    label = kind.target
    target = None if label is None else NumberColumn(label.name, *by_name[label.name], unit=label.unit)
    return Encoding(tuple(columns), mean, std, counts, target)


def _samples(rows: TrainingRows, bounds: Bounds) -> tuple[NDArray[np.generic], tuple[float, float]]:
    """The client's images or arrays ``(n, C, ...)``, and the bounds of their numbers."""
    if rows.images is not None:
        return rows.images[rows.held].numpy(), PIXELS
    (arrays,) = (column for column in rows.cells if isinstance(column, ArrayCells))
    return arrays.train[rows.held], bounds[arrays.name]


def _scaled(numbers: NDArray[np.float64], bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Numbers as t, clipped to [-1, 1]."""
    least, most = bounds
    return np.clip((numbers - (least + most) / 2) / ((most - least) / 2), -1, 1)


def _moments(noisy: Sequence[float], bounds: tuple[float, float]) -> tuple[float, float]:
    """Mean and standard deviation of a column, by its count, sum and sum of squares of t; without any, of uniform numbers."""
    least, most = bounds
    middle, half = (least + most) / 2, (most - least) / 2
    mean, variance = 0.0, 1 / 3
    if len(noisy) and noisy[0] >= 1:
        mean = min(1.0, max(-1.0, noisy[1] / noisy[0]))
        variance = min(1.0, max(_FLAT, noisy[2] / noisy[0] - mean**2))
    return float(middle + half * mean), float(half * math.sqrt(variance))
