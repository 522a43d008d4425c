"""Rounds made by hand, to be merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.aggregation import Aggregation, Merged, Uploads, find_aggregation
from fedpriv.config import load_config
from fedpriv.interfaces import Context
from fedpriv.parameters import Entry, Kind, ParameterSpace
from fedpriv.seeding import generator


def space_of(*arrays: tuple[str, tuple[int, ...], Kind]) -> ParameterSpace:
    """A layout of arrays (name, shape, kind), in this order; a name's first part is its role."""
    entries, start = [], 0
    for name, shape, kind in arrays:
        size = torch.Size(shape)
        entries.append(Entry(name, size, start, start + size.numel(), name.split(".")[0], kind))
        start += size.numel()
    return ParameterSpace(entries)


TWO_LAYERS = space_of(("encoder.fc1.weight", (2, 2), "weight"), ("projector.fc.weight", (1, 2), "weight"))


def context(space: ParameterSpace, **overrides: Any) -> Context:
    config = load_config(None, {"train.selection": "all", "train.participation": 1.0, **overrides})
    layers = tuple(entry.name for entry in space.entries if entry.kind != "buffer")
    return Context(
        config, space, 2, 2, lambda label: torch.zeros(space.size), lambda purpose: generator(0, purpose), layers=layers
    )


def aggregation(name: str, space: ParameterSpace = TWO_LAYERS, **options: Any) -> Aggregation:
    kind = find_aggregation(name)
    return kind(kind.Params(**options), context(space))


def uploads(
    previous: Tensor,
    rows: Tensor,
    space: ParameterSpace = TWO_LAYERS,
    examples: Sequence[int] = (),
    statistics: Sequence[Mapping[str, Tensor]] = (),
    round: int = 1,
) -> Uploads:
    count = len(rows)
    return Uploads(
        space=space,
        rows=rows,
        previous=previous,
        examples=examples or [1] * count,
        statistics=statistics or [{}] * count,
        clients=range(count),
        round=round,
        registered=count,
    )


def merge(name: str, round_: Uploads, **options: Any) -> Merged:
    server_part = aggregation(name, round_.space, **options)
    return server_part.merge(round_, server_part.start(round_.previous))


def doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
