"""Scores of predicted numbers are those of scikit-learn and torchmetrics, in the labels' own unit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedpriv.data.encoding import NumberColumn
from fedpriv.errors import UsageError
from fedpriv.scores.catalogue import RMSE, SCORES
from fedpriv.scores.predictions import pooled
from fedpriv.scores.tasks import Classes, Quantity

PRICE = NumberColumn("price", mean=200_000.0, std=50_000.0)
TASK = Quantity(PRICE)


def drawn(seed: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Standardised outputs ``(n, 1)``, labels and weights ``(n,)``."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randn(size, generator=draw)
    return (labels + 0.3 * torch.randn(size, generator=draw))[:, None], labels, torch.rand(size, generator=draw) + 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_they_are_those_of_scikit_learn(weighted: bool) -> None:
    from sklearn import metrics

    outputs, labels, weights = drawn(0, 80)
    (ours,) = TASK.scored([TASK.predictions(outputs, labels, weights if weighted else None)])
    true, predicted = (part.double().numpy() * PRICE.std + PRICE.mean for part in (labels, outputs[:, 0]))
    by = {"sample_weight": weights.double().numpy() if weighted else None}
    mse = metrics.mean_squared_error(true, predicted, **by)
    expected = {"rmse": math.sqrt(mse), "mae": metrics.mean_absolute_error(true, predicted, **by), "mse": mse}
    assert ours == pytest.approx(expected | {"r2": metrics.r2_score(true, predicted, **by)}, rel=1e-9)
    assert ours["rmse"] > 10_000, "in the unit of the label"


@pytest.mark.slow  # its import takes ten seconds
def test_they_are_those_of_torchmetrics() -> None:
    from torchmetrics import functional

    outputs, labels, _ = drawn(1, 50)
    (ours,) = TASK.scored([TASK.predictions(outputs, labels)])
    true, predicted = (part.double() * PRICE.std + PRICE.mean for part in (labels, outputs[:, 0]))
    assert ours["mse"] == pytest.approx(float(functional.mean_squared_error(predicted, true)))
    assert ours["mae"] == pytest.approx(float(functional.mean_absolute_error(predicted, true)))
    assert ours["r2"] == pytest.approx(float(functional.r2_score(predicted, true)))


def test_r2_is_not_defined_where_all_labels_are_equal() -> None:
    (ours,) = TASK.scored([TASK.predictions(torch.randn(9, 1), torch.full((9,), 0.1))])
    assert ours.keys() == {"rmse", "mae", "mse"}


def test_clients_together_are_scored_as_one() -> None:
    parts = [drawn(seed, size) for seed, size in enumerate((5, 40))]
    clients = [TASK.predictions(outputs, labels) for outputs, labels, _ in parts]
    together = TASK.predictions(*(torch.cat([part[place] for part in parts]) for place in (0, 1)))
    assert TASK.scored([pooled(clients, [5, 40])]) == TASK.scored([together])


def test_padded_clients_are_scored_as_they_are_alone() -> None:
    outputs, labels, _ = drawn(3, 12)
    padded = torch.stack([outputs, outputs + 1]), torch.stack([labels, labels])
    several = TASK.predictions_of_several(*padded, [12, 4], [None, None], torch.ones(2, 12))
    alone = [TASK.predictions(outputs, labels), TASK.predictions(outputs[:4] + 1, labels[:4])]
    assert TASK.scored(list(several)) == TASK.scored(alone)


def test_a_lower_error_and_a_higher_r2_are_better() -> None:
    outputs, labels, _ = drawn(2, 30)
    (good,), (bad,) = (TASK.scored([TASK.predictions(out, labels)]) for out in (outputs, outputs + 2))
    assert all(SCORES[name].merit(good[name]) > SCORES[name].merit(bad[name]) for name in good)
    assert all(score.low <= bad[score.name] <= score.high for score in TASK.scores) and bad["r2"] < 0


def test_each_task_has_its_scores() -> None:
    assert not {score.name for score in TASK.scores} & {score.name for score in Classes(2).scores}
    assert TASK.score(None, None) is RMSE and TASK.score("r2", None).name == "r2"
    with pytest.raises(UsageError, match=r"accuracy needs classes, .*'price'.* are numbers; possible are rmse, mae, mse, r2"):
        TASK.score("accuracy", None)
    with pytest.raises(UsageError, match="rmse needs numbers to predict, and the data have 3 classes"):
        Classes(3).score("rmse", None)


def test_values_are_shown_by_their_size() -> None:
    shown = [RMSE.shown(value) for value in (0.000123456, 12.3456, 48_213.9)]
    assert shown == ["0.0001235", "12.35", "48,214"] and SCORES["r2"].shown(-0.25) == "-0.250"
    assert np.isinf(RMSE.high)
