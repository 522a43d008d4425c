"""Small runs whose models are used, on a table, on images and on texts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpriv

Train = Callable[..., fedpriv.Run]
QUICK: dict[str, Any] = {
    "rounds": 3,
    "local_epochs": 6,
    "batch_size": 16,
    "lr": 0.3,
    "participation": 1.0,
    "executor": "sequential",
    "tracking_uri": "none",
}
WORDS = {"good": "fine lovely nice splendid", "bad": "awful poor nasty dreadful"}
HEADER = "id,hospital,age,sex,crp,smoker,share,readmitted"


def patients(seed: int, count: int) -> list[str]:
    """Rows of a CSV: a number, numbers with gaps, categories with a rare level, and a number with a unit."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        age, sex, smoker = draw.randint(20, 90), draw.choice("fm"), draw.choice(["yes", "no", ""])
        crp = "" if draw.random() < 0.1 else f"{draw.gauss(10, 3):.2f}"
        ill = "yes" if (age > 55) + (smoker == "yes") + draw.random() > 1.5 else "no"
        rows.append(f"p{seed}-{number:03},{'ABC'[number % 3]},{age},{sex},{crp},{smoker},{draw.randint(1, 99)}%,{ill}")
    return rows


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """``train(method, dataset, ...)``: a quick run, in a folder of its own."""
    return lambda **options: fedpriv.train(runs_dir=tmp_path_factory.mktemp("runs"), **{**QUICK, **options})


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.csv`` and ``test.csv`` of three hospitals."""
    folder = tmp_path_factory.mktemp("table")
    for split, seed, count in (("train", 1, 150), ("test", 2, 90)):
        (folder / f"{split}.csv").write_text("\n".join([HEADER, *patients(seed, count)]) + "\n", encoding="utf-8")
    return folder


OF_TABLE: dict[str, Any] = {"partition": "by_column", "column": "hospital", "data": {"label": "readmitted", "drop": ["id"]}}


@pytest.fixture(scope="session")
def of_table(train: Train, table: Path) -> fedpriv.Run:
    """A run of FedAvg on the table."""
    return train(method="fedavg", dataset=str(table), **OF_TABLE)


@pytest.fixture(scope="session")
def personal(train: Train, table: Path) -> fedpriv.Run:
    """A run on the table whose heads stay with the clients."""
    return train(method="fedper", dataset=str(table), **OF_TABLE)


@pytest.fixture(scope="session")
def small_digits(train: Train) -> fedpriv.Run:
    """A run of FedAvg on images."""
    return train(method="fedavg", dataset="digits", clients=4, lr=0.05, partition="iid", data={"limit": 300})


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.csv`` and ``test.csv``, whose texts are of several lengths."""
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("texts")
    for split, count in (("train", 80), ("test", 40)):
        rows = []
        for number in range(count):
            label = ("good", "bad")[number % 2]
            words = [
                *draw.choice(WORDS[label].split(), draw.integers(1, 4)),
                *draw.choice(["the", "a", "food"], draw.integers(1, 9)),
            ]
            rows.append(f"{' '.join(draw.permutation(words))},{label}")
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session", params=["full", "head"])
def of_texts(request: pytest.FixtureRequest, train: Train, texts: Path) -> fedpriv.Run:
    """A run on the texts: of the whole encoder, or of layers on the features of a frozen one."""
    options: dict[str, Any] = {"encoder": "tiny", "tune": request.param, "lr": 0.003, "optimizer": "adam"}
    return train(method="fedavg", dataset=str(texts), clients=2, partition="iid", **options)
