"""What stands in for what a client did not send: the weighted mean of those who did, so that a mean is theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.aggregation import Uploads
from fedpriv.aggregation.completing import complete
from fedpriv.aggregation.mean import weighted_mean
from fedpriv.parameters import ParameterSpace
from tests.aggregation.rounds import aggregation, space_of
from tests.aggregation.rounds import uploads as round_of

NET = nn.ModuleDict({"encoder": nn.ModuleDict({"image": nn.Linear(3, 2), "text": nn.Linear(2, 2)}), "head": nn.Linear(2, 2)})
SPACE = ParameterSpace.of(NET)
ALL = set(SPACE.names)
IMAGES_ALONE = {name for name in ALL if "text" not in name}
TEXTS_ALONE = {name for name in ALL if "image" not in name}


def uploads(clients: int = 4) -> Uploads:
    rows = torch.randn(clients, SPACE.size, generator=torch.Generator().manual_seed(1))
    return Uploads(SPACE, rows, torch.zeros(SPACE.size), [10] * clients, [{}] * clients, list(range(clients)), 1, clients)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0, 1.0], [3.0, 0.5, 7.0, 2.0], [0.0, 1.0, 2.0, 3.0]])
def test_a_mean_is_that_of_those_who_sent(weights: list[float]) -> None:
    matrix, sent = uploads(), [ALL, IMAGES_ALONE, TEXTS_ALONE, TEXTS_ALONE]
    before = matrix.rows.clone()
    complete(matrix, sent, weights)
    mean = weighted_mean(matrix.rows.double(), weights)
    for entry in SPACE.entries:
        have = [k for k, names in enumerate(sent) if entry.name in names]
        expected = sum(weights[k] * before[k, entry.start : entry.stop].double() for k in have) / sum(weights[k] for k in have)
        torch.testing.assert_close(mean[entry.start : entry.stop], expected, rtol=1e-6, atol=1e-6)
        for k in have:  # and what was sent stays as it was
            assert torch.equal(matrix.rows[k, entry.start : entry.stop], before[k, entry.start : entry.stop])


def test_where_all_sent_all_nothing_changes() -> None:
    matrix = uploads()
    before = matrix.rows.clone()
    complete(matrix, [ALL] * 4, [3.0, 1.0, 2.0, 0.0])
    assert torch.equal(matrix.rows, before)


def test_senders_of_zero_weight_leave_the_server_value() -> None:
    matrix = uploads()
    before = matrix.rows.clone()
    complete(matrix, [IMAGES_ALONE, IMAGES_ALONE, ALL, IMAGES_ALONE], [1.0, 1.0, 0.0, 1.0])
    assert torch.equal(matrix.rows, before)


def test_one_who_sent_stands_for_all() -> None:
    matrix = uploads()
    complete(matrix, [IMAGES_ALONE, IMAGES_ALONE, ALL, IMAGES_ALONE], [1.0, 1.0, 5.0, 1.0])
    for entry in SPACE.entries:
        columns = matrix.rows[:, entry.start : entry.stop]
        assert torch.equal(columns, columns[2].expand_as(columns)) == ("text" in entry.name)


UNIFORM, SAMPLES = [1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7]
BY_LOSS = torch.softmax(torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64), 0).tolist()
BRANCHES = space_of(("encoder.image.weight", (1, 2), "weight"), ("encoder.text.weight", (1, 2), "weight"))
ALIKE: list[tuple[str, dict[str, Any]]] = [
    ("mean", {"weights": "uniform"}),
    ("mean-shift", {}),
    ("mean-shift", {"dyn_layers": "none"}),
    ("dual", {}),
    ("l-dawa", {}),
    ("m-dawa", {}),
    ("simprox", {}),
    ("fedatt", {}),
    ("euc", {"euc": "weight"}),
]
"""Aggregations that make a difference between clients by their uploads alone."""


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        *((name, options, UNIFORM) for name, options in ALIKE),
        ("mean", {}, SAMPLES),
        ("mean-shift", {"weights": "samples"}, SAMPLES),
        ("dual", {"pass1": "samples"}, SAMPLES),
        ("l-dawa", {"variant": "authors_code"}, SAMPLES),  # in its warm-up
        ("l-dawa", {"variant": "authors_code", "warmup": 0}, UNIFORM),
        ("l-dawa-fedavg", {}, SAMPLES),
        ("loss", {}, BY_LOSS),
        ("simagg", {}, SAMPLES),
        ("euc", {}, SAMPLES),
        ("euc", {"weights": "uniform"}, UNIFORM),
        ("feddyn", {}, UNIFORM),
    ],
)
def test_clients_weigh_in_what_stands_in_as_in_the_merge(name: str, options: dict[str, Any], expected: list[float]) -> None:
    losses = [{"statistic.loss": torch.tensor(float(loss))} for loss in (1, 2, 3)]
    matrix = round_of(torch.zeros(4), torch.ones(3, 4), BRANCHES, examples=[10, 20, 70], statistics=losses)
    weights = torch.tensor(aggregation(name, BRANCHES, **options).weigh(matrix), dtype=torch.float64)
    assert (weights / weights.sum()).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("name", "options"), ALIKE)
def test_of_two_who_are_alike_neither_weighs_more_by_its_samples(name: str, options: dict[str, Any]) -> None:
    """The third has no images. Of the image branch, what the other two sent is the same but for the order of the entries."""
    rows = torch.tensor([[1.0, 0.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [0.5, 0.5, 2.0, 3.0]])
    matrix = round_of(torch.tensor([0.5, 0.5, 1.0, 1.0]), rows, BRANCHES, examples=[10, 90, 50])
    server_part = aggregation(name, BRANCHES, **options)
    everything = set(BRANCHES.names)
    complete(matrix, [everything, everything, {"encoder.text.weight"}], server_part.weigh(matrix))
    row = server_part.merge(matrix, server_part.start(matrix.previous)).row
    assert float(row[0]) == pytest.approx(float(row[1]))
