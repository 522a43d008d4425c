"""Tables in local folders: parquet and CSV files, what the `datasets` library saved, and images in class folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.data.tables.files import CsvTable, ParquetTable, Table, open_file
from fedpriv.data.tables.hub import SPLITS, HubTable, open_saved
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    pass


def visible(folder: Path, pattern: str = "*") -> list[Path]:
    """What is in a folder, sorted. What begins with a dot is no data: copies of notebooks, a repository, macOS' own files."""
    found = folder.glob(pattern)
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def table_files(folder: Path) -> list[Path]:
    """The tables in a folder: its parquet files or, if there are none, its CSV files."""
    return visible(folder, "*.parquet") or visible(folder, "*.csv")


def open_folder(folder: Path, classes: Sequence[str] = ()) -> tuple[Table, Table | None]:
    """The training split and, if there is one, the test split of a local folder.

    Tables: ``train.parquet`` and ``test.parquet`` (also ``valid`` or ``validation``), or the same as CSV; any other parquet files
    together are one split. What ``save_to_disk`` of the `datasets` library wrote. Images: ``train/<class>/*`` and
    ``test/<class>/*``, or ``<class>/*`` as one split.

    Args:
        classes: of images, the classes that they are of; none: those that have a folder.

    Raises:
        UsageError: it holds neither, or several CSV files none of which is ``train.csv``.
    """
    found = table_files(folder)
    if found:
        by_name = {file.stem: file for file in found}
        if "train" not in by_name:
            if found[0].suffix == ".csv" and len(found) > 1:
                raise UsageError(f"{folder} holds {', '.join(file.name for file in found)} and no train.csv; name one of them")
            return CsvTable(found[0]) if found[0].suffix == ".csv" else ParquetTable(tuple(found)), None
        test = next((by_name[stem] for stem in SPLITS if stem in by_name), None)
        return open_file(by_name["train"]), open_file(test) if test else None
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return open_saved(folder)
    if not (folder / "train").is_dir():
        return _image_folder(folder, classes), None
    test = next((folder / name for name in SPLITS if (folder / name).is_dir()), None)
    train = _image_folder(folder / "train", classes)
    return train, _image_folder(test, train.features["label"].names) if test else None


def _image_folder(folder: Path, known: Sequence[str] = ()) -> Table:
    """The images of ``<class>/*``, with the class numbers of ``known`` if given."""
    import datasets
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    found = [path.name for path in visible(folder) if path.is_dir()]
    if known and (strange := sorted(set(found) - set(known))):
        raise UsageError(f"{folder} holds the class {strange[0]!r}, which is not in the training split ({', '.join(known)})")
    classes = list(known) or found
    inside = visible(folder, "**/*")
    for path in inside:
        if not str(path).isascii() and (odd := str(path).encode(errors="replace").decode()) != str(path):
            raise UsageError(f"{odd}: the name of a file or a folder is not UTF-8")
    files = [path for path in inside if path.is_file()]
    if not classes or not files:
        raise UsageError(f"{folder} holds no parquet file and no image folder (<class>/<image>)")
    images = [file for file in files if file.suffix.lower() in ImageFolder.EXTENSIONS and file.parent != folder]
    if not images:
        raise UsageError(f"{folder} holds no images in its class folders {', '.join(classes[:5])}")
    if not known and (empty := sorted(set(classes) - {file.relative_to(folder).parts[0] for file in images})):
        raise UsageError(f"{folder}: the folder of the class {empty[0]!r} holds no images; remove it")
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=classes)})
    rows = datasets.Dataset.from_dict(
        {
            "image": [{"path": str(file), "bytes": None} for file in images],
            "label": [file.relative_to(folder).parts[0] for file in images],
        },
        features=features,
    )
    return HubTable(rows, str(folder), tuple(images))
