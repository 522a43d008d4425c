"""Synthetic image-text pairs in the classes of the Damage Multimodal Dataset, for tests and demonstrations.

An image is a hazy scene, the same for all classes, with a disc in its class's colour and stripes over it, of random contrast. A
text consists of common and invented words, with a few of its class's or, misleadingly, of another class's. So neither modality
always determines the class, and both together are more informative.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.dataset import Opened, Texts
from fedpriv.data.disaster import PUBLISHED
from fedpriv.errors import UsageError

CLASSES = tuple(PUBLISHED)
_PRIOR = np.array([sum(parts) for parts in PUBLISHED.values()], dtype=np.float64) / sum(map(sum, PUBLISHED.values()))
_FEWEST = int(np.ceil(1 / _PRIOR.min()))  # smallest number of pairs with at least one of each class


class _Look(NamedTuple):
    """Colour (red, green, blue on [0, 1]), direction of the stripes in degrees, and stripes across the image."""

    colour: tuple[float, float, float]
    angle: float
    stripes: float


_LOOKS = {
    "damaged_infrastructure": _Look((0.35, 0.30, 0.35), 0, 6),
    "damaged_nature": _Look((0.35, 0.60, 0.15), 45, 5),
    "fires": _Look((1.00, 0.50, 0.05), 90, 4),
    "flood": _Look((0.15, 0.40, 0.80), 0, 3),
    "human_damage": _Look((0.75, 0.20, 0.30), 135, 2),
    "non_damage": _Look((0.90, 0.85, 0.65), 90, 1),
}
_WORDS = {
    "damaged_infrastructure": "bridge wall roof collapsed cracked concrete debris tower",
    "damaged_nature": "tree fallen branches landslide coast soil forest debris",
    "fires": "fire smoke flames burning ash heat forest orange",
    "flood": "water river flooded boat rain rising mud coast",
    "human_damage": "injured rescue ambulance stretcher hospital bandage helper tower",
    "non_damage": "garden lunch museum holiday sunny painting bicycle river",
}
_COMMON = "today the near old town people street photo view from again road some city after morning"
_SYLLABLES = "ba ko mi ru ta ven zo lar pi dus"


@dataclass(frozen=True)
class SyntheticSplit:
    """One split, in the order of its classes; pair i depends only on seed, name, i and its class.

    Attributes:
        name: ``train`` or ``test``.
        count: number of pairs, at least 25, so that each class has one; class shares are those of the Damage Multimodal Dataset.
        size: pixels a side.

    Raises:
        UsageError: too few pairs.
    """

    name: str
    count: int
    size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < _FEWEST:
            raise UsageError(f"{self.count} {self.name} pairs leave a class without any; use at least {_FEWEST}")

    @property
    def labels(self) -> NDArray[np.int64]:
        """``(count,)``, ascending."""
        ends = np.round(np.cumsum(_PRIOR) * self.count).astype(int)
        return np.repeat(np.arange(len(CLASSES)), np.diff(ends, prepend=0))

    def images(self) -> Iterator[NDArray[np.uint8]]:
        """RGB, each ``(size, size, 3)``."""
        return (_image(CLASSES[label], self.size, self._rng(place, 0)) for place, label in enumerate(self.labels))

    def texts(self) -> Iterator[str]:
        """Texts of 10 to 14 words, the first two of which mark them as synthetic."""
        return (_text(CLASSES[label], self._rng(place, 1)) for place, label in enumerate(self.labels))

    def _rng(self, place: int, half: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *self.name.encode(), place, half])


def open_synthetic(train: int = 1200, test: int = 200, size: int = 32, seed: int = 0) -> Opened:
    """The pairs in memory, drawn on access; the same as :func:`write_pairs` writes."""
    splits = SyntheticSplit("train", train, size, seed), SyntheticSplit("test", test, size, seed)

    def images(side: int | None) -> tuple[Tensor, Tensor]:
        first, second = (_images(replace(split, size=side or size)) for split in splits)  # the same scenes, rendered at that size
        return first, second

    def texts() -> tuple[Texts, Texts]:
        return _texts(splits[0]), _texts(splits[1])

    return Opened(splits[0].labels, splits[1].labels, CLASSES, images, texts)


@lru_cache(2)
def _images(split: SyntheticSplit) -> Tensor:
    """``(n, 3, size, size)``; drawn once a process, not to be written to."""
    return torch.from_numpy(np.stack(list(split.images())).transpose(0, 3, 1, 2).copy())


@lru_cache(2)
def _texts(split: SyntheticSplit) -> Texts:
    return tuple(split.texts())


def write_pairs(folder: Path, train: int = 1200, test: int = 200, size: int = 32, seed: int = 0) -> None:
    """Write the pairs atomically, in the layout that :func:`fedpriv.data.disaster.open_pairs` reads.

    Raises:
        UsageError: the folder is not empty or cannot be written, or there are too few pairs.
    """
    import PIL.Image

    splits = SyntheticSplit("train", train, size, seed), SyntheticSplit("test", test, size, seed)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; name a new one")
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
            new = Path(beside) / "pairs"
            for split in splits:
                for cls in CLASSES:
                    for half in ("images", "text"):
                        (new / split.name / cls / half).mkdir(parents=True)
                for place, (label, image, text) in enumerate(zip(split.labels, split.images(), split.texts(), strict=True)):
                    stem, home = f"synthetic_{place:06}", new / split.name / CLASSES[label]
                    PIL.Image.fromarray(image).save(home / "images" / f"{stem}.png")
                    (home / "text" / f"{stem}.txt").write_text(text + "\n", encoding="utf-8")
            (new / "README.txt").write_text(_readme(train, test, size, seed), encoding="utf-8")
            os.replace(new, folder)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from None


def _readme(train: int, test: int, size: int, seed: int) -> str:
    return (
        "Synthetic image-text pairs. The images are computed patterns and the texts random words: no photographs, no posts of\n"
        "people. The classes' names and shares are those of the Damage Multimodal Dataset (Mouzannar et al. 2018), of whose\n"
        "samples none is here. For tests and demonstrations; results on them say nothing about real disasters.\n\n"
        f"Made by: fedpriv data synthesise FOLDER --train {train} --test {test} --size {size} --seed {seed}\n"
    )


def _image(cls: str, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    look = _LOOKS[cls]
    across, down = np.meshgrid(*[(np.arange(size) + 0.5) / size] * 2)
    sky, ground = rng.uniform(0.4, 0.7, (2, 3))
    scene = sky + (ground - sky) * down[..., None]
    angle = np.deg2rad(look.angle + rng.normal(0, 10))
    wave = np.sin(2 * np.pi * (look.stripes * (across * np.cos(angle) + down * np.sin(angle)) + rng.uniform()))
    (x, y), radius = rng.uniform(0.3, 0.7, 2), rng.uniform(0.25, 0.45)
    # Below zero, as for a quarter of the images, the class is not visible at all.
    strength = max(0.0, rng.uniform(-0.3, 0.9))
    veil = strength * (np.hypot(across - x, down - y) < radius)[..., None]
    colour = np.array(look.colour) + rng.normal(0, 0.08, 3)
    shown = scene * (1 - veil) + veil * colour * (1 + 0.4 * wave[..., None]) + rng.normal(0, 0.08, scene.shape)
    pixels: NDArray[np.uint8] = (np.clip(shown, 0, 1) * 255).round().astype(np.uint8)
    return pixels


def _text(cls: str, rng: np.random.Generator) -> str:
    words = ["synthetic", "post"]
    for kind in rng.choice(4, rng.integers(8, 13), p=[0.22, 0.06, 0.57, 0.15]):
        if kind == 0:
            words.append(rng.choice(_WORDS[cls].split()))
        elif kind == 1:
            words.append(rng.choice(_WORDS[CLASSES[rng.integers(len(CLASSES))]].split()))
        elif kind == 2:
            words.append(rng.choice(_COMMON.split()))
        else:
            words.append("".join(rng.choice(_SYLLABLES.split(), 3)))
    return " ".join(words)
