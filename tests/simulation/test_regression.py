"""Runs whose labels are numbers: against least squares, in the label's unit, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

import fedpriv
from fedpriv.api.comparison.comparing import gains_between
from fedpriv.api.comparison.side_by_side import Comparison
from fedpriv.errors import UsageError
from fedpriv.files import load_json
from fedpriv.methods import methods
from fedpriv.objectives.cross_entropy import label_loss, loss_on
from fedpriv.simulation.setup import build
from fedpriv.tracking import read_records
from tests.simulation.small import config, play

SPREAD: dict[str, Any] = {"data.clients": 4, "train.participation": 1.0, "train.rounds": 2, "executor.name": "auto"}


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 353 rows for training and 89 for tests."""
    from sklearn.datasets import load_diabetes

    rows = load_diabetes(as_frame=True, scaled=False).frame
    folder = tmp_path_factory.mktemp("diabetes")
    test = np.arange(len(rows)) % 5 == 0
    rows[~test].to_csv(folder / "train.csv", index=False)
    rows[test].to_csv(folder / "test.csv", index=False)
    return folder


def asked(data: Path, **more: Any) -> dict[str, Any]:
    return {"data.name": str(data), "data.label": "target", **SPREAD, **more}


def test_a_linear_net_on_all_rows_finds_the_least_squares(diabetes: Path, tmp_path: Path) -> None:
    """By gradient descent on all rows at once; the oracle is numpy's least squares, scored by scikit-learn."""
    from sklearn.metrics import mean_absolute_error, r2_score

    steps = {"train.rounds": 1, "train.local_epochs": 400, "train.batch_size": 353, "train.lr": 0.1, "train.weight_decay": 0}
    run = {"model.name": "linear", "model.projection": None, "data.clients": 3, "eval.last": 1, "train.momentum": 0.9}
    play(tmp_path / "run", "pooled", **asked(diabetes, **{**run, **steps}))
    train, test = (pd.read_csv(diabetes / f"{split}.csv") for split in ("train", "test"))
    x, unseen = (np.column_stack([part.drop(columns="target"), np.ones(len(part))]) for part in (train, test))
    expected = unseen @ np.linalg.lstsq(x, train["target"], rcond=None)[0]
    predicted = fedpriv.load(tmp_path / "run").predict(test.drop(columns="target"))
    assert list(predicted) == ["prediction"] and predicted["prediction"].to_numpy() == pytest.approx(expected, abs=0.5)
    scores = load_json(tmp_path / "run" / "summary.json")["scores"]
    assert scores["mae"]["pooled"] == pytest.approx(mean_absolute_error(test["target"], expected), abs=0.2)
    assert scores["r2"]["on_server"] == pytest.approx(r2_score(test["target"], expected), abs=0.005)
    assert scores["rmse"]["pooled"] == pytest.approx(np.sqrt(((test["target"] - expected) ** 2).mean()), abs=0.2)


@pytest.fixture(scope="module")
def trained(diabetes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    play(folder, "fedavg", **asked(diabetes, **{"train.rounds": 5, "train.lr": 0.1, "eval.last": 1}))
    return folder


def test_records_and_summary_are_in_the_label_s_unit(trained: Path, diabetes: Path) -> None:
    train, test = (pd.read_csv(diabetes / f"{split}.csv")["target"] for split in ("train", "test"))
    summary = load_json(trained / "summary.json")
    assert summary["metric"] == "rmse" and list(summary["scores"]) == ["rmse", "mae", "mse", "r2"]
    assert summary["accuracy"] is None and summary["at_chance"] is False and "chance" not in summary
    last = read_records(trained)[-1]
    assert {"rmse", "rmse_pooled", "rmse_worst_tenth", "global_rmse", "global_r2", "test_loss"} <= last["metrics"].keys()
    assert not [name for name in last["metrics"] if "accuracy" in name or "f1" in name]
    assert last["metrics"]["rmse_worst_tenth"] == max(last["per_client"]["rmse"]), "a larger error is worse"
    assert last["metrics"]["global_mse"] == pytest.approx(last["metrics"]["test_loss"] * train.var(ddof=0), rel=1e-4)
    constant = np.sqrt(((test - train.mean()) ** 2).mean())
    assert summary["constant"]["rmse"] == pytest.approx(constant, rel=0.1), "of the clients' shares, on average"
    assert summary["scores"]["rmse"]["mean"] < 0.9 * summary["constant"]["rmse"]


def test_a_run_is_predicted_exported_and_shown_in_that_unit(trained: Path, diabetes: Path, tmp_path: Path) -> None:
    run, test = fedpriv.load(trained), pd.read_csv(diabetes / "test.csv")
    predicted = run.predict(diabetes / "test.csv")["prediction"]
    rmse = np.sqrt(((predicted - test["target"]) ** 2).mean())
    assert rmse == pytest.approx(read_records(trained)[-1]["metrics"]["global_rmse"], rel=1e-5)
    program = torch.export.load(run.export(tmp_path / "model.pt2")).module()
    inputs = run.inputs(test)
    assert program(inputs)[:, 0].detach().numpy() == pytest.approx(predicted.to_numpy(), rel=1e-5)
    assert "rmse" in repr(run) and "accuracy" not in repr(run)


def test_lower_errors_rank_first(trained: Path, diabetes: Path, tmp_path: Path) -> None:
    play(tmp_path / "alone", "local", **asked(diabetes, **{"method.epochs": 1, "train.lr": 0.001, "train.rounds": 5}))
    table = fedpriv.compare([trained, tmp_path / "alone"])
    assert set(table["metric"]) == {"rmse"} and list(table["score"]) == list(table["rmse"]) and table["accuracy"].isna().all()
    gain = table["over_local"].iloc[0]
    assert gain == pytest.approx(table["score"].iloc[0] - table["score"].iloc[1]) and gain < 0, "a smaller error"
    (shown,) = gains_between(Comparison([trained, tmp_path / "alone"]))
    assert "RMSE, of which less is better" in str(shown)


def test_the_gradient_of_the_squared_error_by_hand() -> None:
    """Of ``y = w x + b`` on two samples: the mean of ``2 (w x + b - y) (x, 1)``; stacked clients have each their own loss."""
    weight, bias = torch.tensor(0.5, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
    x, y = torch.tensor([2.0, -4.0]), torch.tensor([3.0, 1.0])
    outputs = (weight * x + bias)[:, None]
    loss = loss_on(outputs, y)
    assert loss.item() == (9 + 16) / 2  # errors -3 and -4
    assert torch.autograd.grad(loss, [weight, bias]) == (torch.tensor((2 * -3 * 2 + 2 * -4 * -4) / 2), torch.tensor(-7.0))
    step = type("Step", (), {"labels": torch.stack([y, y + 1]), "class_weights": None})
    step.outputs = type("Outputs", (), {"logits": torch.stack([outputs, outputs])})
    assert label_loss(step).tolist() == [12.5, F.mse_loss(outputs[:, 0], y + 1).item()]  # type: ignore[arg-type]


def taking_numbers() -> list[str]:
    """The methods whose declarations let numbers pass."""
    return [
        name
        for name, method in methods().items()
        if not method.needs_classes and not method.objective_class.why_classes() and method.objective_class.labels
    ]


def test_which_methods_take_numbers_follows_from_what_they_declare() -> None:
    taken = set(taking_numbers())
    assert {"fedavg", "fedprox", "scaffold", "local", "pooled", "fedrep", "ditto", "fednova", "moon"} <= taken
    assert not taken & {"mpfedcon", "feddual"}


@pytest.mark.slow
@pytest.mark.parametrize("method", taking_numbers())
def test_each_of_them_trains(method: str, diabetes: Path, tmp_path: Path) -> None:
    more = {"model.projection": 16} if method in ("moon", "fedsiam-da") else {"model.projection": None}
    play(tmp_path / "run", method, **asked(diabetes, **more))
    summary = load_json(tmp_path / "run" / "summary.json")
    assert summary["scores"]["rmse"]["mean"] < 2 * summary["constant"]["rmse"]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"method.name": "mpfedcon"}, "method mpfedcon needs labels that are classes, as it draws a sample to the centre"),
        ({"method.name": "feddual"}, "objective adaptive-kl needs labels that are classes, as its terms"),
        ({"data.partition.name": "dirichlet"}, "partition dirichlet assigns samples by their classes"),
        ({"train.class_weights": "balanced"}, r"train.class_weights.*labels are numbers"),
        ({"eval.metric": "balanced_accuracy"}, "eval.metric balanced_accuracy needs classes"),
        ({"eval.probe": "linear"}, "eval.probe linear is for images or texts"),
        ({"data.task": "classification"}, r"target.* holds \d+ values in 442 rows|classes"),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("said", [None, "regression"], ids=["guessed", "asked for"])
def test_what_needs_classes_is_refused_in_a_line(overrides: dict[str, str], why: str, said: str | None, diabetes: Path) -> None:
    if said is not None and "data.task" in overrides:
        return
    keys = {**asked(diabetes), **({} if said is None else {"data.task": said}), **overrides}
    with pytest.raises(UsageError, match=why) as caught:
        build(config(keys.pop("method.name", "fedavg"), **keys))
    assert len(str(caught.value)) < 330 and "\n" not in str(caught.value)


def test_an_objective_of_one_s_own_is_refused_unless_it_says_that_it_takes_numbers(diabetes: Path) -> None:
    from fedpriv.objectives import Objective
    from fedpriv.objectives.cross_entropy import CrossEntropy

    class Own(CrossEntropy):
        def loss(self, step: Any) -> torch.Tensor:
            return F.cross_entropy(step.outputs.logits, step.labels)

    class Declared(Own):
        weighs_classes = True

    assert Own.why_classes() == Objective.why_classes() == "its loss has no squared error" and not Declared.why_classes()


def test_noise_on_statistics_takes_the_bounds_of_the_label(diabetes: Path) -> None:
    columns = {name: [-500, 500] for name in pd.read_csv(diabetes / "train.csv").columns if name != "target"}
    private = {"privacy.level": "sample", "privacy.target_epsilon": 8, "train.momentum": 0, "data.bounds": columns}
    with pytest.raises(UsageError, match=r"how large the numbers of column 'target' are; --set data.bounds.target="):
        build(config("fedavg", **asked(diabetes, **private)))
    private["data.bounds"] = {**columns, "target": [0, 400]}
    federation = build(config("fedavg", **asked(diabetes, **private)))
    assert federation.dataset.target is not None and 100 < federation.dataset.target.mean < 250


def test_clients_train_side_by_side_as_one_after_another(diabetes: Path, tmp_path: Path) -> None:
    kinds = ("sequential", "vectorized")
    for name in kinds:
        play(tmp_path / name, "fedavg", **asked(diabetes, **{"executor.name": name, "train.rounds": 1}))
    first, second = (json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]) for name in kinds)
    assert first["per_client"]["rmse"] == pytest.approx(second["per_client"]["rmse"], rel=1e-3)
