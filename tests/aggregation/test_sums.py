"""Merging a sum over the clients gives what merging their uploads gives; where it cannot, it is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, aggregations
from fedpriv.aggregation.mean import Mean
from fedpriv.errors import UsageError
from fedpriv.methods import methods
from fedpriv.methods.base import Method, ServerState
from fedpriv.secure.protocol_checks import check_linear
from fedpriv.server import next_state
from fedpriv.server.merging import merge, merge_sum
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire.coding import Upload

Simulate = Callable[..., Simulation]
SHORT = {"train.rounds": 2, "data.clients": 5, "train.participation": 0.8, "data.limit": 300}
SINGLE = {"simprox", "simagg", "l-dawa", "fedatt", "feddual", "fedsiam-da"}
"""Methods that look at single uploads."""
SILENT = {"local", "pooled"}

CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in sorted(methods().keys() - SINGLE - SILENT)] + [
    ("fedavg", {"aggregation.name": "mean", "aggregation.weights": "uniform"}),
    ("fedavg", {"wire.transforms": [{"name": "mask", "last": 1}]}),
    ("fednova", {"method.server_momentum": 0.9, "train.momentum": 0.9}),
    ("fednova", {"model.name": "resnet9_narrow", "data.limit": 100}),
    ("mpfedcon", {"method.center_weighting": "counts", "method.center_ema": 0.5}),
    ("scaffold", {"method.weights": "samples", "method.server_lr": 0.5}),
]


@pytest.mark.parametrize(("method", "options"), CASES, ids=[f"{name} {options or ''}" for name, options in CASES])
def test_a_sum_merges_as_the_uploads_do(
    monkeypatch: pytest.MonkeyPatch, simulate: Simulate, method: str, options: dict[str, Any]
) -> None:
    merged, simulation = 0, simulate(method, play=False, **{**SHORT, **options})

    def both(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
        nonlocal merged
        merged += 1
        plain = merge(method, server, uploads)
        sent = method.download(server, simulation.progress.round + 1)
        assert sent is not None and len(uploads) > 2
        total, weights = dict[str, Tensor](), 0.0
        for upload in uploads:
            weight = method.aggregation.weight_in_sum(upload.sealed.num_examples or 0)
            for name, tensor in method.addend(upload.tensors(), sent.tensors, weight).items():
                assert tensor.dtype == torch.float64
                total[name] = total.get(name, torch.zeros(())) + tensor
            weights += weight
        mean = method.mean_upload(total, sent.tensors, weights, len(uploads))
        summed = merge_sum(method, server, mean, len(uploads), uploads[0].sealed.round)
        alike({"model": summed.row, **summed.memory}, {"model": plain.row, **plain.memory})
        left_out = method.aggregation.single_upload_metrics
        assert summed.report == pytest.approx({k: v for k, v in plain.report.items() if k not in left_out}, rel=1e-5)
        return plain

    monkeypatch.setattr(next_state, "merge", both)
    for _ in simulation.rounds():
        pass
    assert merged == 2


def alike(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    model = expected["model"].double().norm()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        # A memory may be a difference of models, which are rounded to float32.
        within = 1e-6 * model if name == "model" else 1e-6 * tensor.double().norm() + 1e-7 * model
        assert (actual[name].double() - tensor.double()).norm() <= within, name


@pytest.mark.parametrize("method", sorted(SINGLE))
def test_what_looks_at_single_uploads_is_refused(simulate: Simulate, method: str) -> None:
    simulation = simulate(method, play=False, **SHORT)
    with pytest.raises(UsageError, match=r"is not declared `linear`.* use .*feddyn, fednova, fedopt, mean, scaffold"):
        check_linear(simulation.federation.method)


def test_without_uploads_there_is_no_sum(simulate: Simulate) -> None:
    with pytest.raises(UsageError, match="method local sends nothing"):
        check_linear(simulate("local", play=False, **SHORT).federation.method)


@pytest.mark.parametrize(
    ("method", "options", "word"),
    [
        ("feddyn", {"method.weights": "samples"}, "weights=uniform"),
        ("mpfedcon", {"method.center_normalize": True}, "center_normalize=false"),
    ],
)
def test_options_that_need_single_uploads(simulate: Simulate, method: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        simulate(method, play=False, **SHORT, **options).federation.method.addend({}, {}, 1.0)


def test_linear_is_not_inherited_by_another_merge() -> None:
    class Other(Mean):
        def merge(self, uploads: Uploads, memory: Memory) -> Merged:
            return Merged(uploads.rows.median(0).values, memory)

    class Same(Mean):
        pass

    assert (Mean.linear, Same.linear, Other.linear, Aggregation.linear) == (True, True, False, False)
    assert {name for name, kind in aggregations().items() if kind.linear} >= {"mean", "scaffold", "fednova", "feddyn"}
