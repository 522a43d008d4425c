"""Files as strangers have them: what would be read wrongly without a word is read rightly, or said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset

from fedpriv.config import DataConfig
from fedpriv.data.partitions.partition import make_partition
from fedpriv.data.sources import load_data, load_dataset
from fedpriv.data.user_data.objects import name_of
from fedpriv.errors import UsageError


def named(names: list[str], values: list[str]) -> datasets.Dataset:
    """A row for each value, whose feature is its place in the alphabet; the classes are numbered in the order of ``names``."""
    kind = datasets.Features({"x": datasets.Value("float64"), "label": datasets.ClassLabel(names=names)})
    rows = {"x": [float(ord(value[0])) for value in values], "label": [names.index(value) for value in values]}
    return datasets.Dataset.from_dict(rows, features=kind)


class Folder(TorchDataset[Any]):
    """As torchvision's ImageFolder: items with numbers, and the names of the classes."""

    def __init__(self, names: list[str], values: list[str]) -> None:
        self.classes, self.values = names, values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, item: int) -> tuple[Any, int]:
        if item >= len(self):
            raise IndexError
        return torch.full((1, 4, 4), ord(self.values[item][0]) / 255), self.classes.index(self.values[item])


@pytest.mark.parametrize("made", [named, Folder])
def test_classes_are_read_by_their_names(made: Any) -> None:
    """A test split without one class, or with the classes in another order, numbers them otherwise."""
    train = made(["a", "b", "c"], ["a", "b", "c"] * 4)
    for names in (["a", "c"], ["c", "a"], ["c", "b", "a"]):
        found = load_dataset(str(name_of({"train": train, "test": made(names, ["c", "a", "c"])})))
        assert found.classes == ("a", "b", "c") and found.test_labels.tolist() == [2, 0, 2]
    with pytest.raises(UsageError, match=r"row 1 \(from 0\): label 'd' in y is none of the 3 classes"):
        load_dataset(str(name_of({"train": train, "test": made(["a", "d"], ["a", "d"])})))


def test_names_and_texts_are_the_same_classes(tmp_path: Path) -> None:
    named(["b", "a"], ["a", "b"] * 6).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "test.csv").write_text("x,label\n97,a\n98, b\n")
    found = load_dataset(str(tmp_path))
    assert found.classes == ("b", "a") and found.test_labels.tolist() == [1, 0]
    (tmp_path / "train.parquet").unlink()
    (tmp_path / "test.csv").unlink()
    (tmp_path / "train.csv").write_text("x,label\n" + "97,a\n98,b \n" * 6)
    named(["b", "a"], ["a", "a", "b"]).to_parquet(tmp_path / "test.parquet")
    found = load_dataset(str(tmp_path))
    assert found.classes == ("a", "b") and found.test_labels.tolist() == [0, 0, 1]


def test_numbers_with_leading_zeros_are_names(tmp_path: Path) -> None:
    def write(name: str, *labels: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x,label\n" + "".join(f"{i % 7}.5,{label}\n" for i, label in enumerate(labels * 6)))
        return file

    assert load_dataset(str(write("mixed.csv", "01", "1", "2"))).classes == ("01", "1", "2")
    assert load_dataset(str(write("plain.csv", "0", " 1", "10", "2"))).classes == tuple(map(str, range(11)))
    assert load_dataset(str(write("floats.csv", "0.5", "0.0"))).classes == ("0.0", "0.5")
    write("splits/train.csv", "01", "02", "10")
    write("splits/test.csv", "10")  # which alone would be a number
    found = load_dataset(str(tmp_path / "splits"))
    assert found.classes == ("01", "02", "10") and set(found.test_labels.tolist()) == {2}
    write("clients/north/train.csv", "01", "10")
    write("clients/south/train.csv", "10", "11")
    assert load_dataset(str(tmp_path / "clients")).classes == ("01", "10", "11")
    write("splits/test.csv", "1")
    with pytest.raises(UsageError, match=r"test\.csv, line 2: label 1 in column 'label' is none of the 3 classes: 01, 02, 10$"):
        load_dataset(str(tmp_path / "splits"))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("floats", ["train", "test"])
def test_whole_floats_beside_integers_are_the_same_classes(floats: str, suffix: str, tmp_path: Path) -> None:
    def write(split: str, *labels: float) -> None:
        rows = datasets.Dataset.from_dict({"x": [i + 0.5 for i in range(len(labels))], "label": labels})
        rows.to_csv(tmp_path / f"{split}.csv") if suffix == "csv" else rows.to_parquet(tmp_path / f"{split}.parquet")

    for split in ("train", "test"):
        write(split, *(float(label) if split == floats else label for label in (2, 0, 1, 0)))
    found = load_dataset(str(tmp_path))
    assert found.classes == ("0", "1", "2") and found.train_labels.tolist() == found.test_labels.tolist() == [2, 0, 1, 0]
    write(floats, 0.0, 1.5, 2.0)
    with pytest.raises(UsageError, match=rf"{floats}\.{suffix}, .*: label 1\.5 in column .* is none of the 3 classes: 0, 1, 2$"):
        load_dataset(str(tmp_path))


def test_files_of_one_split_with_other_classes_are_refused(tmp_path: Path) -> None:
    named(["a", "b"], ["a", "b"] * 6).to_parquet(tmp_path / "one.parquet")
    named(["b", "a"], ["a", "b"] * 6).to_parquet(tmp_path / "two.parquet")
    with pytest.raises(UsageError, match=r"two\.parquet and .*one\.parquet have other classes in column 'label'"):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("value", ["NA", "NaN", "null"])
def test_a_class_or_client_that_looks_like_a_missing_value_is_said(value: str, tmp_path: Path) -> None:
    names = "north", "south", value
    lines = "".join(f"{i * 7 % 30}.5,{'ab'[i % 2]},{names[i % 3]}\n" for i in range(30))
    (tmp_path / "a.csv").write_text("x,kind,site\n" + lines)
    by_site = DataConfig(name=str(tmp_path / "a.csv"), label="kind", partition={"name": "by_column", "column": "site"})
    said = f"column 'site': '{value}' is read as a {{0}} of that name; leave out these rows if their {{1}} is missing"
    assert said.format("client", "client") in load_data(by_site).notes
    found = load_data(DataConfig(name=str(tmp_path / "a.csv"), label="site"))
    assert said.format("class", "label") in found.notes and len(found.classes) == 3
    assert not any("is missing" in line for line in load_data(DataConfig(name=str(tmp_path / "a.csv"), label="kind")).notes)


def test_names_in_several_spellings_are_said(tmp_path: Path) -> None:
    """They stay the classes, or clients, that they are."""
    names = ["Nein", "nein", "Caf\u00e9", "Cafe\u0301", "lung  cancer", "lung cancer", "plain", "x\u200b", "x"]
    lines = "".join(f"{i * 7 % 30}.5,{name},{'ab'[i % 2]}\n" for i, name in enumerate(names * 4))
    (tmp_path / "a.csv").write_text("x,kind,label\n" + lines, encoding="utf-8")
    pairs = [sorted(names[first : first + 2]) for first in (0, 2, 4, 7)]
    for data, what in (
        (DataConfig(name=str(tmp_path / "a.csv"), label="kind"), "classes"),
        (DataConfig(name=str(tmp_path / "a.csv"), partition={"name": "by_column", "column": "kind"}), "clients"),
    ):
        found = load_data(data)
        (line,) = [one for one in found.notes if one.startswith("column 'kind':")]
        assert f"are different {what}" in line and "plain" not in line
        assert all(f"{first!r} and {second!r}" in line for first, second in pairs)
        assert set(found.classes if what == "classes" else found.owners.names) == set(names)  # type: ignore[union-attr]
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "benign").rename(tmp_path / "photos" / "Malignant")
    assert any("'Malignant' and 'malignant' are different classes" in one for one in load_dataset(str(tmp_path / "photos")).notes)
    assert not any("are different cl" in one for one in load_data(DataConfig(name=str(tmp_path / "a.csv"))).notes)


def test_a_class_that_only_the_test_has_is_said(tmp_path: Path) -> None:
    for split, labels in (("train", "01"), ("test", "012")):
        (tmp_path / f"{split}.csv").write_text("x,label\n" + "".join(f"{i}.5,{label}\n" for i, label in enumerate(labels * 6)))
    found = load_dataset(str(tmp_path))
    assert any("no training sample has" in line and line.endswith(": 2") for line in found.notes)


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0", "", "number"])
def test_shuffled_row_numbers_are_no_feature(name: str, tmp_path: Path) -> None:
    """Of samples that were sorted by class, they give the label away."""
    order = np.random.default_rng(0).permutation(150)
    rows = {split: "".join(f"{i},{i % 7}.5,{'abc'[i // 50]}\n" for i in part) for split, part in
            (("train", order[:100]), ("test", order[100:]))}  # fmt: skip
    for split, text in rows.items():
        (tmp_path / f"{split}.csv").write_text(f"{name},x,label\n{text}")
    found = load_dataset(str(tmp_path))
    assert found.vectors is not None and found.vectors[0].shape == (100, 1)
    assert any(f"{name} (row numbers)" in line for line in found.notes)


def picture(path: Path, pixels: Any, mode: str, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels, mode).save(path, **options)


@pytest.mark.filterwarnings("ignore:.*mode.*:DeprecationWarning")
def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    for number in range(6):
        for value, cls in ((0, "black"), (128, "half")):
            pixels = np.zeros((8, 8, 4), dtype=np.uint8)
            pixels[2:4, :, 3] = 255 - value
            picture(tmp_path / cls / f"{number}.png", pixels, "RGBA")
    images = load_dataset(str(tmp_path)).train_images
    assert images.min() == 0 and images.max() == 255 and (images == 255).float().mean() == 0.75


def test_images_are_upright(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # held on its side: the first row is the right column
    for number in range(6):
        pixels = np.zeros((8, 8), dtype=np.uint8)
        pixels[0] = 255
        for cls, said in (("held", {"exif": exif}), ("plain", {})):
            path = tmp_path / cls / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            PIL.Image.fromarray(pixels).save(path, **said)  # type: ignore[arg-type]
    found = load_dataset(str(tmp_path))
    held, plain = (found.train_images[found.train_labels == cls][0, 0] for cls in (0, 1))
    assert (held[:, -1] == 255).all() and not held[:, :-1].any() and (plain[0] == 255).all()


def test_a_data_set_that_names_its_images_is_kept_with_them(tmp_path: Path) -> None:
    def made(value: int) -> datasets.Dataset:
        for number in range(10):
            PIL.Image.fromarray(np.full((4, 4), value + number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows = {"image": [str(tmp_path / f"{number}.png") for number in range(10)], "label": [0, 1] * 5}
        return datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())

    first = name_of(made(0))
    second = name_of(made(100))
    assert first != second
    assert load_dataset(str(first)).train_images.max() < 10 and load_dataset(str(second)).train_images.min() >= 100


def rows(path: Path, count: int, first: int = 0) -> None:
    """Whose features begin at ``first``, so that it shows which file a row is of."""
    named(["a", "b"], ["a", "b"] * (count // 2)).map(lambda row, i: {"x": float(first + i)}, with_indices=True).to_parquet(path)


@pytest.mark.parametrize(
    ("files", "train", "test", "unread", "held_out"),
    [
        (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"], 20, 10, None, False),
        (["train.parquet", "Test.parquet"], 10, 10, None, False),
        (["train.parquet", "holdout.parquet"], 8, 2, "holdout.parquet", True),
        (["train.parquet", "validation.parquet", "test.parquet"], 10, 10, "validation.parquet", False),
        (["one.parquet", "two.parquet"], 16, 4, None, True),
        (["train.PARQUET", "test.Parquet"], 10, 10, None, False),
    ],
)
def test_tables_of_a_folder(files: list[str], train: int, test: int, unread: str | None, held_out: bool, tmp_path: Path) -> None:
    for number, name in enumerate(files):
        rows(tmp_path / name, 10, 10 * number)
    found = load_dataset(str(tmp_path))
    assert (len(found.train_labels), len(found.test_labels)) == (train, test)
    said = " ".join(found.notes)
    assert (f"not read in {tmp_path}: {unread}" in said) if unread else "not read" not in said
    assert ("there is no test split" in said) == held_out


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        (["train-00000-of-00003.parquet"], "train-00001-of-00003.parquet, train-00002-of-00003.parquet; add them"),
        (["train-00000-of-00001.parquet", "test-00001-of-00002-a1b2.parquet"], "test-00000-of-00002.parquet;"),
        (["part-1-of-2.parquet"], "part-0-of-2.parquet;"),
        (["train-0-of-999999999999.parquet"], "train-3-of-999999999999.parquet, ...;"),
    ],
)
def test_parts_that_are_missing_are_named(files: list[str], lacks: str, tmp_path: Path) -> None:
    for name in files:
        rows(tmp_path / name, 10)
    with pytest.raises(UsageError, match=f"holds 1 of [0-9]+ parts and lacks .*{lacks}"):
        load_dataset(str(tmp_path))
    assert len(load_dataset(str(tmp_path / files[-1])).train_labels) == 8


def test_parts_may_be_counted_from_one(tmp_path: Path) -> None:
    for name in ("part-1-of-2.parquet", "part-2-of-2.parquet"):
        rows(tmp_path / name, 10)
    assert len(load_dataset(str(tmp_path)).train_labels) == 16


def test_a_repository_of_the_hub_is_one_data_set(tmp_path: Path) -> None:
    """Its tables are in ``data/``, which is no client."""
    (tmp_path / "repo" / "data").mkdir(parents=True)
    (tmp_path / "repo" / "README.md").write_text("# Letters")
    for split, count in (("train", 10), ("test", 6), ("extra", 4)):
        rows(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet", count)
    found = load_dataset(str(tmp_path / "repo"))
    assert found.owners is None and (len(found.train_labels), len(found.test_labels)) == (10, 6)
    assert f"not read in {tmp_path / 'repo'}: data/extra-00000-of-00001.parquet" in found.notes


def photos(folder: Path, count: int = 4) -> Path:
    """A folder of images for each of two classes."""
    for cls in ("benign", "malignant"):
        (folder / cls).mkdir(parents=True)
        for number in range(count):
            PIL.Image.fromarray(np.full((4, 4), number, dtype=np.uint8)).save(folder / cls / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("images", "table"),
    [("", "metadata.csv"), ("train", "metadata.csv"), ("", "all.parquet"), ("train", "train.csv"), ("north", "info.csv")],
)
def test_a_table_beside_folders_of_images_is_ambiguous(images: str, table: str, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos" / images)
    file = tmp_path / "photos" / table
    if file.suffix == ".csv":
        file.write_text("age,label\n" + "40,0\n50,1\n" * 20)
    else:
        rows(file, 40)
    with pytest.raises(UsageError, match=rf"photos holds the table {table} and folders of images \(.*malignant\); move"):
        load_dataset(str(tmp_path / "photos"))
    assert len(load_dataset(str(file)).train_labels) == 32
    file.unlink()
    assert load_dataset(str(folder)).classes == ("benign", "malignant")


def test_what_is_beside_the_tables_of_splits_is_said(tmp_path: Path) -> None:
    """Which are read, as their names say that they are the data."""
    folder = photos(tmp_path / "all" / "photos").parent
    for split in ("train", "test"):
        rows(folder / f"{split}.parquet", 10)
    (folder / "photos" / "benign" / "0.png").rename(folder / "cover.png")
    (folder / "LICENSE").write_text("as you like")
    found = load_dataset(str(folder))
    assert len(found.train_labels) == 10 and f"not read in {folder}: cover.png, photos" in found.notes


@pytest.mark.parametrize("layout", ["", "train", "clients"])
def test_images_that_are_not_read_are_said(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "photos" / layout / ("north" if layout == "clients" else "")
    photos(root)
    (root / "benign" / "1.heic").write_bytes(b"of a telephone")
    (root / "LICENSE").write_text("as you like")
    unread = ["benign/1.heic"]
    if layout != "clients":  # where an image makes a class of it
        (root / "0.png").write_bytes((root / "benign" / "0.png").read_bytes())
        unread.insert(0, "0.png")
    found = load_dataset(str(tmp_path / "photos"))
    assert len(found.train_labels) + len(found.test_labels) == 8
    said = (str(root.relative_to(tmp_path / "photos") / name) for name in unread)
    assert f"not read in {tmp_path / 'photos'}: {', '.join(said)}" in found.notes
    for number in range(10):
        (root / "benign" / f"{number}.avif").write_bytes(b"of another")
    assert any(line.endswith(f", ... ({10 + len(unread)} in all)") for line in load_dataset(str(tmp_path / "photos")).notes)


def test_a_test_split_alone_is_refused(tmp_path: Path) -> None:
    rows(tmp_path / "data.parquet", 10)
    rows(tmp_path / "test.parquet", 10)
    with pytest.raises(UsageError, match=r"holds data\.parquet, test\.parquet and no train split; rename one, or give it as"):
        load_dataset(str(tmp_path))
    (tmp_path / "data.parquet").unlink()
    with pytest.raises(UsageError, match=r"holds test\.parquet and no train split; rename one, or give it as the data set"):
        load_dataset(str(tmp_path))
    assert len(load_dataset(str(tmp_path / "test.parquet")).train_labels) == 8
    (tmp_path / "test.parquet").unlink()
    (tmp_path / "valid.csv").write_text("x,label\n" + "1.5,a\n2.5,b\n" * 5)
    with pytest.raises(UsageError, match=r"holds valid\.csv and no train\.csv; "):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("pairs", [False, True])
def test_folders_of_a_test_split_alone_are_refused(pairs: bool, tmp_path: Path) -> None:
    """It was an image set with a class `test`, also of pairs."""
    folder = photos(tmp_path / "all" / "Test", 10)
    for cls in folder.iterdir() if pairs else ():
        (cls / "images").mkdir()
        (cls / "text").mkdir()
        for image in cls.glob("*.png"):
            image.rename(cls / "images" / image.name)
            (cls / "text" / f"{image.stem}.txt").write_text(image.stem)
    with pytest.raises(UsageError, match=r"all holds test and no train; rename one, or give .*all/Test as the data set"):
        load_dataset(str(tmp_path / "all"))
    assert load_dataset(str(folder)).classes == ("benign", "malignant")


def test_folders_of_splits_in_capital_letters(tmp_path: Path) -> None:
    for split in ("Train", "Test", "extra"):
        for cls in "ab":
            for number in range(4):
                path = tmp_path / split / cls / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                PIL.Image.fromarray(np.full((4, 4), number, dtype=np.uint8)).save(path)
    found = load_dataset(str(tmp_path))
    assert found.classes == ("a", "b") and (len(found.train_labels), len(found.test_labels)) == (8, 8)
    assert f"not read in {tmp_path}: extra" in found.notes


def test_csv_files_with_capital_suffixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"{i % 7}.5,{i % 2}\n" for i in range(10))
    for name in ("train.CSV", "Test.Csv", "validation.csv"):
        (tmp_path / name).write_text("x,label\n" + lines)
    found = load_dataset(str(tmp_path))
    assert (len(found.train_labels), len(found.test_labels)) == (10, 10)
    assert f"not read in {tmp_path}: validation.csv" in found.notes
    monkeypatch.chdir(tmp_path)
    assert len(load_dataset("train.CSV").train_labels) == 8


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    def write(folder: Path, first: int) -> None:
        folder.mkdir(parents=True)
        for number in range(first, first + 4):
            PIL.Image.fromarray(np.full((4, 4), number, dtype=np.uint8)).save(folder / f"{number}.png")

    for place, cls in enumerate(("cat", "dog", "owl")):
        write(tmp_path / "store" / cls, 10 * place)
    write(tmp_path / "photos" / "cat", 100)
    for link, target in (("cat/more", "cat"), ("dog", "dog"), ("owl", "owl")):
        (tmp_path / "photos" / link).symlink_to(tmp_path / "store" / target)
    plain = tmp_path / "plain"
    shutil.copytree(tmp_path / "photos", plain)  # which copies what links point at
    (tmp_path / "photos" / "cat" / "again").symlink_to(tmp_path / "photos")
    (tmp_path / "store" / "dog" / "itself").symlink_to(tmp_path / "store" / "dog")
    found, copied = load_dataset(str(tmp_path / "photos")), load_dataset(str(plain))
    assert found.classes == ("cat", "dog", "owl") and len(found.train_labels) + len(found.test_labels) == 16
    assert found.hash == copied.hash


def test_which_column_is_the_label_is_said(tmp_path: Path) -> None:
    lines = "".join(f"{i % 2},{'xyz'[i % 3]},{i * 7 % 60}.5,{'abc'[i % 3]}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("target,species,width,class\n" + lines)
    said = load_data(DataConfig(name=str(tmp_path / "a.csv"))).notes
    assert "the labels are column 'class'; target is a feature (--set data.label=NAME names another)" in said
    assert "column 'species' determines the label: remove it if it is the label in other words" in said
    said = load_data(DataConfig(name=str(tmp_path / "a.csv"), label="class")).notes
    assert not any("the labels are" in line for line in said)


def test_a_column_with_few_answers_is_no_text_beside_others(tmp_path: Path) -> None:
    lines = "".join(f"{i % 50},{i % 9},{'yes' if i % 3 else 'no'},{i % 2}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("age,income,question,label\n" + lines)
    found = load_dataset(str(tmp_path / "a.csv"))
    assert found.texts is None and found.vectors is not None
    lines = "".join(f"{i % 50},what is {i}?,{i % 2}\n" for i in range(60))
    (tmp_path / "b.csv").write_text("age,question,label\n" + lines)
    found = load_dataset(str(tmp_path / "b.csv"))
    assert found.texts is not None and "the samples are the texts of column question; not used: age" in found.notes


def test_no_client_trains_on_what_another_validates(tmp_path: Path) -> None:
    """Where a partition deals a sample to several."""
    labels = np.arange(600) % 10
    made = DataConfig.model_validate(
        {"name": "digits", "clients": 20, "validation_fraction": 0.2, "partition": {"name": "class_dir_min1", "alpha": 0.1}}
    )
    found = make_partition(labels, labels[:200], 10, made, 0)
    validated, trained = (set(np.concatenate(lists).tolist()) for lists in (found.validation, found.train))
    assert validated and not validated & trained


def test_test_samples_that_are_training_samples_are_counted(tmp_path: Path) -> None:
    lines = "".join(f"{i}.5,{i * i % 11},{i % 2}\n" for i in range(10))
    (tmp_path / "train.csv").write_text("x,y,label\n" + lines)
    (tmp_path / "test.csv").write_text("x,y,label\n" + lines[: len(lines) // 2] + "70.5,3,1\n")
    found = load_dataset(str(tmp_path))
    count = found.repeated()
    assert 0 < count < len(found.test_labels)
    assert any(f"{count} of the {len(found.test_labels)} test samples equal a training sample" in line for line in found.notes)
    assert not load_dataset("digits").repeated()


def test_owners_of_test_rows_alone_are_said(tmp_path: Path) -> None:
    for split, sites in (("train", "ab"), ("test", "abz")):
        lines = "".join(f"{i}.5,{site},{i % 2}\n" for i in range(6) for site in sites)
        (tmp_path / f"{split}.csv").write_text("x,site,label\n" + lines)
    found = load_data(DataConfig.model_validate({"name": str(tmp_path), "partition": {"name": "by_column", "column": "site"}}))
    assert any("6 of the 18 test samples have a value in 'site' that no training sample has" in line for line in found.notes)
