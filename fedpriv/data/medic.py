"""MEDIC (Alam et al., Neural Computing and Applications 2022): 71,198 photographs of disasters with labels of four tasks.

Its published layout: ``MEDIC_train.tsv``, ``MEDIC_dev.tsv`` and ``MEDIC_test.tsv`` with the column ``image_path``, relative to
their folder, and a column for each task. SimProx's paper calls another data set MEDIC, the 5,831 pairs of
:mod:`fedpriv.data.disaster`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.data.assembling import assemble
from fedpriv.data.dataset import Opened
from fedpriv.data.tables.columns import Columns
from fedpriv.data.tables.samples_in_files import SamplesInFiles
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.data.tables.files import Table

TASKS = ("damage_severity", "disaster_types", "humanitarian", "informative")
"""The columns of labels."""
WHERE = "MEDIC is at crisisnlp.qcri.org/medic; its folder goes to <dir>/medic_images, and <dir> is --data-dir or FEDPRIV_DATA"
_PATH = "image_path"


def medic_opener(task: str) -> Callable[[Path | None], Opened]:
    """An opener of MEDIC's training and test images with the labels of one of its :data:`TASKS`; its third split is not read.

    It raises :class:`UsageError` where a file or a column is missing, or a test image has a class that no training image has.
    """

    def open_(data_dir: Path | None) -> Opened:
        folder = data_dir / "medic_images" if data_dir else None
        if folder is None or not folder.is_dir():
            raise UsageError(f"medic_{task} is not at {folder or '<dir>/medic_images'}: {WHERE}")
        rows = {split: _read(folder / f"MEDIC_{split}.tsv", task) for split in ("train", "test")}
        classes = tuple(sorted({label for _, label in rows["train"]}))
        if unknown := sorted({label for _, label in rows["test"]} - set(classes)):
            raise UsageError(f"{folder / 'MEDIC_test.tsv'}: no training image has the {task} {unknown[0]!r}")
        tables: list[Table] = [
            SamplesInFiles(
                str(folder / f"MEDIC_{split}.tsv"),
                tuple(folder / path for path, _ in pairs),
                tuple(classes.index(label) for _, label in pairs),
                classes,
            )
            for split, pairs in rows.items()
        ]
        columns = Columns("label", image="image", notes=("the published validation split, MEDIC_dev.tsv, is not used",))
        return assemble(f"medic_{task}", tables, columns, "RGB")

    return open_


def _read(file: Path, task: str) -> list[tuple[str, str]]:
    """The path and the label of each image that a file lists."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            if missing := {_PATH, task} - set(reader.fieldnames or ()):
                raise UsageError(f"{file} has no column {min(missing)!r}; its columns are: {', '.join(reader.fieldnames or ())}")
            rows = [(row[_PATH], row[task]) for row in reader]
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; {WHERE}") from None
    for number, (path, label) in enumerate(rows, 2):
        if not path or not label:
            raise UsageError(f"{file}, line {number} has no {_PATH if not path else task}")
    return rows
