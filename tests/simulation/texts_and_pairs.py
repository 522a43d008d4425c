"""Small federations of texts and of image-text pairs, from files that are written for them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from fedpriv.data.synthetic_pairs import write_pairs

_WORDS = {
    "greet": "hello hi morning evening dear friend",
    "leave": "bye so later farewell leaving going",
    "ask": "what why how where who when",
    "thank": "thanks grateful kind nice appreciated helpful",
}
_COMMON = ["the", "a", "of", "on", "in", "it"]

METHODS = ["fedavg", "simprox", "mpfedcon", "moon", "fedbn", "scaffold", "apfl"]


def write_texts(path: Path, count: int = 120, seed: int = 0) -> Path:
    """A CSV of texts of four intents, told by half of their words; some are long."""
    draw = random.Random(seed)
    rows = []
    for place in range(count):
        intent = list(_WORDS)[place % 4]
        words = draw.choices(_WORDS[intent].split(), k=3) + draw.choices(_COMMON, k=draw.choice([1, 3, 12]))
        draw.shuffle(words)
        rows.append(f"{' '.join(words)},{intent}")
    path.write_text("text,intent\n" + "\n".join(rows) + "\n")
    return path


def texts(path: Path, **overrides: Any) -> dict[str, Any]:
    """Settings of a run on such a file, for :func:`tests.simulation.small.settings`."""
    usual = {
        "data.name": str(path),
        "data.clients": 4,
        "data.partition.name": "iid",
        "data.partition.test": "disjoint",
        "model.encoder": "tiny",
        "train.participation": 0.5,
        "train.batch_size": 8,
        "train.rounds": 2,
        "train.local_epochs": 1,
    }
    return {**usual, **overrides}


def pairs_folder(path: Path) -> Path:
    """A folder of synthetic pairs, 16 pixels a side."""
    write_pairs(path, train=80, test=40, size=16)
    return path


@contextmanager
def narrow_fusion() -> Iterator[None]:
    """A block in which a net of pairs has 40,000 parameters, not a million: each modality 32 features."""
    names = ("fedpriv.models.pairs.fusion.WIDTH", "fedpriv.simulation.inputs.pairs.WIDTH")
    with mock.patch(names[0], 32), mock.patch(names[1], 32):
        yield


def pairs(path: Path, **overrides: Any) -> dict[str, Any]:
    """Settings of a run on them: of five clients two have no texts and one no images."""
    usual = {
        "data.clients": 5,
        "data.image_only": 0.4,
        "data.text_only": 0.2,
        "model.backbone": "moon_cnn",
        "model.pretrained": False,
        "train.participation": 1.0,
    }
    return texts(path, **{**usual, **overrides})
