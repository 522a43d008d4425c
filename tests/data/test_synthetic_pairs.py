from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from click.testing import CliRunner
from image_files import load_labels
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import avg_pool2d

from fedpriv.cli import main
from fedpriv.data.disaster import PUBLISHED
from fedpriv.data.sources import load_dataset, sources
from fedpriv.data.synthetic_pairs import open_synthetic, write_pairs
from fedpriv.errors import UsageError


@pytest.mark.slow
def test_by_name() -> None:
    loaded = load_dataset("disaster_synthetic")
    assert loaded.train_images.shape == (1200, 3, 32, 32) and loaded.test_images.shape == (200, 3, 32, 32)
    assert loaded.classes == tuple(sorted(PUBLISHED)) and loaded.default_model == "fusion"
    share = np.array([sum(parts) for parts in PUBLISHED.values()]) / 5831
    for labels in (loaded.train_labels, loaded.test_labels):
        assert (abs(np.bincount(labels) - share * len(labels)) < 1).all()
    assert len(loaded.mean) == len(loaded.std) == 3 and 0.4 < min(loaded.mean) < max(loaded.mean) < 0.7
    assert load_dataset("disaster_synthetic", limit=100, image_size=8).train_images.shape == (100, 3, 8, 8)


def test_nothing_passes_for_real() -> None:
    opened = open_synthetic(60, 60)
    assert opened.texts is not None
    texts = [text for split in opened.texts() for text in split]
    assert all(text.startswith("synthetic post ") and 10 <= len(text.split()) <= 14 for text in texts)
    assert "synthetic" in sources()["disaster_synthetic"].about


def test_a_seed_is_a_data_set() -> None:
    one, again, other = (open_synthetic(40, 30, seed=seed) for seed in (0, 0, 1))
    for opened in (one, again, other):
        assert opened.images is not None and opened.texts is not None
    drawn = [(*opened.images(None), *opened.texts()) for opened in (one, again, other)]  # type: ignore[misc]
    assert all(torch.equal(a, b) for a, b in zip(drawn[0][:2], drawn[1][:2], strict=True)) and drawn[0][2:] == drawn[1][2:]
    assert not torch.equal(drawn[0][0], drawn[2][0]) and not set(drawn[0][2]) & set(drawn[2][2])
    assert not set(drawn[0][2]) & set(drawn[0][3])  # the test pairs are none of the training pairs
    # For good: a new release must not change what the name stands for.
    assert drawn[0][2][0] == "synthetic post some road rurular rubata some concrete from bridge photo town"
    assert drawn[0][0][0].float().mean().item() == pytest.approx(143.827, abs=0.05)


@pytest.mark.slow
def test_both_halves_together_tell_more_than_either() -> None:
    opened = open_synthetic(1200, 600)
    assert opened.images is not None and opened.texts is not None
    pooled = [avg_pool2d(images.float(), 4).flatten(1).numpy() for images in opened.images(None)]
    counts = CountVectorizer(binary=True, min_df=3)
    texts = opened.texts()
    scale = StandardScaler().fit(pooled[0])
    seen = [0.3 * scale.transform(images) for images in pooled]
    read = [counts.fit_transform(texts[0]).toarray(), counts.transform(texts[1]).toarray()]
    labels = opened.train_labels, opened.test_labels

    def accuracy(train: np.ndarray, test: np.ndarray, taught: np.ndarray = labels[0]) -> float:
        return float(LogisticRegression(max_iter=2000).fit(train, taught).score(test, labels[1]))

    together = [np.hstack(halves) for halves in zip(seen, read, strict=True)]
    image, text, both = (accuracy(train, test) for train, test in (seen, read, together))
    majority = np.bincount(labels[1]).max() / 600
    assert majority < 0.52 and 0.68 < image < 0.85 and 0.78 < text < 0.92 and both > 0.9
    assert both > max(image, text) + 0.02
    # Control: what was learnt from labels at random is worth no more than the majority.
    assert accuracy(read[0], read[1], np.random.default_rng(0).permutation(labels[0])) < majority + 0.03


def test_the_written_folder_holds_the_same_pairs(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", 60, 30, 16, seed=3)
    written, drawn = load_dataset(str(tmp_path / "pairs")), open_synthetic(60, 30, 16, seed=3)
    assert drawn.images is not None and drawn.texts is not None
    images = drawn.images(None)
    assert torch.equal(written.train_images, images[0]) and torch.equal(written.test_images, images[1])
    assert written.texts == drawn.texts() and written.classes == drawn.classes
    assert np.array_equal(written.train_labels, drawn.train_labels) and np.array_equal(written.test_labels, drawn.test_labels)
    assert "Synthetic" in (tmp_path / "pairs" / "README.txt").read_text()
    assert all(file.stem.startswith("synthetic") for file in (tmp_path / "pairs").glob("*/*/*/*"))


def test_a_whole_folder_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep me")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(UsageError, match=f"{name} exists"):
            write_pairs(tmp_path / name, 30, 30, 8)
    write_pairs(tmp_path / "empty", 30, 30, 8)
    assert len(load_labels(str(tmp_path / "empty")).train_labels) == 30

    saved, save = 0, PIL.Image.Image.save

    def full_disk(*arguments: object, **options: object) -> None:
        nonlocal saved
        saved += 1
        if saved > 40:
            raise OSError(28, "No space left on device")
        save(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PIL.Image.Image, "save", full_disk)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"cannot write .*new: No space left"):
        write_pairs(tmp_path / "new", 30, 30, 8)
    assert saved == 41 and sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep me"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["data", "synthesise", *arguments])
    assert result.exit_code == code and "Traceback" not in result.output, result.output
    return result.output


def test_command(tmp_path: Path) -> None:
    folder = str(tmp_path / "new" / "pairs")
    said = run(folder, "--train", "40", "--test", "25", "--size", "8", "--seed", "2", "--json")
    assert json.loads(said.splitlines()[-1])["synthetic"] and "all synthetic" in said
    assert load_dataset(folder).train_images.shape == (40, 3, 8, 8)
    assert "exists and is not an empty folder" in run(folder, code=2)
    assert "24 train pairs leave a class without any; use at least 25" in run(str(tmp_path / "few"), "--train", "24", code=2)
    assert "cannot write" in run("/proc/no/pairs", code=2)
    assert not (tmp_path / "few").exists()
