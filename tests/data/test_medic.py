"""MEDIC in its published layout, on small files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from image_files import load_labels, pixels

from fedpriv.data.medic import TASKS
from fedpriv.data.sources import load_dataset
from fedpriv.errors import UsageError

HEADER = "image_id\tevent_name\timage_path\tdamage_severity\tinformative\thumanitarian\tdisaster_types"
ROWS = {
    "train": [
        "severe\tyes\taffected\tflood",
        'little "or" none\tno\tnone\tfire',
        "mild\tyes\tnone\tflood",
    ],
    "dev": ["mild\tyes\taffected\tfire"],
    "test": ["mild\tyes\tnone\tfire"],
}


@pytest.fixture
def medic(tmp_path: Path) -> Path:
    folder = tmp_path / "medic_images"
    (folder / "data" / "crisismmd").mkdir(parents=True)
    for split, rows in ROWS.items():
        lines = [HEADER]
        for number, (image, labels) in enumerate(zip(pixels(len(rows), 6, 5, 3, seed=len(split)), rows, strict=True)):
            path = f"data/crisismmd/{split}{number}.png"
            PIL.Image.fromarray(image).save(folder / path)
            lines.append(f"{number}\tstorm\t{path}\t{labels}")
        (folder / f"MEDIC_{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("task", TASKS)
def test_images_have_the_labels_of_the_task(task: str, medic: Path) -> None:
    loaded = load_dataset(f"medic_{task}", medic, image_size=8)
    place = HEADER.split("\t").index(task) - 3
    named = [[loaded.classes[label] for label in labels] for labels in (loaded.train_labels, loaded.test_labels)]
    assert named == [[row.split("\t")[place] for row in ROWS[split]] for split in ("train", "test")]
    assert loaded.input_shape == (3, 8, 8) and "MEDIC_dev.tsv" in " ".join(loaded.notes)
    small = load_dataset(f"medic_{task}", medic, image_size=6).train_images
    with PIL.Image.open(medic / "medic_images" / "data" / "crisismmd" / "train1.png") as image:
        expected = np.asarray(image.resize((6, 6), PIL.Image.Resampling.BILINEAR))
    assert abs(small[1].permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("MEDIC_train.tsv", "image_path\tinformative\na.png\tyes\n", r"MEDIC_train\.tsv has no column 'humanitarian'"),
        ("MEDIC_test.tsv", f"{HEADER}\n1\ts\tdata/x.png\tmild\tyes\t\tfire\n", r"MEDIC_test\.tsv, line 2 has no humanitarian"),
        (
            "MEDIC_test.tsv",
            f"{HEADER}\n1\ts\tdata/x.png\tmild\tyes\trescue\tfire\n",
            "has the humanitarian 'rescue'",
        ),
        ("MEDIC_train.tsv", None, r"MEDIC_train\.tsv: No such file.*crisisnlp"),
    ],
)
def test_what_does_not_fit_is_named(file: str, text: str | None, message: str, medic: Path) -> None:
    path = medic / "medic_images" / file
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load_labels("medic_humanitarian", medic)


def test_where_it_is_had(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"medic_informative is not at .*crisisnlp"):
        load_labels("medic_informative", tmp_path)
