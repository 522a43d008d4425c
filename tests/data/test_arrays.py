"""Samples that are arrays of floats, such as time series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

import fedpriv
from fedpriv.config import DataConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_data
from fedpriv.data.user_data.objects import name_of
from fedpriv.errors import UsageError

DRAW = np.random.default_rng(0)
SERIES = (DRAW.normal(size=(60, 3, 16)) * [[1], [50], [0]] + [[0], [1000], [7]]).astype(np.float32)
LABELS = np.arange(60) % 2


def loaded(data: Any) -> Dataset:
    return load_data(DataConfig(name=str(name_of(data))))


def expected(train: Any, values: Any) -> Any:
    """Channel by channel; the third is constant."""
    parts = [(values[:, c] - train[:, c].astype(float).mean()) / (train[:, c].astype(float).std() or 1) for c in range(3)]
    return np.stack(parts, 1)


def test_series_are_standardised_by_channel() -> None:
    found = loaded({"train": (SERIES[:40], LABELS[:40]), "test": (SERIES[40:], LABELS[40:])})
    assert found.vectors is not None and found.input_shape == (3, 16) and found.default_model == "mlp"
    assert np.allclose(found.vectors[0], expected(SERIES[:40], SERIES[:40]), atol=1e-4)
    assert np.allclose(found.vectors[1], expected(SERIES[:40], SERIES[40:]), atol=1e-4)
    assert any("the samples are arrays of shape (3, 16)" in line for line in found.notes)


def test_forms_of_the_same_series(tmp_path: Path) -> None:
    name = name_of((SERIES, LABELS))
    pairs = [(torch.from_numpy(one), int(label)) for one, label in zip(SERIES, LABELS, strict=True)]
    assert name == name_of((torch.from_numpy(SERIES), LABELS)) == name_of(pairs) == name_of((list(SERIES), LABELS.tolist()))
    kind = datasets.Features(
        {"x": datasets.Array2D((3, 16), "float32"), "label": datasets.Value("int64"), "n": datasets.Value("int64")}
    )
    rows = datasets.Dataset.from_dict({"x": list(SERIES), "label": LABELS, "n": LABELS}, features=kind)
    rows.to_parquet(tmp_path / "a.parquet")
    for given in (tmp_path / "a.parquet", name_of(rows)):
        found = load_data(DataConfig(name=str(given)))
        assert found.hash == loaded((SERIES, LABELS)).hash and any(line.endswith("not used: n") for line in found.notes)
    clients = loaded([(SERIES[:20], LABELS[:20]), (SERIES[20:], LABELS[20:])])
    assert clients.owners is not None and clients.owners.names == ("0", "1") and clients.input_shape == (3, 16)
    assert loaded((SERIES.astype(np.float64), LABELS)).input_shape == (3, 16)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 6), (2, 3, 4, 5), (2, 2, 3, 4, 5)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert loaded((DRAW.normal(size=(20, *shape)), LABELS[:20])).input_shape == shape


def test_thin_series_are_no_images() -> None:
    for channels in (1, 2, 3):
        found = loaded((DRAW.random((20, channels, 30)), LABELS[:20]))
        assert found.images is None and found.input_shape == (channels, 30)


def test_images_stay_images() -> None:
    for shape in ((8, 9), (1, 8, 9), (3, 8, 9), (8, 9, 3)):
        images = DRAW.random((20, *shape))
        assert loaded((images, LABELS[:20])).images is not None
    for normalised in (DRAW.normal(size=(20, 3, 8, 9)), DRAW.normal(size=(20, 8, 9, 1))):
        with pytest.raises(UsageError, match=r"images are uint8, or floats in \[0, 1\].* leave out what normalises them"):
            name_of((normalised, LABELS[:20]))
    with pytest.raises(UsageError, match=r"images are uint8, or floats in \[0, 1\]"):
        name_of(((SERIES * 100).astype(np.int16), LABELS))


def with_nan() -> Any:
    odd = SERIES.copy()
    odd[7, 1, 3] = np.nan
    return odd


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ((with_nan(), LABELS), r"the given data \(train\), row 7 \(from 0\): column 'x' holds a NaN or an infinity"),
        (
            {"train": (SERIES, LABELS), "test": (SERIES[:, :, :9], LABELS)},
            r"samples of shape \(16,\) in train and \(9,\) in test; bring them to one shape",
        ),
        (
            {"train": (SERIES, LABELS), "test": (SERIES[:, :1], LABELS)},
            r"the given data \(test\): column 'x' is of shape \(1, 16\), in training \(3, 16\)",
        ),
        ([(SERIES, LABELS), (SERIES[:, :1], LABELS)], "clients 0 and 1 have arrays of other shapes or types in column 'x'"),
        (([SERIES[0], SERIES[1, :, :9]], [0, 1]), "samples of several shapes"),
    ],
)
def test_series_that_are_refused(data: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        loaded(data)


OWN = """
from torch import nn


class Net(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(input_shape[0], 8, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten())
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.encoder(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "own"])
@pytest.mark.filterwarnings("ignore")
def test_a_net_learns_from_series(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which frequency a noisy wave is."""
    (tmp_path / "nets_of_series.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    labels = np.arange(300) % 2
    times, phases = np.arange(32) / 32, DRAW.uniform(0, 6, (300, 1, 1))
    waves = np.sin(2 * np.pi * (2 + 4 * labels[:, None, None]) * times + phases).repeat(2, 1) + DRAW.normal(size=(300, 2, 32)) / 2
    keys: dict[str, Any] = {"partition": "iid", "clients": 3, "rounds": 12, "lr": 0.1, "tracking_uri": "none"}
    name = "mlp" if model == "mlp" else "nets_of_series:Net"
    run = fedpriv.train(dataset=(waves, labels), method="fedavg", model=name, runs_dir=tmp_path, **keys)
    assert run.accuracy > 0.8 and run.config.model.name == name
