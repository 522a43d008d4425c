"""A round that is too large for a matrix is merged from its messages, to what the matrix gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fedpriv.aggregation import aggregations, rows
from fedpriv.aggregation.columns import blocks
from fedpriv.methods.base import Method, ServerState
from fedpriv.server import merging, next_state
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire.coding import Upload
from tests.aggregation.test_sums import alike
from tests.marks import quick_first, slow_but

Simulate = Callable[..., Simulation]
SHORT = {"train.rounds": 2, "data.clients": 5, "train.participation": 0.8, "data.limit": 300}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("mpfedcon", {}),
    ("l-dawa", {}),
    ("fedavg", {"aggregation.name": "m-dawa"}),
    ("fedavg", {"aggregation.name": "l-dawa-fedavg", "model.name": "resnet9_narrow", "data.limit": 100}),
    ("fedavg", {"aggregation.name": "l-dawa", "aggregation.variant": "authors_code", "aggregation.warmup": 1}),
    ("simprox", {}),
    ("simprox", {"wire.transforms": [{"name": "prune"}, {"name": "quantise", "bits": 6}]}),
    ("fedavg", {"wire.transforms": [{"name": "cast"}]}),
    ("fedavg", {"wire.transforms": [{"name": "mask", "last": 1}]}),
]


@pytest.mark.parametrize(
    ("method", "options"), slow_but(["fedavg", "simprox"], CASES), ids=[f"{name} {options or ''}" for name, options in CASES]
)
@pytest.mark.parametrize("piece", quick_first([200, 10**9]))
def test_it_merges_as_its_matrix_does(
    monkeypatch: pytest.MonkeyPatch, simulate: Simulate, method: str, options: dict[str, Any], piece: int
) -> None:
    monkeypatch.setattr(rows, "PIECE", piece)
    merged, simulation = 0, simulate(method, play=False, **{**SHORT, **options})

    def both(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        nonlocal merged
        plain = merging.merge(method, server, uploads)
        with monkeypatch.context() as patch:
            patch.setattr(merging, "MAX_MATRIX", 0)
            patch.setattr(merging, "_matrix", None)
            large = merging.merge(method, server, uploads)
        alike({"model": large.row, **large.memory}, {"model": plain.row, **plain.memory})
        assert large.report == pytest.approx(plain.report, rel=1e-5, abs=1e-7)
        merged += 1
        return plain

    monkeypatch.setattr(next_state, "merge", both)
    for _ in simulation.rounds():
        pass
    assert merged == 2


@pytest.mark.parametrize(
    ("method", "options"),
    [("feddyn", {}), ("fedavg", {"data.name": "disaster_synthetic", "data.limit": 60, "data.image_size": 16, "model.name": None,
                                 "data.image_only": 0.4, "data.text_only": 0.2, "train.rounds": 1})],
)  # fmt: skip
@pytest.mark.slow
def test_what_needs_the_matrix_has_it(
    monkeypatch: pytest.MonkeyPatch, simulate: Simulate, method: str, options: dict[str, Any]
) -> None:
    """An aggregation that does not read by columns, and a round in which clients lack parts that the others send."""
    monkeypatch.setattr(merging, "MAX_MATRIX", 0)
    monkeypatch.setattr(merging, "UploadedRows", None)
    assert len(simulate(method, **{**SHORT, **options}).folder.records()) > 1


def test_who_may_read_by_columns() -> None:
    assert {name for name, kind in aggregations().items() if kind.by_columns} == {
        "mean", "fedu", "l-dawa", "m-dawa", "l-dawa-fedavg", "l-dawa-fedu", "l-dawa-loss", "loss", "simprox", "median",
        "trimmed-mean", "norm-bounded", "multi-krum",
    }  # fmt: skip


def test_columns_are_those_of_the_matrix(monkeypatch: pytest.MonkeyPatch, simulate: Simulate) -> None:
    monkeypatch.setattr(rows, "PIECE", 40)
    simulation, seen = simulate("fedavg", play=False, **SHORT, **{"wire.transforms": [{"name": "cast"}]}), 0

    def compared(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        nonlocal seen
        space = method.context.space
        whole = merging._matrix([(upload, upload.sealed.names) for upload in uploads], set(space.names), space, server.row)
        large = rows.UploadedRows(uploads, space, server.row)
        assert len(large) == len(whole) == 4 and large.shape == whole.shape
        for start, stop in ((0, 1), (5, 60), (58, 62), (0, space.size), (space.size - 3, space.size), (7, 7)):
            assert torch.equal(large[:, start:stop], whole[:, start:stop]), (start, stop)
        first, other = (torch.cat([block.clone() for _, block in blocks(of, [slice(3, space.size)])], 1) for of in (large, whole))
        assert torch.equal(first, other)
        seen += 1
        return merging.merge(method, server, uploads)

    monkeypatch.setattr(next_state, "merge", compared)
    for _ in simulation.rounds():
        pass
    assert seen == 2
