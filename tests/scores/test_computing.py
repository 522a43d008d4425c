"""Scores are those of scikit-learn and torchmetrics, with and without weights, and a client's do not depend on the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedpriv.scores.catalogue import SCORES, Scores
from fedpriv.scores.computing import BINS, scored
from fedpriv.scores.predictions import Predictions, pooled
from fedpriv.scores.tasks import Classes


def drawn(seed: int, size: int, classes: int = 2, weighted: bool = False, steps: int = 7) -> Predictions:
    """Predictions by random logits, of which many are equal; not of all classes, and with a class that is never predicted."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (size,), generator=draw)
    logits = torch.randint(-steps, steps, (size, classes), generator=draw) / 4 + 0.8 * torch.eye(classes)[labels]
    if classes > 3:
        logits[:, 3] = -9
    weights = torch.rand(size, generator=draw, dtype=torch.float64) + 0.1 if weighted else None
    return Predictions.of(logits, labels, weights)


def by_sklearn(of: Predictions) -> dict[str, float]:
    from sklearn import metrics

    labels, weights = of.labels, of.weights
    values = {
        "accuracy": metrics.accuracy_score(labels, of.predicted, sample_weight=weights),
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, of.predicted, sample_weight=weights),
        "f1_macro": metrics.f1_score(labels, of.predicted, average="macro", zero_division=0, sample_weight=weights),
    }
    if of.positive is None:
        return values
    return values | {
        "roc_auc": metrics.roc_auc_score(labels, of.positive, sample_weight=weights),
        "average_precision": metrics.average_precision_score(labels, of.positive, sample_weight=weights),
        "recall": metrics.recall_score(labels, of.predicted, sample_weight=weights),
        "brier": metrics.brier_score_loss(labels, of.positive, sample_weight=weights),
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 8])
def test_they_are_those_of_scikit_learn(classes: int, weighted: bool) -> None:
    clients = [drawn(seed, size, classes, weighted) for seed, size in enumerate((60, 13, 200, 9))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a class that is predicted, and that no sample has
        expected = [by_sklearn(client) for client in clients]
    for client, values, ours in zip(clients, expected, scored(clients, classes), strict=True):
        assert {name: ours[name] for name in values} == pytest.approx(values, abs=1e-12), len(client.labels)
        assert ours.keys() == {score.name for score in Classes(classes).scores}


@pytest.mark.slow  # its import takes ten seconds
def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_calibration_error

    for seed in range(3):
        client = drawn(seed, 300, steps=20)
        expected = binary_calibration_error(torch.from_numpy(client.positive), torch.from_numpy(client.labels), BINS)
        assert scored([client], 2)[0]["calibration_error"] == pytest.approx(float(expected), abs=1e-6)


def test_a_calibration_error_by_hand() -> None:
    """Two bins: probability 0.5 where 3 of 4 are positive, and 1 where all of 4 are; the weights make the first one as large."""
    labels = np.array([1, 1, 1, 0, 1, 1, 1, 1])
    predictions = Predictions(labels, labels, 1.0, np.array([0.5] * 4 + [1.0] * 4))
    assert scored([predictions], 2)[0]["calibration_error"] == pytest.approx(0.25 / 2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_client_has_the_bits_that_it_has_alone(classes: int, weighted: bool) -> None:
    clients = [drawn(seed, size, classes, weighted and seed != 1) for seed, size in enumerate((1, 40, 333, 2, 57))]
    assert scored(clients, classes) == [scored([client], classes)[0] for client in clients]
    assert scored([], classes) == []


@pytest.mark.parametrize("label", [0, 1])
def test_what_is_not_defined_with_one_class_is_left_out(label: int) -> None:
    """A curve needs both classes; recall and average precision need positives. Nothing is replaced by a number."""
    predictions = Predictions.of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([label, label]))
    scores = scored([predictions], 2)[0]
    assert "roc_auc" not in scores and scores["balanced_accuracy"] == 0.5
    assert ("recall" in scores, "average_precision" in scores) == (label == 1, label == 1)
    assert scores["brier"] > 0 and scores["f1_macro"] == pytest.approx(1 / 3)


def test_a_net_that_has_diverged_has_no_curve() -> None:
    predictions = Predictions.of(torch.full((4, 2), float("nan")), torch.tensor([0, 1, 0, 1]))
    assert scored([predictions], 2)[0].keys() == {"accuracy", "balanced_accuracy", "f1_macro", "recall"}


def test_a_constant_answer_is_seen_through() -> None:
    """92 of 100 have no: always no is right in 92 %, and of no use."""
    labels = torch.tensor([1] * 8 + [0] * 92)
    scores = scored([Predictions.of(torch.tensor([[2.0, 0.0]]).expand(100, 2), labels)], 2)[0]
    assert scores["accuracy"] == 0.92 and scores["balanced_accuracy"] == 0.5 == scores["roc_auc"]
    assert scores["recall"] == 0 and scores["average_precision"] == pytest.approx(0.08)


def test_pooled_predictions_are_those_of_one_client_with_all_samples() -> None:
    clients = [drawn(seed, size) for seed, size in enumerate((30, 50, 20))]
    together = scored([pooled(clients, [30, 50, 20])], 2)[0]
    whole = Predictions(
        np.concatenate([client.labels for client in clients]),
        np.concatenate([client.predicted for client in clients]),
        0.0,
        np.concatenate([client.positive for client in clients if client.positive is not None]),
    )
    assert together == pytest.approx(by_sklearn(whole) | {"calibration_error": scored([whole], 2)[0]["calibration_error"]})


def test_pooled_weights_are_the_clients_sizes() -> None:
    """Clients that are tested on shared samples weigh what they hold, so the pooled accuracy is the weighted one."""
    clients, sizes = [drawn(0, 40, weighted=True), drawn(1, 60, weighted=True)], [300, 100]
    together = pooled(clients, sizes)
    assert together.weights is not None and together.weights[:40].sum() == pytest.approx(300)
    accuracy = scored([together], 2)[0]["accuracy"]
    assert accuracy == pytest.approx((300 * clients[0].accuracy + 100 * clients[1].accuracy) / 400)


def test_predictions_at_some_samples_are_those_of_their_logits() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 2, generator=draw), torch.randint(0, 2, (50,), generator=draw)
    index, weights = torch.tensor([3, 7, 7, 41]), torch.tensor([1.0, 2.0, 0.5, 1.0])
    part, alone = Predictions.of(logits, labels).at(index, weights), Predictions.of(logits[index], labels[index], weights)
    assert scored([part], 2) == scored([alone], 2)


@pytest.mark.parametrize("name", [score.name for score in Classes(2).scores])
def test_higher_is_better_where_it_says_so(name: str) -> None:
    """Right and sure predictions against wrong and sure ones; both within the range."""
    labels = torch.tensor([0, 1] * 10)
    logits = 9.0 * torch.eye(2)[labels]
    best, worst = (scored([Predictions.of(sign * logits, labels)], 2)[0][name] for sign in (1, -1))
    score = SCORES[name]
    assert (best > worst) == score.higher_is_better and best != worst
    assert all(score.low <= value <= score.high for value in (best, worst))


def test_time_does_not_grow_with_a_call_for_each_client() -> None:
    """All clients are computed in one call: how often numpy sorts does not depend on their number."""
    calls = {number: _counted(lambda number=number: scored([drawn(seed, 9) for seed in range(number)], 2)) for number in (2, 50)}
    assert calls[2] == calls[50] > 0


def _counted(work: Callable[[], list[Scores]]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        calls, bincount = list[int](), np.bincount
        patch.setattr(np, "bincount", lambda *of, **more: (calls.append(1), bincount(*of, **more))[1])
        work()
    return len(calls)
