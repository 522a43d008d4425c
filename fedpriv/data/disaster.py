"""Image-text pairs in folders, in the layout of the Damage Multimodal Dataset (Mouzannar et al. 2018), and that data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.data.assembling import assemble
from fedpriv.data.dataset import Opened
from fedpriv.data.medic import TASKS
from fedpriv.data.subsets import hold_out
from fedpriv.data.tables.columns import Columns
from fedpriv.data.tables.folders import visible
from fedpriv.data.tables.hub import SPLITS
from fedpriv.data.tables.samples_in_files import SamplesInFiles
from fedpriv.errors import UsageError
from fedpriv.untrusted.names import first_few

if TYPE_CHECKING:
    from fedpriv.data.tables.decoding import Mode
    from fedpriv.data.tables.files import Table

PUBLISHED = {
    "damaged_infrastructure": (1246, 144),
    "damaged_nature": (459, 55),
    "fires": (309, 37),
    "flood": (348, 36),
    "human_damage": (219, 21),
    "non_damage": (2666, 291),
}
"""Training and test pairs of each class of the Damage Multimodal Dataset (by its folder's name) in the split files that SimProx's
paper trains on."""

_SHARE = 0.1  # held out of each class where there is no test split and no published one
_COLUMNS = Columns("label", image="image", text="text")
_LAYOUT = "<class>/images/<name>.jpg with <class>/text/<name>.txt"
_SHOWN = 3  # files that an error lists


def holds_pairs(path: Path) -> bool:
    """Whether a folder, or its ``train/``, has a class folder with both ``images/`` and ``text/``."""
    roots = [root for root in (path, path / "train") if root.is_dir()]
    return any((cls / "images").is_dir() and (cls / "text").is_dir() for root in roots for cls in root.iterdir())


def open_pairs(folder: Path, mode: Mode | None = None) -> Opened:
    """The pairs of a folder: ``<class>/images/<name>.<jpg, png, ...>`` with ``<class>/text/<name>.txt``.

    The classes may be under ``train/`` and ``test/`` (or ``valid``, ``validation``, ``val``). A single split is divided by a
    fixed choice, class by class: as :data:`PUBLISHED` where it has that many pairs of each class, otherwise 90 / 10.

    Args:
        mode: grey or colour; ``None``: grey where all images are.

    Raises:
        UsageError: the layout is another, a file has no counterpart (the first are named), or a text is empty.
        FedprivError: on access, a text is not UTF-8, or an image cannot be decoded.
    """
    divided = (folder / "train").is_dir()
    root = folder / "train" if divided else folder
    classes = _class_folders(root)
    train = _pair_up(root, classes)
    tables: list[Table]
    test = next((folder / name for name in SPLITS if divided and (folder / name).is_dir()), None)
    notes: tuple[str, ...] = ()
    if test is None:
        published = _is_published(train)
        tables = [*_divide(train, published)]
        share = "the published number of pairs" if published else "a fixed tenth"
        notes = (f"there is no test split: {share} of each class is held out",)
    elif unknown := set(_class_folders(test)) - set(classes):
        raise UsageError(f"{test / min(unknown)}: {root} has no class of that name")
    else:
        tables = [train, _pair_up(test, classes)]
    return assemble(folder.name, tables, replace(_COLUMNS, notes=notes), mode)


def open_damage(data_dir: Path | None) -> Opened:
    """``<data_dir>/medic/`` as :func:`open_pairs` reads it, or tables with an image, a text and a label column."""
    from fedpriv.data.tables.columns import find_columns
    from fedpriv.data.tables.folders import open_folder, table_files

    folder = data_dir / "medic" if data_dir else None
    if folder is None or not folder.is_dir():
        raise UsageError(
            f"medic is not at {folder or '<dir>/medic'}: these are the pairs of the Damage Multimodal Dataset (UCI repository, "
            "id 456; for research only), whose class folders go there; <dir> is --data-dir or FEDPRIV_DATA. The 71,198 images of "
            f"MEDIC itself are medic_{', medic_'.join(TASKS)}; disaster_synthetic needs no download"
        )
    if not table_files(folder):
        return open_pairs(folder, "RGB")
    tables = [table for table in open_folder(folder) if table is not None]
    columns = find_columns(tables[0])
    if columns.image is None or columns.text is None:
        raise UsageError(f"{tables[0].origin} has no {'text' if columns.image else 'image'} column; medic is image-text pairs")
    return assemble("medic", tables, columns, "RGB")


def _class_folders(root: Path) -> tuple[str, ...]:
    folders = [path for path in visible(root) if path.is_dir()]
    for folder in folders:
        if not (folder / "images").is_dir() or not (folder / "text").is_dir():
            raise UsageError(f"{folder} has not both images/ and text/; pairs are {_LAYOUT}")
    if not folders:
        raise UsageError(f"{root} holds no pairs: {_LAYOUT}")
    return tuple(folder.name for folder in folders)


def _pair_up(root: Path, classes: tuple[str, ...]) -> SamplesInFiles:
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    pairs, textless, imageless = list[tuple[Path, Path, int]](), list[Path](), list[Path]()
    for label, cls in enumerate(classes):
        images = _by_stem(root / cls / "images", ImageFolder.EXTENSIONS)
        texts = _by_stem(root / cls / "text", [".txt"])
        pairs += [(image, texts[stem], label) for stem, image in images.items() if stem in texts]
        textless += [image for stem, image in images.items() if stem not in texts]
        imageless += [text for stem, text in texts.items() if stem not in images]
    if textless or imageless:
        alone = {"images without their text": textless, "texts without their image": imageless}
        faults = [
            f"{len(files):,} {what} ({first_few([str(file.relative_to(root)) for file in files], _SHOWN)})"
            for what, files in alone.items()
            if files
        ]
        raise UsageError(f"{root}: {' and '.join(faults)}; pairs are {_LAYOUT}")
    return _table(str(root), pairs, classes)


def _table(origin: str, pairs: Sequence[tuple[Path, Path, int]], classes: tuple[str, ...]) -> SamplesInFiles:
    images, texts, labels = zip(*pairs, strict=True) if pairs else ((), (), ())
    return SamplesInFiles(origin, images, labels, classes, texts)


def _by_stem(folder: Path, suffixes: Collection[str]) -> dict[str, Path]:
    by_stem: dict[str, Path] = {}
    for path in visible(folder):  # none where a test split lacks the class
        if path.suffix.lower() in suffixes:
            if path.stem in by_stem:
                raise UsageError(f"{path} and {by_stem[path.stem].name} have the same stem; keep one of them")
            by_stem[path.stem] = path
    return by_stem


def _is_published(table: SamplesInFiles) -> bool:
    """Whether a table has the classes of :data:`PUBLISHED`, with as many pairs of each."""
    return Counter(table.classes[label] for label in table.labels) == {cls: sum(parts) for cls, parts in PUBLISHED.items()}


def _divide(table: SamplesInFiles, published: bool) -> Iterator[SamplesInFiles]:
    labels = np.array(table.labels, dtype=np.int64)
    tested = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        _, test = hold_out(labels[rows], PUBLISHED[table.classes[label]][1] / len(rows) if published else _SHARE)
        tested[rows[test]] = True
    pairs = list(zip(table.images, table.texts, table.labels, strict=True))
    for which in (~tested, tested):
        yield _table(table.origin, [pairs[row] for row in np.flatnonzero(which)], table.classes)
