"""What stands in for what a client did not send: the weighted mean of those who did, so that a mean is theirs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpriv.aggregation import Uploads
from fedpriv.aggregation.completing import complete
from fedpriv.aggregation.mean import weighted_mean
from fedpriv.parameters import ParameterSpace

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


def test_where_those_who_sent_weigh_nothing_the_server_keeps_its_value() -> None:
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
