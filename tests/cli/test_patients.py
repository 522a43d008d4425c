"""A CSV of 3,000 patients from three hospitals, from training to predictions: by commands, and in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result

import fedpriv as library

Fedpriv = Callable[..., Result]
BY_HOSPITAL = ("--set", "data.label=readmitted", "--partition", "by_column", "--column", "hospital")
SHORT = ("--rounds", 2, "--local-epochs", 2, "--set", "model.projection=8", "--keep-payloads", "all")
EXTENT = {"messages": 1, "label_shadows": 0, "membership_shadows": 0, "singles": 1}
pytestmark = pytest.mark.slow


def patients(count: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Hospital, age, sex, three lab values with gaps, smoker, and whether the patient was readmitted: 8 % were."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "hospital": draw.choice(["aachen", "basel", "como"], count, p=[0.5, 0.3, 0.2]),
            "age": draw.normal(62, 14, count).clip(18, 97).round().astype(int),
            "sex": draw.choice(["female", "male"], count),
            "creatinine": np.exp(draw.normal(0, 0.35, count)).round(2),
            "haemoglobin": draw.normal(13.2, 1.8, count).round(1),
            "crp": np.exp(draw.normal(1.5, 1.0, count)).round(1),
            "smoker": draw.choice(["no", "yes", "former"], count, p=[0.55, 0.2, 0.25]),
        }
    )
    risk = (frame.age - 62) / 14 + 3 * np.log(frame.creatinine) - 0.4 * (frame.haemoglobin - 13.2) + draw.normal(0, 1, count)
    frame["readmitted"] = np.where(risk > np.quantile(risk, 0.92), "yes", "no")
    for column, share in (("creatinine", 0.05), ("haemoglobin", 0.08), ("crp", 0.2)):
        frame.loc[draw.random(count) < share, column] = np.nan
    return frame


@pytest.fixture(autouse=True)
def files(empty_folder: Path) -> None:
    """The patients, and later ones, whose outcome is not known."""
    patients().to_csv("patients.csv", index=False)
    patients(40, seed=1).drop(columns=["hospital", "readmitted"]).to_csv("later.csv", index=False)


def printed(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def test_the_suggested_baselines_train_as_long_as_the_run(fedpriv: Fedpriv) -> None:
    shown = printed(fedpriv("train", "--method", "fedavg", "--dataset", "./patients.csv", *BY_HOSPITAL, *SHORT))
    assert all(f"fedpriv train --method {other} --set method.epochs=2 " in shown for other in ("local", "pooled"))


def test_by_commands(fedpriv: Fedpriv) -> None:
    for method in ("fedavg", "local", "pooled"):
        options = (*BY_HOSPITAL, *SHORT, "--set", f"run_dir={method}")
        shown = printed(fedpriv("train", "--method", method, "--dataset", "./patients.csv", *options))
        assert "92.0% of the training labels are 'no'" in shown and "balanced accuracy per client" in shown
        assert re.search(r"always the most frequent class +0\.500 balanced accuracy +0\.92\d accuracy", shown)
    shown = printed(fedpriv("compare", "fedavg", "local", "pooled"))
    assert "fedavg over local" in shown and "fedavg against pooled" in shown and "points balanced accuracy" in shown
    extent = [word for name, value in EXTENT.items() for word in (f"--{name.replace('_', '-')}", value)]
    shown = printed(fedpriv("audit", "fedavg", *extent))
    assert "closed-form recovered 100.0 % of the cells" in shown and "72 of 72 rows right in every cell" in shown
    page = Path("fedavg/audit/audit.html").read_text(encoding="utf-8")
    assert "Single samples leak" in page and "A true row and its reconstruction" in page and "samples by class" in page
    noise = ("--defenses", "gaussian:variance=0.01", "--target", "recovered<=0", "--jobs", 1, *extent)
    shown = printed(fedpriv("frontier", "--config", "fedavg/config.yaml", "--set", "train.rounds=1", *noise))
    assert "recovered<=0" in shown and "balanced accuracy" in Path("frontier/frontier.md").read_text(encoding="utf-8")
    assert "40 predictions in out.csv" in printed(fedpriv("predict", "fedavg", "later.csv", "--output", "out.csv"))
    assert list(pd.read_csv("out.csv").columns) == ["prediction", "probability_no", "probability_yes"]


@pytest.mark.parametrize("attack", ["closed-form", "tableak"])
def test_single_rows_are_recovered(fedpriv: Fedpriv, attack: str) -> None:
    asked = ("--dataset", "./patients.csv", "--set", "data.label=readmitted", "--n", 3, "--json")
    found = json.loads(fedpriv("attack", attack, *asked).stdout)
    assert found["cells"]["share"] >= 0.9 and found["whole_rows_hardly_by_chance"] >= 2


@pytest.mark.extra("deploy")
def test_over_three_processes(fedpriv: Fedpriv) -> None:
    data = (
        "data.name=./patients.csv",
        "data.label=readmitted",
        "data.partition.name=by_column",
        "data.partition.column=hospital",
    )
    chosen = [word for value in (*data, "model.projection=8") for word in ("--set", value)]
    shown = printed(fedpriv("deploy", "demo", "--clients", 3, "--method", "fedavg", "--rounds", 2, *chosen))
    assert "equal            True" in shown and "balanced_accuracy" in shown and "92.0% of the training labels are 'no'" in shown


def test_in_python() -> None:
    def trained(method: str, **more: Any) -> library.Run:
        table = {"label": "readmitted", "partition": {"name": "by_column", "column": "hospital"}}
        short = {"rounds": 2, "local_epochs": 2, "keep_payloads": "all", "tracking_uri": "none"}
        return library.train(method=method, dataset="./patients.csv", data=table, model={"projection": 8}, **short, **more)

    runs = [trained(method) for method in ("fedavg", "local", "pooled")]
    compared = library.compare(runs)
    assert list(compared.metric) == ["balanced_accuracy"] * 3
    assert len(library.gains(runs)) == 2
    (plain,) = library.audit(runs[0], **EXTENT).runs
    (noisy,) = library.audit(trained("fedavg", defense="gaussian:variance=0.01"), **EXTENT).runs
    assert plain.metrics["recovered"] == 1 and noisy.metrics.get("recovered", 0) == 0
    assert len(runs[0].predict(pd.read_csv("later.csv"))) == 40
