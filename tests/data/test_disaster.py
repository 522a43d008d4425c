from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from image_files import encoded, load_labels, pixels, write_folder

from fedpriv.data.disaster import PUBLISHED, holds_pairs
from fedpriv.data.sources import load_dataset
from fedpriv.errors import FedprivError, UsageError


def write_pairs(root: Path, counts: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Pairs whose text names class and place; returns the images by text."""
    written = {}
    for cls, count in counts.items():
        for half in ("images", "text"):
            (root / cls / half).mkdir(parents=True)
        for place, image in enumerate(pixels(count, 6, 5, 3, seed=seed)):
            stem = f"{cls}_2017-08-27_14-{place:02}."  # a name may end in a dot
            PIL.Image.fromarray(image).save(root / cls / "images" / f"{stem}.png")
            (root / cls / "text" / f"{stem}.txt").write_text(f" {cls} {place} ☂\n", encoding="utf-8")
            written[f"{cls} {place} ☂"] = image
    return written


def test_image_text_and_label_of_a_pair_stay_together(tmp_path: Path) -> None:
    written = write_pairs(tmp_path / "mine", {"storm": 20, "calm": 30})
    (tmp_path / "mine" / "calm" / "text" / "._calm_1.txt").touch()  # as macOS leaves them
    (tmp_path / "mine" / "README.txt").touch()
    loaded = load_dataset(str(tmp_path / "mine"))
    assert loaded.classes == ("calm", "storm") and loaded.default_model == "fusion" and loaded.input_shape == (3, 6, 5)
    assert loaded.images is not None and loaded.texts is not None
    seen = []
    for images, texts, labels in zip(loaded.images, loaded.texts, (loaded.train_labels, loaded.test_labels), strict=True):
        for image, text, label in zip(images, texts, labels, strict=True):
            assert np.array_equal(image.permute(1, 2, 0), written[text]) and text.startswith(loaded.classes[label])
            seen.append(text)
    assert sorted(seen) == sorted(written)
    assert torch.bincount(loaded.test_labels).tolist() == [3, 2]  # a tenth of each class


def test_labels_are_read_without_the_samples(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"calm": 10, "storm": 10})
    for file in tmp_path.glob("*/*/*"):
        file.write_bytes(b"\xff\xfe never read")
    assert np.bincount(load_labels(str(tmp_path)).train_labels).tolist() == [9, 9]


@pytest.mark.slow
def test_the_published_counts_give_the_published_split(tmp_path: Path) -> None:
    for cls, (train, test) in PUBLISHED.items():
        for half, suffix in (("images", "jpg"), ("text", "txt")):
            (tmp_path / "medic" / cls / half).mkdir(parents=True)
            for place in range(train + test):
                (tmp_path / "medic" / cls / half / f"{place}.{suffix}").touch()
    opened = load_labels("medic", tmp_path)
    assert opened.classes == tuple(sorted(PUBLISHED))
    assert len(opened.train_labels) == 5247 and len(opened.test_labels) == 584
    assert [*zip(np.bincount(opened.train_labels), np.bincount(opened.test_labels), strict=True)] == [*PUBLISHED.values()]
    assert opened.notes == ["there is no test split: the published number of pairs of each class is held out"]
    by_path = load_labels(str(tmp_path / "medic"))
    assert np.array_equal(by_path.test_labels, opened.test_labels)
    # Another number of pairs is another data set: a tenth of each class.
    for half, suffix in (("images", "jpg"), ("text", "txt")):
        (tmp_path / "medic" / "fires" / half / f"7.{suffix}").unlink()
    assert np.bincount(load_labels("medic", tmp_path).test_labels).tolist() == [139, 51, 34, 38, 24, 296]


@pytest.mark.parametrize("name", ["test", "valid"])
def test_splits_of_their_own(tmp_path: Path, name: str) -> None:
    write_pairs(tmp_path / "train", {"calm": 4, "flood": 3, "storm": 5})
    write_pairs(tmp_path / name, {"calm": 1, "storm": 2}, seed=1)  # no flood: the other classes keep their numbers
    opened = load_labels(str(tmp_path))
    assert opened.train_labels.tolist() == [0] * 4 + [1] * 3 + [2] * 5 and opened.test_labels.tolist() == [0, 2, 2]
    assert opened.notes == [] and opened.texts is not None and opened.texts()[1] == ("calm 0 ☂", "storm 0 ☂", "storm 1 ☂")
    write_pairs(tmp_path / name, {"quake": 1})
    with pytest.raises(UsageError, match=rf"{name}/quake: .*train"):
        load_labels(str(tmp_path))


def test_a_training_split_alone_is_divided(tmp_path: Path) -> None:
    write_pairs(tmp_path / "train", {"calm": 20, "storm": 10})
    opened = load_labels(str(tmp_path))
    assert np.bincount(opened.train_labels).tolist() == [18, 9] and np.bincount(opened.test_labels).tolist() == [2, 1]
    assert opened.notes == ["there is no test split: a fixed tenth of each class is held out"]


def test_files_without_their_other_half_are_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"calm": 12, "storm": 3})
    for file in sorted((tmp_path / "calm" / "text").iterdir())[:5]:
        file.unlink()
    (tmp_path / "storm" / "text" / "lost.txt").write_text("where is my picture?")
    with pytest.raises(UsageError) as caught:
        load_labels(str(tmp_path))
    said = str(caught.value)
    assert "5 images without their text (calm/images/calm_2017-08-27_14-00..png, " in said and "14-03" not in said
    assert "1 texts without their image (storm/text/lost.txt)" in said and "\n" not in said


def test_two_images_of_one_name(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"calm": 3})
    image = next((tmp_path / "calm" / "images").iterdir())
    image.with_suffix(".jpg").write_bytes(image.read_bytes())
    with pytest.raises(UsageError, match=r"keep one of them"):
        load_labels(str(tmp_path))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"calm": 20})
    opened = load_labels(str(tmp_path))
    text, image = (sorted((tmp_path / "calm" / half).iterdir())[4] for half in ("text", "images"))
    for content, error, says in (
        (b"\xef\xbb\xbf \n", UsageError, "is empty"),
        (b"caf\xe9", FedprivError, "cannot read the text"),
    ):
        text.write_bytes(content)
        with pytest.raises(error, match=says) as caught:
            opened.texts and opened.texts()
        assert str(text) in str(caught.value)
    image.write_bytes(image.read_bytes()[:40])
    with pytest.raises(FedprivError, match="cannot decode") as caught:
        opened.images and opened.images(None)
    assert str(image) in str(caught.value)


@pytest.mark.parametrize("missing", ["images", "text"])
def test_a_class_folder_without_one_half(tmp_path: Path, missing: str) -> None:
    write_pairs(tmp_path, {"calm": 3, "storm": 0})
    (tmp_path / "storm" / missing).rmdir()
    with pytest.raises(UsageError, match=r"storm has not both images/ and text/"):
        load_labels(str(tmp_path))


def test_a_folder_of_images_is_none_of_pairs(tmp_path: Path) -> None:
    write_folder(tmp_path / "cats", list(pixels(30, 6, 5, 3)), [0, 1, 2] * 10)
    assert not holds_pairs(tmp_path / "cats") and load_labels(str(tmp_path / "cats")).texts is None
    write_pairs(tmp_path / "pairs", {"calm": 1})
    assert holds_pairs(tmp_path / "pairs")


def test_the_pairs_by_the_name_of_the_paper(tmp_path: Path) -> None:
    write_pairs(tmp_path / "medic", {"fires": 10, "flood": 10})
    loaded = load_dataset("medic", tmp_path, image_size=16)
    assert loaded.name == "medic" and loaded.default_model == "fusion" and loaded.mean == (0.485, 0.456, 0.406)
    assert loaded.input_shape == (3, 16, 16) and loaded.suggests["data.image_size"] == 224
    for folder in (None, tmp_path / "medic"):
        with pytest.raises(UsageError, match=r"id 456.*medic_damage_severity.*disaster_synthetic needs no download"):
            load_labels("medic", folder)


def test_disaster_as_tables(tmp_path: Path) -> None:
    def write(name: str, **columns: list[object]) -> None:
        features = datasets.Features({"image": datasets.Image(), "tweet_text": datasets.Value("string"),
                                      "label": datasets.ClassLabel(names=["fires", "flood"])})  # fmt: skip
        kept = datasets.Features({column: features[column] for column in columns})
        datasets.Dataset.from_dict(columns, features=kept).to_parquet(tmp_path / "medic" / f"{name}.parquet")

    (tmp_path / "medic").mkdir()
    images: list[object] = [{"bytes": encoded(one), "path": None} for one in pixels(4, 6, 5, 3)]
    for split in ("train", "test"):
        write(split, image=images, tweet_text=["a", "b", "c", "d"], label=[0, 1, 0, 1])
    loaded = load_dataset("medic", tmp_path, image_size=8)
    assert loaded.texts == (("a", "b", "c", "d"),) * 2 and loaded.test_labels.tolist() == [0, 1, 0, 1]
    write("train", image=images, label=[0, 1, 0, 1])
    with pytest.raises(UsageError, match=r"train\.parquet has no text column; medic is image-text pairs"):
        load_labels("medic", tmp_path)
