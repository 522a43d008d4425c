"""Data that are Python objects."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch
from image_files import pixels

import fedpriv
from fedpriv.config import DataConfig, load_config
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_data
from fedpriv.data.user_data.objects import name_of
from fedpriv.errors import FedprivError, UsageError
from fedpriv.simulation.setup import build
from tests.notes import noted

LABELS = np.array([0, 1, 2] * 10)


def loaded(data: Any) -> Dataset:
    return load_data(DataConfig(name=str(name_of(data))))


def all_images(found: Dataset) -> set[bytes]:
    return {image.numpy().tobytes() for image in torch.cat([found.train_images, found.test_images])}


def test_arrays_of_images_are_kept_exactly() -> None:
    grey, colour = pixels(30, 8, 9), pixels(30, 8, 9, 3)
    assert all_images(loaded((grey, LABELS))) == {image.tobytes() for image in grey}
    first = colour.transpose(0, 3, 1, 2)
    for x in (colour, first, torch.from_numpy(first.copy()), first / 255.0):
        found = loaded((x, LABELS))
        assert found.input_shape == (3, 8, 9) and all_images(found) == {image.tobytes() for image in first.copy()}


def test_rows_and_texts() -> None:
    x = np.random.default_rng(0).normal(size=(40, 5))
    rows = loaded({"train": (x[:30], LABELS), "test": (x[30:], LABELS[:10])})
    assert rows.vectors is not None and len(rows.test_labels) == 10
    expected = (x - x[:30].mean(0)) / x[:30].std(0)
    assert np.allclose(rows.vectors[1].numpy(), expected[30:], atol=1e-5)
    texts = loaded(([f"word {i}" for i in range(30)], ["abc"[label] for label in LABELS]))
    assert texts.classes == ("a", "b", "c") and texts.texts is not None and "word 3" in texts.texts[0] + texts.texts[1]


def test_texts_are_the_same_from_a_list_an_array_and_a_series() -> None:
    texts, labels = [f"word {i}" for i in range(30)], ["abc"[label] for label in LABELS]
    expected = name_of((texts, labels))
    for kind in (np.array, lambda values: np.array(values, dtype=object), pd.Series):
        assert name_of((kind(texts), kind(labels))) == expected
    with pytest.raises(UsageError, match=r"sample 1 is (nan|None), and others are texts; leave out what has no text"):
        name_of((pd.Series(["word", None]), [0, 1]))


def test_a_torch_data_set_keeps_its_classes() -> None:
    class Letters(torch.utils.data.Dataset):  # type: ignore[type-arg]
        classes = ("a", "b", "c")

        def __len__(self) -> int:
            return 30

        def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
            return torch.full((1, 4, 4), place / 255), place % 3

    found = loaded(Letters())
    assert found.classes == ("a", "b", "c") and {int(image.max()) for image in found.train_images} <= set(range(30))


@pytest.mark.parametrize("classes", [3, ("a", "b"), ("a", "b", "a"), {"a": 2, "b": 1, "c": 0}])
def test_classes_that_cannot_be_the_names_are_not_used(classes: Any) -> None:
    class Odd(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.classes = classes

        def __len__(self) -> int:
            return 30

        def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
            return torch.full((1, 4, 4), place / 255), place % 3

    assert loaded(Odd()).classes == ("0", "1", "2")


def test_a_list_of_pairs_is_a_data_set() -> None:
    grey = pixels(30, 8, 9)
    pairs: Any = [(torch.from_numpy(image)[None], label) for image, label in zip(grey, LABELS, strict=True)]
    assert name_of(pairs) == name_of((grey, LABELS)) == name_of([(image, torch.tensor(label)) for image, label in pairs])
    assert loaded([(f"word {i}", "abc"[label]) for i, label in enumerate(LABELS)]).classes == ("a", "b", "c")
    assert len(loaded({"train": pairs[:20], "test": pairs[20:]}).test_labels) == 10
    clients = loaded([pairs[:2], pairs[2:20], pairs[20:]]).owners
    assert clients is not None and clients.names == ("0", "1", "2")


def test_tensors_of_a_net() -> None:
    """Which have gradients, or half precision."""
    x = torch.rand(30, 5, requires_grad=True)
    assert name_of((x, LABELS)) == name_of((x.detach(), LABELS)) == name_of((list(x), torch.tensor(LABELS)))
    images = torch.rand(30, 1, 8, 8).bfloat16()
    assert name_of((images, LABELS)) == name_of((images.float(), LABELS))


def picture(mode: str, number: int) -> PIL.Image.Image:
    image = PIL.Image.fromarray(pixels(1, 8, 9, 3, seed=number)[0])
    if mode == "held sideways":
        image.getexif()[0x0112] = 6
        return image
    if mode in ("RGBA", "LA"):
        image.putalpha(128)
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1", "RGBA", "LA", "CMYK", "held sideways"])
def test_an_image_is_the_same_sample_from_pil_and_from_a_file(mode: str, tmp_path: Path) -> None:
    images = [picture(mode, number) for number in range(10)]
    for number, image in enumerate(images):
        file = tmp_path / "photos" / "ab"[number // 5] / f"{number}.{'tiff' if mode == 'CMYK' else 'png'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file, exif=image.getexif())
    given, read = loaded((images, [0] * 5 + [1] * 5)), load_data(DataConfig(name=str(tmp_path / "photos")))
    assert torch.equal(given.train_images, read.train_images) and torch.equal(given.test_images, read.test_images)


def test_pil_images_of_several_kinds(tmp_path: Path) -> None:
    mixed = loaded([(picture("L" if i % 2 else "P", i).resize((8 + i % 3, 9)), i % 2) for i in range(10)])
    assert mixed.input_shape[0] == 3 and any("images of 3 sizes" in line for line in mixed.notes)
    file = tmp_path / "half.png"
    picture("RGB", 0).save(file)
    file.write_bytes(file.read_bytes()[:100])
    with PIL.Image.open(file) as broken, pytest.raises(FedprivError, match="cannot decode the image 0: "):
        name_of(([broken], [0]))


def test_clients_from_a_list_or_by_name(tmp_path: Path) -> None:
    parts = [(pixels(10, 8, 8, seed=seed), [0, 1] * 5) for seed in range(3)]
    listed, named = loaded(parts), loaded({"north": parts[0], "south": parts[1]})
    assert listed.owners is not None and listed.owners.names == ("0", "1", "2")
    assert named.owners is not None and named.owners.names == ("north", "south")
    held = listed.train_images[torch.from_numpy(listed.owners.train == 1)]
    assert {one.numpy().tobytes() for one in held} <= {one.tobytes() for one in parts[1][0]} and len(held) == 8


def test_a_client_without_a_test_split_beside_others() -> None:
    x, y = pixels(20, 8, 8), [0, 1] * 10
    found = loaded({"north": {"train": (x, y), "test": (x[:4], y[:4])}, "south": (x, y)})
    assert found.owners is not None and found.owners.test is not None
    assert [int((found.owners.test == client).sum()) for client in (0, 1)] == [4, 4]
    assert [int((found.owners.train == client).sum()) for client in (0, 1)] == [20, 16]


def test_a_hugging_face_data_set_keeps_its_columns() -> None:
    rows = {"text": [f"text {i}" for i in range(30)], "writer": [f"w{i % 3}" for i in range(30)], "label": LABELS.tolist()}
    found = load_data(
        DataConfig(name=str(name_of(datasets.Dataset.from_dict(rows))), partition={"name": "by_column", "column": "writer"})
    )
    assert found.owners is not None and found.owners.names == ("w0", "w1", "w2")


def test_the_name_is_the_content() -> None:
    x = pixels(30, 8, 8)
    assert name_of((x, LABELS)) == name_of((x.copy(), LABELS.tolist()))
    assert name_of((x, LABELS)) != name_of((255 - x, LABELS))
    assert not list(name_of((x, LABELS)).parent.glob(".part-*"))


def test_nothing_is_printed_and_bars_are_left_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    name_of((pixels(30, 8, 8), LABELS))
    assert capfd.readouterr() == ("", "") and not datasets.are_progress_bars_disabled()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (3, r"data of type int; expected arrays \(x, y\)"),
        ((pixels(4, 8, 8), [0, 1]), "4 samples and 2 labels"),
        ((np.full((4, 1, 8, 8), 7.0), [0, 1, 0, 1]), r"floats in \[0, 1\], and these are float64, from 7 to 7"),
        ((pixels(4, 8, 8, 2), [0, 1, 0, 1]), "one or three channels"),
        ((np.stack([np.zeros((8, 8)), np.full((8, 8), np.nan)]), [0, 1]), "sample 1 holds a NaN or an infinity"),
        ((pixels(2, 8, 8), [0, -1]), "the label of sample 1 is -1; number the classes from 0"),
        (
            {"train": (pixels(2, 1, 8, 8), [0, 1]), "test": (pixels(2, 1, 4, 8), [0, 1])},
            r"samples of shape \(8, 8\) in train and \(4, 8\) in test",
        ),
        (([np.zeros(3), np.zeros(4)], [0, 1]), "several shapes"),
        ({"test": (pixels(4, 8, 8), [0, 1, 0, 1])}, "no train"),
        (dict.fromkeys(("train", "tset"), (pixels(4, 8, 8), [0, 1, 0, 1])), "the splits train, tset; beside train, one of test"),
        ({"../a": (pixels(4, 8, 8), [0, 1, 0, 1])}, "the name of a client becomes that of a folder"),
        ({".north": (pixels(4, 8, 8), [0, 1, 0, 1])}, r"client '\.north': a folder whose name begins with a dot is hidden"),
        ({"": (pixels(4, 8, 8), [0, 1, 0, 1])}, "client '': the name of a client becomes that of a folder"),
        (dict.fromkeys((1, "1"), (pixels(4, 8, 8), [0, 1, 0, 1])), "two clients are called '1' .*; give each a name of its own"),
        ([], "a list of no clients"),
        ({"train": []}, "a list whose items are not pairs of a sample and its label"),
        ((pixels(1, 8, 8), 3), r"labels of type int; arrays are \(x, y\)"),
        ([(pixels(1, 8, 8), 3), (pixels(4, 8, 8), [0, 1, 0, 1])], r"labels of type int; arrays are \(x, y\)"),
        ((pixels(2, 8, 8), [0.0, float("nan")]), "the label of sample 1 is nan; leave out"),
        ((pixels(2, 8, 8), [None, "a"]), "the label of sample 0 is None; leave out"),
        ((pixels(2, 8, 8), np.eye(2)), r"the label of sample 0 has the shape \(2,\); a label is one class"),
        ((pixels(0, 8, 8), []), "data without samples"),
        ([(pixels(2, 8, 8), [0, 1]), (pixels(0, 8, 8), [])], "data without samples; a client that has none is left out"),
    ],
)
def test_other_objects_are_refused(data: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        name_of(data)


def test_test_labels_that_no_client_trains_on_are_named() -> None:
    data = {"train": (pixels(40, 8, 8), [0, 1] * 20), "test": (pixels(6, 8, 8), [2, 3] * 3)}
    keys = {"data.name": str(name_of(data)), "data.clients": 2, "data.partition": {"name": "iid"}, "model.name": "mlp2"}
    said = r"no client holds test data to be scored on: its labels \(2, 3\) are none of those of the training data \(0, 1\)"
    with pytest.raises(UsageError, match=said):
        build(load_config(None, keys))


def test_a_run_on_objects_can_be_opened_later(tmp_path: Path) -> None:
    from fedpriv.simulation.reopening import reopened

    x = np.random.default_rng(0).normal(size=(60, 4))
    clients = {name: (x[i::3], (x[i::3, 0] > 0).astype(int)) for i, name in enumerate(("a", "b", "c"))}
    keys: dict[str, Any] = {"method": "fedavg", "rounds": 2, "tracking_uri": "none", "runs_dir": tmp_path}
    with noted("no epsilon covers them"):
        run = fedpriv.train(dataset=clients, **keys)
    assert run.config.data.clients == 3 and run.config.data.partition.name == "given"
    assert reopened(run.folder).dataset.hash == run.folder.facts["data_hash"]
    shutil.rmtree(Path(run.config.data.name).parent)
    with pytest.raises(UsageError, match=r"given as an object: pass it to fedpriv\.train once more"):
        reopened(run.folder)
    name_of(clients)
    assert reopened(run.folder).dataset.hash == run.folder.facts["data_hash"]


QUANTITIES = np.round(np.random.default_rng(0).normal(size=400), 1)
ROWS = np.random.default_rng(1).normal(size=(400, 5)).astype(np.float32)
PARTS = [(ROWS[i::20], QUANTITIES[i::20]) for i in range(20)]


class OfPairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(ROWS[place]), torch.tensor(QUANTITIES[place])


@pytest.mark.parametrize(
    "given",
    [
        (ROWS, QUANTITIES),
        (ROWS, QUANTITIES.tolist()),
        (torch.from_numpy(ROWS), torch.from_numpy(QUANTITIES)),
        (pd.DataFrame(ROWS), pd.Series(QUANTITIES)),
        list(zip(ROWS, QUANTITIES, strict=True)),
        OfPairs(),
        {"train": (ROWS, QUANTITIES), "test": (ROWS[:9], QUANTITIES[:9])},
        PARTS,  # of whom each has few labels
        datasets.Dataset.from_dict({"x": ROWS[:, 0], "label": QUANTITIES}),
        (ROWS, [0, *QUANTITIES[1:].tolist()]),  # an integer among them
    ],
    ids=["arrays", "list", "tensors", "frame", "pairs", "torch", "splits", "clients", "datasets", "mixed"],
)
def test_quantities_are_numbers_to_predict(given: Any) -> None:
    """As in a file."""
    found = loaded(given)
    assert found.target is not None and not found.classes
    assert set(found.target.decode(found.train_labels.double().numpy()).round(6)) <= {*QUANTITIES.round(6), 0}


def test_quantities_that_are_written_as_texts_are_no_classes() -> None:
    with pytest.raises(UsageError, match=r"holds \d+ values in 400 rows.*data\.task=regression predicts numbers"):
        loaded((ROWS, [str(quantity) for quantity in QUANTITIES]))


def test_floats_and_texts_may_be_classes() -> None:
    assert loaded((ROWS, np.arange(400) % 2 / 2)).classes == ("0.0", "0.5")
    assert loaded((ROWS, (np.arange(400) % 2).astype(float))).classes == ("0.0", "1.0")
    assert loaded((ROWS, np.array([-0.0, 0.0, 1.0, 0.5] * 100))).classes == ("0.0", "0.5", "1.0")
    assert loaded((ROWS, np.arange(400) % 2 == 0)).classes == ("False", "True")
    assert loaded((ROWS, [f"v{i % 30}.5" for i in range(400)])).classes[0] == "v0.5"


IMAGES, TEN = pixels(30, 8, 8), np.arange(30) % 10


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((IMAGES, np.linspace(0, 1, 30)), r"the given data \(train\): y holds 30 values in 30 rows"),
        ((IMAGES, [*"a" * 29, " "]), r"the given data \(train\), row 29 \(from 0\): the label in y is empty"),
        (
            {"train": (IMAGES, TEN), "test": (IMAGES, [*"012345678x"] * 3)},
            r"the given data \(test\), row 9 \(from 0\): label 'x' in y is none",
        ),
        ([(IMAGES, TEN), (IMAGES, TEN.astype(str))], r"the given data \(clients\): y holds numbers at client 0, and texts"),
    ],
)
def test_an_error_names_no_file_and_no_column_that_the_user_never_wrote(given: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        loaded(given)


def test_notes_on_labels_that_were_given_as_an_array_name_no_column() -> None:
    assert loaded((ROWS, QUANTITIES)).notes[0].startswith("the labels in y are numbers")
    assert "y: 'A' and 'a' are different classes" in loaded((ROWS, [*"aA" * 200])).notes[0]
    table = datasets.Dataset.from_dict({"x": ROWS[:, 0], "target": QUANTITIES})
    assert loaded(table).notes[:2] == (
        "the labels are column 'target' (--set data.label=NAME names another)",
        f"the labels in column 'target' are numbers, {len(set(QUANTITIES))} different ones: a regression predicts them "
        "(data.task=classification makes each of them a class)",
    )
