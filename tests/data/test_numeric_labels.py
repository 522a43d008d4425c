"""Labels that are numbers: when they are taken for such, how they are standardised, and which are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpriv.config import DataConfig, LabelKind
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_data
from fedpriv.errors import UsageError

COUNT = 60


def table(folder: Path, labels: list[object], name: str = "rows") -> Path:
    lines = [f"{place % 7 + 0.5},{label}" for place, label in enumerate(labels)]
    file = folder / f"{name}.csv"
    file.write_text("\n".join(["x,y", *lines]) + "\n", encoding="utf-8")
    return file


def opened(file: Path, task: LabelKind | None = None, **more: object) -> Dataset:
    return load_data(DataConfig(name=str(file), label="y", task=task, **more))


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([place / 2 for place in range(COUNT)], True),
        ([place * 3 for place in range(COUNT)], True),  # whole numbers with gaps
        ([place % 30 + 5 for place in range(5 * COUNT)], True),
        ([place % 30 for place in range(5 * COUNT)], False),  # they number classes
        ([place % 30 + 1 for place in range(5 * COUNT)], False),
        ([place % 20 / 2 for place in range(5 * COUNT)], False),  # few
        ([f"{place % 30:03}" for place in range(5 * COUNT)], False),  # codes
        (["yes", "no"] * (COUNT // 2), False),
    ],
    ids=["halves", "gaps", "from five", "from zero", "from one", "few", "codes", "words"],
)
def test_many_numbers_that_number_no_classes_are_predicted(tmp_path: Path, labels: list[object], numbers: bool) -> None:
    found = opened(table(tmp_path, labels))
    assert (found.target is not None) == numbers == (not found.classes)
    notes = [note for note in found.notes if "a regression predicts them (data.task=classification" in note]
    assert len(notes) == numbers


def test_they_are_standardised_by_the_training_rows(tmp_path: Path) -> None:
    found = opened(table(tmp_path, [0.1 + place for place in range(COUNT)]))
    assert found.target is not None and found.train_labels.dtype.is_floating_point
    train = found.target.decode(found.train_labels.double().numpy())
    assert float(found.train_labels.mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.train_labels.std(correction=0)) == pytest.approx(1)
    both = np.concatenate([train, found.target.decode(found.test_labels.double().numpy())])
    assert np.sort(both) == pytest.approx(0.1 + np.arange(COUNT), abs=1e-4)
    assert found.target.mean == pytest.approx(train.mean()) and found.target.std == pytest.approx(train.std())
    assert [column.name for column in found.columns] == ["x"], "the label is no feature"


def test_asked_for_they_are_numbers_however_few(tmp_path: Path) -> None:
    found = opened(table(tmp_path, [0, 1, 2] * 20), "regression")
    assert found.target is not None and not found.classes


def test_a_number_with_a_unit_is_read_without_it(tmp_path: Path) -> None:
    found = opened(table(tmp_path, [f"{place} %" for place in range(COUNT)]), "regression")
    assert found.target is not None and found.target.unit == "%" and found.target.mean == pytest.approx(29.5, abs=3)


def test_a_choice_of_so_many_rows_is_no_choice_by_label(tmp_path: Path) -> None:
    found = opened(table(tmp_path, [place / 2 for place in range(COUNT)]), limit=10)
    assert len(found.train_labels) == 10


@pytest.mark.parametrize(
    ("labels", "task", "why"),
    [
        ([3.5] * COUNT, "regression", r"all training rows have the label 3.5, so there is nothing to predict"),
        ([*range(COUNT - 1), "inf"], "regression", r"line 61: the label in column 'y' is inf"),
        ([*range(0, 2 * COUNT - 2, 2), "inf"], None, r"line 61: the label in column 'y' is inf"),
        ([*range(COUNT - 1), ""], "regression", r"line 61: the label in column 'y' is missing"),
        ([*range(COUNT - 1), "old"], "regression", r"line 61: the label in column 'y' is 'old', and no number"),
        ([*(place / 2 for place in range(COUNT - 1)), "old"], None, r"60 values in 60 rows, such as 0.0; a label is a class"),
        (["yes", "no"] * (COUNT // 2), "regression", r"line 2: the label in column 'y' is 'yes', and no number"),
    ],
    ids=["one value", "infinite", "infinite, guessed", "missing", "a text", "a text, guessed", "words"],
)
def test_labels_that_cannot_be_predicted(tmp_path: Path, labels: list[object], task: LabelKind | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        opened(table(tmp_path, labels), task)


def test_images_and_texts_have_classes_alone(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("\n".join(["text,y", *(f"some words {place} of a text,{place}" for place in range(COUNT))]), encoding="utf-8")
    with pytest.raises(UsageError, match=r"data.task regression is for rows of a table, and .*texts.csv holds texts"):
        opened(file, "regression")
    with pytest.raises(UsageError, match=r"data.task .*the columns of digits are known"):
        load_data(DataConfig(name="digits", task="regression"))
