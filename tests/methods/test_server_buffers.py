"""What servers that do more than average do with BatchNorm's running statistics: average them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.aggregation import Aggregation, Merged, Uploads, find_aggregation
from fedpriv.aggregation.fednova import STEP_WEIGHT
from fedpriv.interfaces import Context
from fedpriv.parameters import ParameterSpace
from fedpriv.wire import statistic

SPACE = ParameterSpace.of(nn.ModuleDict({"head": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))}))
PARAMETERS = [entry.name for entry in SPACE.entries if entry.kind != "buffer"]
BUFFERS = [entry.name for entry in SPACE.entries if entry.kind == "buffer"]


def make(name: str, **options: Any) -> Aggregation:
    kind = find_aggregation(name)
    facts: Any = Context(None, SPACE, 2, 2, None, None, layers=tuple(PARAMETERS))  # type: ignore[arg-type]
    return kind(kind.Params(**options), facts)


def merge(aggregation: Aggregation, rows: torch.Tensor, memory: Any = None) -> Merged:
    variates = {statistic("variate", name): torch.ones(SPACE[name].shape, dtype=rows.dtype) for name in PARAMETERS}
    steps = torch.tensor(2.0, dtype=torch.float64)
    statistics = [{STEP_WEIGHT: steps * (k + 1), **variates} for k in range(len(rows))]
    previous = torch.zeros(SPACE.size, dtype=rows.dtype)
    start = aggregation.start(previous) if memory is None else memory
    return aggregation.merge(Uploads(SPACE, rows, previous, [1, 2, 5], statistics, [0, 1, 2], 1, 4), start)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fednova", {"server_momentum": 0.9}),
        ("scaffold", {"server_lr": 0.3, "weights": "samples"}),
        ("feddyn", {"weights": "samples"}),
    ],
)
def test_buffers_are_averaged_whatever_happens_to_parameters(name: str, options: dict[str, Any]) -> None:
    aggregation = make(name, **options)
    rows = torch.randn(3, SPACE.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64) / 8 @ rows
    merged = merge(aggregation, rows)
    for _ in range(2):  # in a second round too, when there is memory
        for tensor in BUFFERS:
            torch.testing.assert_close(SPACE.view(merged.row, tensor), SPACE.view(mean, tensor))
        for tensor in PARAMETERS:
            assert not torch.allclose(SPACE.view(merged.row, tensor), SPACE.view(mean, tensor))
        merged = merge(aggregation, rows, merged.memory)


@pytest.mark.parametrize("name", ["fednova", "scaffold", "feddyn"])
def test_one_client_alone(name: str) -> None:
    rows = torch.randn(1, SPACE.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    aggregation = make(name)
    statistics = {STEP_WEIGHT: torch.tensor(7.0), **{statistic("variate", n): torch.ones(SPACE[n].shape) for n in PARAMETERS}}
    previous = torch.zeros(SPACE.size, dtype=torch.float64)
    merged = aggregation.merge(Uploads(SPACE, rows, previous, [1], [statistics], [0], 1, 1), aggregation.start(previous))
    moved = 2.0 if name == "feddyn" else 1.0  # m = K: the mean, and its displacement once more
    for tensor in PARAMETERS:
        torch.testing.assert_close(SPACE.view(merged.row, tensor), moved * SPACE.view(rows[0], tensor))


def test_metrics_do_not_depend_on_the_order_of_the_memory() -> None:
    """A checkpoint gives the tensors back in another order than they were made in."""
    aggregation, rows = make("scaffold"), torch.ones(3, SPACE.size)
    draw = torch.Generator().manual_seed(2)
    memory = {statistic("variate", name): torch.randn(SPACE[name].shape, generator=draw) for name in PARAMETERS}
    first, other = merge(aggregation, rows, memory), merge(aggregation, rows, dict(reversed(memory.items())))
    assert first.report == other.report
    assert all(torch.equal(c, other.memory[name]) for name, c in first.memory.items())
