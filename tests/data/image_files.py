"""Small data sets on disk, in the formats of the real ones."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import PIL.Image

from fedpriv.config import DataConfig
from fedpriv.data.dataset import Opened
from fedpriv.data.sources import open_data

CLASSES = ("cat", "dog", "owl")


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    PIL.Image.fromarray(image).save(content, kind)
    return content.getvalue()


def write_parquet(
    path: Path,
    images: Sequence[np.ndarray],
    labels: Sequence[int],
    image: str = "image",
    label: str = "label",
    names: Sequence[str] = CLASSES,
) -> None:
    """As the hub has them: image bytes under the `Image` feature, labels under `ClassLabel`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {image: [{"bytes": encoded(one), "path": None} for one in images], label: list(labels)}
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(names=list(names))})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)


def write_folder(folder: Path, images: Sequence[np.ndarray], labels: Sequence[int], names: Sequence[str] = CLASSES) -> None:
    for place, (one, label) in enumerate(zip(images, labels, strict=True)):
        file = folder / names[label] / f"{place:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(one).save(file)


def load_labels(name: str, data_dir: Path | None = None, limit: int | None = None) -> Opened:
    """A data set whose samples are read on access."""
    return open_data(DataConfig(name=name, dir=data_dir, limit=limit))
