"""The evaluation protocols, against numbers made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpriv.evaluation.protocols import (
    PROTOCOLS,
    best,
    client_summary,
    global_summary,
    mean_per_client,
    per_class,
    scored_last,
    worst_tenth,
)
from fedpriv.simulation.simulation import Simulation
from tests.marks import quick_first


def record(
    round: int, accuracies: list[float | None] | None = None, sizes: list[int] | None = None, **metrics: float
) -> dict[str, Any]:
    if accuracies is None:
        return {"round": round, "metrics": {}, "per_client": {}}
    summary = client_summary(accuracies, sizes or [1] * len(accuracies))
    return {"round": round, "metrics": {**summary, **metrics}, "per_client": {"accuracy": accuracies}}


def test_one_pass_over_the_clients() -> None:
    accuracies = [0.5, 1.0, None, 0.0, 0.9]
    summary = client_summary(accuracies, [10, 20, 0, 30, 40])
    assert summary["accuracy"] == pytest.approx(2.4 / 4)
    assert summary["accuracy_weighted"] == pytest.approx((5 + 20 + 0 + 36) / 100)
    assert (summary["accuracy_worst_tenth"], summary["accuracy_best"]) == (0.0, 1.0)
    assert summary["accuracy_std"] == pytest.approx((sum((a - 0.6) ** 2 for a in (0.5, 1, 0, 0.9)) / 4) ** 0.5)
    assert worst_tenth([i / 100 for i in range(29)]) == pytest.approx(0.005) and best([None, 0.25]) == 0.25


def test_protocols_average_the_last_rounds_that_were_evaluated() -> None:
    records = [
        record(0),
        record(5, [0.0, 0.0], global_accuracy=0.9),
        record(8, [0.2, 0.4], [1, 3], global_accuracy=0.1),
        record(9),
        record(10, [0.6, 0.4], [1, 3], global_accuracy=0.3),
    ]
    values = {name: protocol(records, 3) for name, protocol in PROTOCOLS.items()}
    assert values["last_rounds_client_mean"] == pytest.approx(0.4)
    assert values["last_rounds_weighted"] == pytest.approx((0.35 + 0.45) / 2)
    assert (values["global_test"], values["global_test_final"]) == (pytest.approx(0.2), 0.3)
    # Both clients are at 0.4 over the rounds: the worst of the means, not the mean of the worst (0.3).
    assert mean_per_client(records, 3) == [pytest.approx(0.4), pytest.approx(0.4)]
    assert (values["worst_tenth"], values["best_client"]) == (pytest.approx(0.4), pytest.approx(0.4))
    assert values["client_std"] == pytest.approx(0.0)


def test_what_does_not_apply_is_none() -> None:
    records = [record(1, [0.5, 0.7]), record(2, [0.5, None])]
    assert PROTOCOLS["global_test"](records, 2) is None
    assert mean_per_client(records, 2) == [0.5, None]
    assert [r["round"] for r in scored_last(records, 1)] == [2]
    assert PROTOCOLS["last_rounds_client_mean"]([record(1)], 1) is None


def test_precision_recall_and_f1_by_hand() -> None:
    """Three dogs, of which one is taken for a cat and one for a bird; a cat, taken for a dog; no bird; no fish, nor one seen."""
    confusion = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert {name: values.tolist() for name, values in per_class(confusion).items()} == {
        "precision": [0.5, 0, 0, 0],
        "recall": [1 / 3, 0, 0, 0],
        "f1": [0.4, 0, 0, 0],
    }
    summary = global_summary(confusion)
    assert summary["global_f1_macro"] == pytest.approx(0.4 / 3), "the bird counts, the fish does not"
    assert summary["global_f1_weighted"] == pytest.approx(0.4 * 3 / 4)
    assert summary["global_recall_weighted"] == pytest.approx(1 / 4), "the accuracy"
    assert set(global_summary(np.zeros((2, 2), np.int64)).values()) == {0.0}


def test_precision_recall_and_f1_are_those_of_sklearn() -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    rng = np.random.default_rng(0)
    for classes, samples in ((2, 1), (2, 50), (10, 2000), (10, 12), (77, 100), (77, 5000)):
        labels = rng.integers(0, max(1, classes - 2), samples)  # the last two classes have no samples
        predicted = np.where(rng.random(samples) < 0.6, labels, rng.integers(0, max(2, classes - 1), samples))
        every = list(range(classes))
        confusion = confusion_matrix(labels, predicted, labels=every)
        ours, each = global_summary(confusion), per_class(confusion)
        oracle = precision_recall_fscore_support(labels, predicted, labels=every, zero_division=0)
        for name, values in zip(("precision", "recall", "f1"), oracle, strict=False):
            assert each[name] == pytest.approx(values, abs=1e-12)
        for average in ("macro", "weighted"):  # over the classes that occur
            oracle = precision_recall_fscore_support(labels, predicted, average=average, zero_division=0)
            for name, value in zip(("precision", "recall", "f1"), oracle, strict=False):
                assert ours[f"global_{name}_{average}"] == pytest.approx(value, abs=1e-12), (name, average, classes, samples)


def global_metrics(record: dict[str, Any]) -> set[str]:
    return {name for name in record["metrics"] if name.startswith("global_")}


@pytest.mark.parametrize("partition", ["iid", "lognormal"])
def test_each_evaluation_has_them_of_the_global_model(simulate: Callable[..., Simulation], partition: str) -> None:
    simulation = simulate("fedavg", **{"data.partition.name": partition, "train.rounds": 2})
    fed = simulation.federation
    fed.resident.row.copy_(simulation.state.row)
    images = fed.dataset.test_images.float() / 255  # digits are not normalised otherwise
    predicted = fed.resident.from_features(fed.resident.features(images)).logits.argmax(1)
    confusion = np.zeros((10, 10), np.int64)
    np.add.at(confusion, (fed.dataset.test_labels.numpy(), predicted.numpy()), 1)
    assert (simulation.scorer.confusion(simulation.state) == confusion).all()
    metrics = simulation.progress.record["metrics"]
    assert metrics["global_accuracy"] == pytest.approx(np.trace(confusion) / len(images))
    recalls = np.diagonal(confusion)[confusion.sum(1) > 0] / confusion.sum(1)[confusion.sum(1) > 0]
    assert metrics["global_balanced_accuracy"] == pytest.approx(recalls.mean())
    further = global_metrics(simulation.progress.record) - {"global_accuracy", "global_balanced_accuracy"}
    assert {name: metrics[name] for name in further} == global_summary(confusion)
    assert len(global_metrics(simulation.folder.records()[1])) == 8


def test_a_personalised_method_has_none_of_them(simulate: Callable[..., Simulation]) -> None:
    assert not global_metrics(simulate("fedrep", **{"train.rounds": 1}).progress.record)


@pytest.mark.parametrize(("when", "tuned"), quick_first([("final", [4]), ("last", [3, 4])]))
def test_fine_tuning_happens_in_the_rounds_that_count(simulate: Callable[..., Simulation], when: str, tuned: list[int]) -> None:
    settings = {"train.rounds": 4, "eval.last": 2}
    plain = simulate("fedavg", **settings).folder.records()
    simulation = simulate("fedavg-ft", **settings, **{"method.ft_when": when, "method.ft_epochs": 2})
    assert simulation.federation.method.averaged_rounds == len(tuned)
    for before, after in zip(plain[1:], simulation.folder.records()[1:], strict=True):
        assert (before["per_client"] != after["per_client"]) == (after["round"] in tuned)
        assert before["metrics"]["global_accuracy"] == after["metrics"]["global_accuracy"]


@pytest.mark.parametrize("partition", ["iid", "lognormal"])
def test_the_global_model_is_scored_on_the_server_s_test_set(simulate: Callable[..., Simulation], partition: str) -> None:
    """Also where the clients' test images are held out of the training split."""
    simulation = simulate("fedavg", **{"data.partition.name": partition, "train.rounds": 2})
    fed, record = simulation.federation, simulation.progress.record
    assert (fed.data.partition.test_split == "train") == (partition == "lognormal")
    fed.resident.row.copy_(simulation.state.row)
    images = fed.dataset.test_images.float() / 255  # digits are not normalised otherwise
    right = fed.resident.from_features(fed.resident.features(images)).logits.argmax(1) == fed.dataset.test_labels
    assert record["metrics"]["global_accuracy"] == pytest.approx(float(right.double().mean()))
    for client, accuracy in enumerate(record["per_client"]["accuracy"]):
        split = fed.data.split("test", client)
        hits = fed.resident.from_features(fed.resident.features(split.inputs)).logits.argmax(1) == split.labels
        weights = fed.data.weights("test", client)
        expected = hits.double().mean() if weights is None else (hits.double() * weights).sum()
        assert accuracy == pytest.approx(float(expected))


def test_options_are_chosen_without_a_look_at_the_test_set(simulate: Callable[..., Simulation]) -> None:
    simulation = simulate("fedavg", **{"eval.split": "validation", "data.validation_fraction": 0.2, "train.rounds": 1})
    metrics = simulation.progress.record["metrics"]
    assert "accuracy" in metrics and not global_metrics(simulation.progress.record) and "test_loss" not in metrics
