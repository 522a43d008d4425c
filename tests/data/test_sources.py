from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_files import encoded, load_labels, pixels, write_folder, write_parquet
from sklearn.datasets import load_digits

from fedpriv.config import DataConfig, load_config
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import environment_folder, load_data, load_dataset
from fedpriv.data.subsets import in_proportion
from fedpriv.data.tables import decoding
from fedpriv.errors import FedprivError, UnknownName, UsageError
from fedpriv.hub import hub_mode
from fedpriv.simulation.setup import build
from tests.notes import noted

LABELS = [0, 1, 2] * 10


def as_tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2).copy())


def test_digits() -> None:
    """Scikit-learn's own, though read without it."""
    digits, theirs = load_dataset("digits"), load_digits()
    both = torch.cat([digits.train_images, digits.test_images]).flatten(1), torch.cat([digits.train_labels, digits.test_labels])
    own = sorted(zip(both[0].tolist(), both[1].tolist(), strict=True))
    assert own == sorted(zip(np.round(theirs.data * 255 / 16).tolist(), theirs.target.tolist(), strict=True))
    assert digits.input_shape == (1, 8, 8) and digits.classes == tuple("0123456789")
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    assert digits.train_images.dtype == torch.uint8 and int(digits.train_images.max()) == 255
    assert set(digits.train_images.unique().tolist()) <= {round(v * 255 / 16) for v in range(17)}
    share = torch.bincount(digits.test_labels) / (torch.bincount(digits.test_labels) + torch.bincount(digits.train_labels))
    assert (share - 0.2).abs().max() < 0.005
    again = load_dataset("digits")
    assert torch.equal(digits.train_images, again.train_images) and torch.equal(digits.test_labels, again.test_labels)


def test_what_the_net_gets_of_pixels() -> None:
    def inputs(name: str) -> tuple[torch.Tensor, Dataset]:
        federation = build(load_config(None, {"data.name": "digits", "data.limit": 60, "data.clients": 2, "data.pixels": name}))
        found = federation.data.train(0).inputs
        assert isinstance(found, torch.Tensor)
        return found, federation.dataset

    (standardised, dataset), (unit, _), (raw, _) = (inputs(name) for name in ("standardised", "unit", "raw"))
    torch.testing.assert_close(standardised * dataset.std[0] + dataset.mean[0], unit)
    torch.testing.assert_close(raw, 255 * unit)
    assert (float(unit.min()), float(unit.max()), float(raw.max())) == (0.0, 1.0, pytest.approx(255.0))


def test_pixels_are_of_images(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n" * 5)
    asked = {"data.name": str(tmp_path / "a.csv"), "data.clients": 2, "data.pixels": "raw", "model.encoder": "tiny"}
    with pytest.raises(UsageError, match=r"data\.pixels raw is for images, and .*a\.csv holds texts"):
        build(load_config(None, asked))


def test_a_limit_keeps_the_classes_in_proportion_and_the_test_images() -> None:
    whole, part, labels = load_dataset("digits"), load_dataset("digits", limit=500), load_labels("digits", limit=500)
    assert len(part.train_images) == len(part.train_labels) == 500
    shares = torch.bincount(whole.train_labels) * 500 / len(whole.train_labels)
    assert (torch.bincount(part.train_labels) - shares).abs().max() < 1
    assert part.train_labels.tolist() == labels.train_labels.tolist()
    of_whole = {image.numpy().tobytes(): int(label) for image, label in zip(whole.train_images, whole.train_labels, strict=True)}
    of_part = {image.numpy().tobytes(): int(label) for image, label in zip(part.train_images, part.train_labels, strict=True)}
    assert len(of_part) == 500 and of_part.items() <= of_whole.items()
    assert torch.equal(part.test_images, whole.test_images) and len(labels.test_labels) == len(whole.test_labels)
    assert torch.equal(part.train_images, load_dataset("digits", limit=500).train_images)
    assert torch.equal(load_dataset("digits", limit=len(whole.train_labels)).train_images, whole.train_images)
    with pytest.raises(UsageError, match=r"data\.limit 1439: there are 1438 training samples"):
        load_dataset("digits", limit=1439)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=8), share=st.floats(0.01, 1))
def test_a_choice_in_proportion(counts: list[int], share: float) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    count = max(1, int(share * len(labels)))
    kept = in_proportion(labels, count)
    assert len(set(kept.tolist())) == count and (np.diff(kept) > 0).all()
    exact = np.array(counts) * count / len(labels)
    assert (abs(np.bincount(labels[kept], minlength=len(counts)) - exact) < 1).all()


def cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    train, test = pixels(30, 32, 32, 3), pixels(10, 32, 32, 3, seed=1)
    names = [f"c{i}" for i in range(10)]
    write_parquet(folder / "cifar10" / "train.parquet", train, [i % 10 for i in range(30)], "img", names=names)
    write_parquet(folder / "cifar10" / "test.parquet", test, list(range(10)), "img", names=names)
    return train, test


def test_named_data_set_from_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = cifar10(tmp_path)
    loaded = load_dataset("cifar10", tmp_path)
    assert torch.equal(loaded.train_images, as_tensor(train)) and torch.equal(loaded.test_images, as_tensor(test))
    assert loaded.train_labels.tolist() == [i % 10 for i in range(30)] and loaded.train_labels.dtype == torch.int64
    assert loaded.classes[3] == "c3" and loaded.default_model == "cnn10" and loaded.mean == (0.485, 0.456, 0.406)
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    assert torch.equal(load_dataset("cifar10").train_images, loaded.train_images)


def test_cifar100_reads_the_fine_labels(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(100)]
    for split in ("train", "test"):
        file = tmp_path / "cifar100" / f"{split}.parquet"
        write_parquet(file, pixels(5, 32, 32, 3), [0, 1, 2, 3, 99], "img", "fine_label", names)
    assert load_dataset("cifar100", tmp_path).test_labels.tolist() == [0, 1, 2, 3, 99]


def test_femnist_keeps_lower_case_a_to_j(tmp_path: Path) -> None:
    names = [*map(str, range(10)), *(chr(ord("A") + i) for i in range(26)), *(chr(ord("a") + i) for i in range(26))]
    labels = [label for label in range(62) for _ in range(10)]
    images = pixels(620, 28, 28)
    write_parquet(tmp_path / "femnist" / "train.parquet", images, labels, "image", "character", names)
    loaded = load_dataset("femnist", tmp_path)
    assert loaded.classes == tuple("abcdefghij") and loaded.input_shape == (1, 28, 28)
    assert torch.bincount(loaded.train_labels).tolist() == [9] * 10 and torch.bincount(loaded.test_labels).tolist() == [1] * 10
    first_a = names.index("a") * 10
    of_a = torch.cat([loaded.train_images[loaded.train_labels == 0], loaded.test_images[loaded.test_labels == 0]])
    assert {image.numpy().tobytes() for image in of_a} == {image.tobytes() for image in images[first_a : first_a + 10]}


def test_tiny_imagenet_tests_on_its_validation_split(tmp_path: Path) -> None:
    for split, count in (("train", 9), ("valid", 3)):
        write_parquet(tmp_path / "tiny_imagenet" / f"{split}.parquet", pixels(count, 64, 64, 3), LABELS[:count])
    loaded = load_dataset("tiny_imagenet", tmp_path)
    assert (len(loaded.train_images), len(loaded.test_images)) == (9, 3) and loaded.default_model == "resnet18"


def test_labels_are_read_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10(tmp_path)
    monkeypatch.setattr(decoding, "decode", lambda *_: pytest.fail("decoded"))
    opened = load_labels("cifar10", tmp_path)
    assert opened.train_labels.tolist() == [i % 10 for i in range(30)] and len(opened.classes) == 10


@pytest.mark.parametrize("grey", [True, False])
def test_image_folder(tmp_path: Path, grey: bool) -> None:
    images = pixels(30, 12, 10) if grey else pixels(30, 12, 10, 3)
    write_folder(tmp_path / "photos" / "train", images, LABELS)
    write_folder(tmp_path / "photos" / "test", images[:6], LABELS[:6])
    (tmp_path / "photos" / "train" / "notes.txt").write_text("not an image")
    loaded = load_dataset(str(tmp_path / "photos"))
    assert loaded.classes == ("cat", "dog", "owl") and loaded.input_shape == (1 if grey else 3, 12, 10)
    assert loaded.name == str(tmp_path / "photos")
    order = sorted(range(30), key=lambda place: (LABELS[place], place))
    assert torch.equal(loaded.train_images, as_tensor(images[order]))
    assert loaded.mean[0] == pytest.approx(images[..., 0].mean() / 255 if not grey else images.mean() / 255, abs=1e-4)
    assert loaded.default_model == ("mlp_lineage" if grey else "resnet18")


def test_what_begins_with_a_dot_is_no_data_and_an_empty_class_is_named(tmp_path: Path) -> None:
    images, folder = pixels(30, 8, 8), tmp_path / "photos"
    write_folder(folder, images, LABELS)
    write_folder(folder / ".ipynb_checkpoints", images[:3], LABELS[:3])
    write_folder(folder / "cat" / ".ipynb_checkpoints", images[:3], LABELS[:3])
    (folder / "cat" / "._0.png").write_bytes(encoded(images[0]))
    loaded = load_dataset(str(folder))
    assert loaded.classes == ("cat", "dog", "owl") and len(loaded.train_images) + len(loaded.test_images) == 30
    (folder / "zebra").mkdir()
    with pytest.raises(UsageError, match="the folder of the class 'zebra' holds no images"):
        load_dataset(str(folder))
    write_parquet(tmp_path / "tables" / "train.parquet", images, LABELS)
    (tmp_path / "tables" / "._train.parquet").write_bytes(b"of macOS")
    assert load_dataset(str(tmp_path / "tables")).classes == ("cat", "dog", "owl")


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_files_of_images_are_closed(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", [*pixels(29, 8, 8), *pixels(1, 9, 12)], LABELS)
    assert load_dataset(str(tmp_path / "photos")).input_shape == (1, 8, 8)
    gc.collect()


@pytest.mark.parametrize("splits", [False, True])
def test_a_folder_that_save_to_disk_wrote(tmp_path: Path, splits: bool) -> None:
    import datasets

    write_parquet(tmp_path / "a.parquet", pixels(30, 8, 8), LABELS)
    rows = datasets.Dataset.from_parquet(str(tmp_path / "a.parquet"), cache_dir=str(tmp_path / "arrow"))
    saved = datasets.DatasetDict(train=rows, validation=rows.select(range(6)), other=rows) if splits else rows
    saved.save_to_disk(str(tmp_path / "saved"))
    found = load_dataset(str(tmp_path / "saved"))
    assert found.classes == ("cat", "dog", "owl") and found.input_shape == (1, 8, 8)
    assert (len(found.train_labels), len(found.test_labels)) == ((30, 6) if splits else (24, 6))
    for file in (tmp_path / "saved").rglob("*.arrow"):
        file.unlink()
    with pytest.raises(FedprivError, match=r"saved is not a whole data set of save_to_disk: ") as error:
        load_dataset(str(tmp_path / "saved"))
    assert "\n" not in str(error.value)


def test_one_class_alone_is_refused_where_labels_are_learned(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", pixels(30, 8, 8), [0] * 30)
    keys = {"data.name": str(tmp_path / "photos"), "data.clients": 2, "data.partition.name": "iid"}
    with pytest.raises(UsageError, match=r"all 24 training samples of .*photos have the label 'cat'; a classifier needs two"):
        build(load_config(None, keys))
    build(load_config(None, {**keys, "objective.name": "simclr"}))


def test_grey_among_colour_becomes_colour(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", [*pixels(5, 8, 8), *pixels(5, 8, 8, 3)], LABELS[:10])
    write_folder(tmp_path / "test", pixels(3, 8, 8), LABELS[:3])
    loaded = load_dataset(str(tmp_path))
    assert loaded.input_shape == (3, 8, 8) and loaded.test_images.shape[1] == 3


@pytest.mark.parametrize("form", ["folder", "file", "folder of files"])
def test_one_split_is_divided_for_good(tmp_path: Path, form: str) -> None:
    images, path = pixels(30, 8, 8), tmp_path / "shapes"
    if form == "folder":
        write_folder(path, images, LABELS)
    elif form == "file":
        write_parquet(path := tmp_path / "shapes.parquet", images, LABELS)
    else:
        write_parquet(path / "a.parquet", images[:15], LABELS[:15])
        write_parquet(path / "b.parquet", images[15:], LABELS[15:])
    first, second = load_dataset(str(path)), load_dataset(str(path))
    assert torch.bincount(first.train_labels).tolist() == [8] * 3 and torch.bincount(first.test_labels).tolist() == [2] * 3
    assert torch.equal(first.test_images, second.test_images)
    seen = {image.numpy().tobytes() for image in torch.cat([first.train_images, first.test_images])}
    assert seen == {image.tobytes() for image in images}


def plain_parquet(path: Path, **columns: list[object]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_without_hugging_face_types(tmp_path: Path) -> None:
    images = [encoded(image) for image in pixels(10, 8, 8)]
    numbers = load_dataset(str(plain_parquet(tmp_path / "a.parquet", picture=images, target=[0, 2] * 5)))
    assert numbers.classes == ("0", "1", "2") and set(numbers.train_labels.tolist()) == {0, 2}
    words = load_dataset(str(plain_parquet(tmp_path / "b.parquet", image=images, label=["no", "yes"] * 5)))
    assert words.classes == ("no", "yes")
    with pytest.raises(UsageError, match=r"no recognisable label column.* image \(binary\), species \(string\)"):
        load_dataset(str(plain_parquet(tmp_path / "c.parquet", image=images, species=["x"] * 10)))
    with pytest.raises(UsageError, match="no recognisable image or text column"):
        load_dataset(str(plain_parquet(tmp_path / "d.parquet", subject=["x"], body=["y"], label=[0])))


@pytest.mark.parametrize("where", ["train", "test"])
def test_images_of_different_sizes_are_resized_with_a_notice(tmp_path: Path, where: str) -> None:
    for split in ("train", "test"):
        other = pixels(1, 12, 9) if split == where else pixels(1, 8, 8)
        write_folder(tmp_path / "own" / split, [*pixels(29, 8, 8), *other], LABELS)
    for _ in range(2):  # decoded, and from the cache
        found = load_dataset(str(tmp_path / "own"))
        assert found.input_shape == (1, 8, 8)
        (notice,) = [line for line in found.notes if "equal a training sample" not in line]  # both splits have the same images
        assert notice.startswith("images of 2 sizes, 8 to 9 pixels wide and 8 to 12 high, are resized to 8 x 8")
    stated = load_dataset(str(tmp_path / "own"), image_size=10)
    assert stated.input_shape == (1, 10, 10) and not any("resized" in line for line in stated.notes)


def test_a_limit_of_test_samples() -> None:
    whole, part = load_dataset("digits"), load_data(DataConfig(test_limit=50))
    assert torch.equal(part.train_images, whole.train_images) and len(part.test_images) == 50
    shares = torch.bincount(whole.test_labels) * 50 / len(whole.test_labels)
    assert (torch.bincount(part.test_labels) - shares).abs().max() < 1
    with pytest.raises(UsageError, match=r"data\.test_limit 400: there are 359 test samples"):
        load_data(DataConfig(test_limit=400))


@pytest.mark.parametrize(("name", "config", "revision"), [("own/set", None, None), ("own/set:small@v1.0", "small", "v1.0")])
def test_a_data_set_of_the_hub_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: str | None, revision: str | None
) -> None:
    """The hub is played by a local folder of the same format."""
    import datasets

    cifar10(tmp_path)
    real, wanted = datasets.load_dataset, ("own/set", config, revision)

    def from_hub(hub_id: str, config: str | None, revision: str | None) -> datasets.DatasetDict:
        assert (hub_id, config, revision) == wanted
        return real(str(tmp_path / "cifar10"), cache_dir=str(tmp_path / "arrow"))

    monkeypatch.setattr(datasets, "load_dataset", from_hub)
    found = load_dataset(f"hf:{name}")
    assert found.input_shape == (3, 32, 32) and len(found.test_labels) == 10 and found.name == f"hf:{name}"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hf:own/set", r"cannot get hf:own/set from the hub .*download its files and give their folder as --dataset"),
        ("hf:", "expected hf:owner/name"),
        ("hf:a/b/c", "expected hf:owner/name"),
        ("hf:own/set:", "expected hf:owner/name"),
    ],
)
def test_the_hub_offline_and_names_that_are_none(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)


def test_broken_image_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, pixels(30, 8, 8), LABELS)
    broken = tmp_path / "dog" / "001.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(FedprivError, match=r"cannot decode .*dog/001\.png"):
        load_dataset(str(tmp_path))
    broken.write_bytes(b"nothing")
    with pytest.raises(FedprivError, match=r"cannot decode .*dog/001\.png"):
        load_dataset(str(tmp_path))


def test_bytes_that_are_no_image_are_named(tmp_path: Path) -> None:
    file = plain_parquet(tmp_path / "a.parquet", text=[b"good", b"bad"] * 5, label=[0, 1] * 5)
    with pytest.raises(FedprivError, match=r"a\.parquet, row \d+ \(from 0\): column 'text' holds bytes that are no image"):
        load_dataset(str(file))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_parquet_is_named(tmp_path: Path, share: float) -> None:
    cifar10(tmp_path)
    file = tmp_path / "cifar10" / "train.parquet"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(FedprivError, match=r"cifar10/train\.parquet is not a valid parquet file") as error:
        load_dataset("cifar10", tmp_path)
    assert "\n" not in str(error.value)


def test_damage_inside_a_parquet_is_named(tmp_path: Path) -> None:
    cifar10(tmp_path)
    file = tmp_path / "cifar10" / "train.parquet"
    content = bytearray(file.read_bytes())
    content[1000:60000] = bytes(59000)
    file.write_bytes(content)
    with pytest.raises(FedprivError, match=r"cifar10/train\.parquet"):
        load_dataset("cifar10", tmp_path)
    assert not list((tmp_path / "cache").rglob("*"))


@pytest.mark.parametrize(
    "said",
    [
        '{"info": null}',
        "7",
        '{"info": {"features": "label"}}',
        '{"info": {"features": {"label": 1}}}',
        '{"info": {"features": {"label": {"_type": ["ClassLabel"]}}}}',
        '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 5}}}}',
        '{"info": {"features": {"label": ' + '{"a": ' * 980 + "1" + "}" * 980 + "}}}",
        "[" * 100_000,
    ],
    ids=lambda said: said[:70],
)
def test_a_description_of_the_columns_that_is_none_is_named(tmp_path: Path, said: str) -> None:
    table = pa.table({"x": [0.5] * 20, "label": [0, 1] * 10}).replace_schema_metadata({"huggingface": said})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FedprivError, match=r"a\.parquet: its metadata `huggingface` does not describe columns") as error:
        load_dataset(str(tmp_path / "a.parquet"))
    assert "\n" not in str(error.value)


def test_label_out_of_range(tmp_path: Path) -> None:
    cifar10(tmp_path)
    file = tmp_path / "cifar10" / "test.parquet"
    table = pq.read_table(file)
    spoilt = table.set_column(1, table.schema.field("label"), pa.array([0, 1, 12, 3, 4, 5, 6, 7, 8, 9]))
    pq.write_table(spoilt.replace_schema_metadata(table.schema.metadata), file)
    with pytest.raises(UsageError, match=r"test\.parquet, row 2 \(from 0\): label 12 .* none of the 10 classes"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("labels", "such"),
    [
        ([f"p{i:02}" for i in range(40)], "40 values in 40 rows, such as p00"),
        (range(1000, 1040), "40 values in 40 rows, such as 1000"),
        ([i % 21 + 0.5 for i in range(420)], "21 values in 420 rows, such as 0.5"),
    ],
    ids=["names", "numbers", "quantities"],
)
def test_names_of_samples_and_quantities_are_no_classes(tmp_path: Path, labels: Sequence[object], such: str) -> None:
    x = [float(i % 7) for i in range(len(labels))]
    file = str(plain_parquet(tmp_path / "a.parquet", x=x, y=[*labels]))
    with pytest.raises(UsageError, match=rf"column 'y' holds {such}; a label is a class.*--set data\.label=NAME"):
        load_data(DataConfig(name=file, label="y", task="classification"))


def test_numbers_that_are_no_label_are_said(tmp_path: Path) -> None:
    x = [float(i % 7) for i in range(20)]
    found = load_dataset(str(plain_parquet(tmp_path / "a.parquet", x=x, y=[1, 2] * 10)))
    assert found.classes == ("0", "1", "2") and "column 'y': 1 of the numbers from 0 to 2 do not occur" in " ".join(found.notes)
    gaps = load_dataset(str(plain_parquet(tmp_path / "b.parquet", x=x, y=[0, 3] * 10)))
    assert any("column 'y': 2 of the numbers from 0 to 3 do not occur" in line for line in gaps.notes)
    assert not any("do not occur" in line for line in load_dataset("digits").notes)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8()], ids=str)
def test_labels_of_every_kind_of_whole_number(tmp_path: Path, kind: pa.DataType) -> None:
    images = [{"bytes": encoded(one), "path": None} for one in pixels(8, 4, 4)]
    labels = pa.array([0, 1, 2, 1] * 2, kind)
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "a.parquet")
    found = load_dataset(str(tmp_path / "a.parquet"))
    assert found.classes == ("0", "1", "2") and found.train_labels.dtype == torch.int64
    pq.write_table(pa.table({"image": images, "label": pa.array([2**7 - 1] * 8, kind)}), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=r"label 127 .* too high"):
        load_dataset(str(tmp_path / "b.parquet"))


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([0.0, 1.0, float("nan"), 1.0], r"row 2 \(from 0\).* is nan"),
        ([0.0, float("inf"), 1.0, 1.0], r"row 1 \(from 0\).* is inf"),
        ([[0], [1], [0], [1]], "holds no labels"),
        ([], "has no rows"),
        ([0, 1, None, 1], "1 rows without a label"),
        ([0, 1, 70000, 1], r"label 70000 .* too high"),
        ([0, -1, 1, 1], r"row 1 \(from 0\): label -1 .* is negative; number the classes from 0, or name them"),
    ],
    ids=["nan", "inf", "lists", "none", "missing", "too high", "negative"],
)
def test_what_is_no_label_is_refused(tmp_path: Path, labels: list[object], why: str) -> None:
    rows = [{"bytes": encoded(one), "path": None} for one in pixels(4, 4, 4)[: len(labels)]]
    images = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    kind = pa.array(labels, from_pandas=False) if labels else pa.array([], pa.int64())
    pq.write_table(pa.table({"image": images, "label": kind}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=why):
        load_dataset(str(tmp_path / "a.parquet"))


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    column = pa.array([0, 1])
    pq.write_table(pa.Table.from_arrays([column, column], names=["label", "label"]), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("text,label,label\na,0,0\nb,1,1\n")
    for file in ("a.parquet", "b.csv"):
        with pytest.raises(UsageError, match=f"{file} has the column 'label' more than once"):
            load_dataset(str(tmp_path / file))


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "pictures", pixels(4, 4, 4), [0, 0, 1, 1], ["a", "b\udcff"])
    with pytest.raises(UsageError, match="not UTF-8") as caught:
        load_dataset(str(tmp_path / "pictures"))
    str(caught.value).encode()


def test_wrong_columns_and_missing_split(tmp_path: Path) -> None:
    write_parquet(tmp_path / "cifar10" / "train.parquet", pixels(3, 32, 32, 3), [0, 1, 2])
    with pytest.raises(UsageError, match=r"holds no test split"):
        load_dataset("cifar10", tmp_path)
    write_parquet(tmp_path / "cifar10" / "test.parquet", pixels(3, 32, 32, 3), [0, 1, 2])
    with pytest.raises(UsageError, match=r"no column 'img'; its columns are: image, label"):
        load_dataset("cifar10", tmp_path)


def test_offline_and_absent_says_both_ways_out(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        start = time.monotonic()
        with pytest.raises(UsageError) as error:
            load_dataset("cifar100", folder)
        message = str(error.value)
        assert "--data-dir" in message and "FEDPRIV_DATA" in message and "connect to the hub once" in message
        assert "cifar100/{train,test}.parquet" in message and "\n" not in message
        assert time.monotonic() - start < 20  # the hub's own client would go on trying for longer


def test_hub_mode_is_left_as_it_was() -> None:
    import datasets
    import huggingface_hub.constants as hub

    before = (datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE)
    with hub_mode():
        assert datasets.config.HF_HUB_OFFLINE and hub.HF_HUB_OFFLINE
    after = (datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE)
    assert after == before


def test_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's answer is played by a local copy; everything after `datasets.load_dataset` is real."""
    import datasets

    train, _ = cifar10(tmp_path)
    files = {split: str(tmp_path / "cifar10" / f"{split}.parquet") for split in ("train", "test")}
    real = datasets.load_dataset
    asked = []

    def from_hub(hub_id: str, split: str) -> datasets.Dataset:
        asked.append((hub_id, split))
        return real("parquet", data_files=files, split=split, cache_dir=str(tmp_path / "arrow"))

    monkeypatch.setattr(datasets, "load_dataset", from_hub)
    assert torch.equal(load_dataset("cifar10").train_images, as_tensor(train))
    assert asked == [("uoft-cs/cifar10", "train"), ("uoft-cs/cifar10", "test")]


def test_names_and_paths_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'cifar10'"):
        load_dataset("cifar1o")
    for path in (tmp_path / "nowhere", Path("nowhere.parquet")):
        with pytest.raises(UsageError, match=r"no file or folder .*nowhere"):
            load_dataset(str(path))
    with pytest.raises(UsageError, match=r"data folder .*nowhere does not exist"):
        load_dataset("cifar10", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no parquet or CSV file and no image folder"):
        load_dataset(str(tmp_path / "empty"))


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    real = decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda table, *rest: calls.append(table.origin) or real(table, *rest))
    return calls


def test_decoded_images_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = cifar10(tmp_path)
    calls = count_decodes(monkeypatch)
    for _ in range(2):
        assert torch.equal(load_dataset("cifar10", tmp_path).train_images, as_tensor(train))
    assert len(calls) == 2  # training and test, once
    (cached,) = (tmp_path / "cache" / "fedpriv").iterdir()

    content = cached.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:-1] + bytes([content[-1] ^ 1])):
        cached.write_bytes(damaged)
        calls.clear()
        assert torch.equal(load_dataset("cifar10", tmp_path).train_images, as_tensor(train))
        assert len(calls) == 2 and cached.read_bytes() == content

    calls.clear()
    changed = pixels(30, 32, 32, 3, seed=9)
    write_parquet(tmp_path / "cifar10" / "train.parquet", changed, [0] * 30, "img", names=[f"c{i}" for i in range(10)])
    assert torch.equal(load_dataset("cifar10", tmp_path).train_images, as_tensor(changed)) and len(calls) == 2


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = cifar10(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with noted("not cached"):
        assert torch.equal(load_dataset("cifar10", tmp_path).train_images, as_tensor(train))


def test_a_half_written_cache_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    def interrupted(tensors: object, path: str, *_: object) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    cifar10(tmp_path)
    monkeypatch.setattr(safetensors.torch, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_dataset("cifar10", tmp_path)
    assert not list((tmp_path / "cache" / "fedpriv").iterdir())


def test_the_folder_that_the_environment_names_is_that_of_data_read_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    assert environment_folder(DataConfig(name="cifar10")) is None
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    assert environment_folder(DataConfig(name="cifar10")) == tmp_path
    assert environment_folder(DataConfig(name="cifar10", dir=tmp_path / "other")) is None
    assert environment_folder(DataConfig(name="digits")) is None
    assert environment_folder(DataConfig(name=str(tmp_path / "rows.csv"))) is None
