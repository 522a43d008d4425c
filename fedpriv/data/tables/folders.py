"""Tables in local folders: parquet and CSV files, what the `datasets` library saved, and images in class folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path

from fedpriv.data.tables.files import ParquetTable, Table, open_file
from fedpriv.data.tables.hub import SPLITS, open_saved
from fedpriv.data.tables.samples_in_files import SamplesInFiles
from fedpriv.errors import UsageError
from fedpriv.untrusted.names import first_few

_SPLIT = re.compile(r"(train|" + "|".join(SPLITS) + r")([-_.]?\d+(-of-\d+)?(-[0-9a-f]+)?)?", re.IGNORECASE)
"""Names of the files of a split, which may be several, as in the hub's repositories: ``train-00000-of-00002``."""

_PART = re.compile(r"(?P<before>.*?)(?P<number>\d+)-of-(?P<parts>\d+)(-[0-9a-f]+)?", re.IGNORECASE)
"""Names of parts that say how many there are."""


def visible(folder: Path) -> list[Path]:
    """The files and folders in a folder, sorted, without those that begin with a dot (copies of notebooks, macOS' own files)."""
    return sorted(path for path in folder.glob("*") if not path.name.startswith("."))


def below(folder: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """The visible files and folders in a folder and in those below it, sorted.

    Unlike by pathlib's ``**``, links to folders are followed, except for a link to a folder that it lies in, which has no end.

    Args:
        above: the folders, without links, on the way to this one.
    """
    paths, here = [], (*above, folder.resolve())
    for path in visible(folder):
        paths.append(path)
        if path.is_dir() and path.resolve() not in here:
            paths += below(path, here)
    return paths


def folders_in(folder: Path) -> list[Path]:
    """The visible folders in a folder, sorted."""
    return [path for path in visible(folder) if path.is_dir()]


def _kind(path: Path) -> str:
    """The suffix of a file in small letters."""
    return path.suffix.lower()


def _is_table(path: Path) -> bool:
    return _kind(path) in (".parquet", ".csv")


def table_files(folder: Path) -> list[Path]:
    """The tables in a folder: its parquet and its CSV files."""
    return list(filter(_is_table, visible(folder)))


def is_image(path: Path) -> bool:
    """Whether a file of a folder of images is one, by its suffix."""
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    return _kind(path) in ImageFolder.EXTENSIONS


def holds_images(folder: Path) -> bool:
    """Whether there are images directly in a folder."""
    return any(map(is_image, visible(folder)))


def data_folder(folder: Path) -> Path:
    """Where a folder's data are: in its only sub-folder, where that alone holds tables, as in repositories of the hub."""
    inside = folders_in(folder)
    if len(inside) != 1 or table_files(folder) or not table_files(inside[0]) or holds_images(inside[0]):
        return folder
    return folder if inside[0].name.lower() in SPLITS else inside[0]


def by_split(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Tables or folders by the split that their names say, in small letters; the others by their own names.

    A table that is there as parquet and as CSV is read as parquet.
    """
    by_name: dict[str, list[Path]] = {}
    for path in sorted(paths, key=lambda path: _kind(path) == ".csv"):
        table = _is_table(path)
        named = _SPLIT.fullmatch(path.stem if table else path.name)
        name = named[1].lower() if named and (table or not named[2]) else path.name
        if not any(_kind(other) == ".parquet" and _kind(path) == ".csv" for other in by_name.get(name, [])):
            by_name.setdefault(name, []).append(path)
    return by_name


def _test_split(splits: Mapping[str, list[Path]]) -> str | None:
    """The name of the split that is the test split; ``None``: there is none."""
    return next((name for name in SPLITS if name in splits), None)


def not_read(folder: Path, used: Collection[Path]) -> list[Path]:
    """Files and folders in a folder that are not used: tables, images, other files among the images of a class, whole folders.

    Of other files beside the data, such as a licence, nothing is said.
    """
    if _is_saved(folder):
        return []
    holding = {parent for file in used for parent in file.parents}
    of_classes = {file.parent for file in used if is_image(file)} - {file.parent for file in used if not is_image(file)}
    unread: dict[Path, None] = {}
    for path in below(folder):
        if path.is_dir() or path in used:
            continue
        inside = [parent for parent in reversed(path.parents) if folder in parent.parents]
        if (whole := next((parent for parent in inside if parent not in holding), None)) is not None:
            unread[whole] = None
        elif is_image(path) or _is_table(path) or path.parent in of_classes:
            unread[path] = None
    return list(unread)


def open_folder(folder: Path, classes: Sequence[str] = ()) -> tuple[Table, Table | None]:
    """The training split and, if there is one, the test split of a local folder.

    Tables: ``train.parquet`` and ``test.parquet`` (also ``valid`` or ``validation``; in parts as of the hub:
    ``train-00000-of-00002.parquet``), or the same as CSV; any other parquet files together are one split. What ``save_to_disk``
    of the `datasets` library wrote. Images: ``train/<class>/*`` and ``test/<class>/*``, or ``<class>/*`` as one split. Small and
    capital letters are the same. Tables may be in the only sub-folder, as in repositories of the hub.

    Args:
        classes: of images, the classes that they are of; none: those that have a folder.

    Raises:
        UsageError: it holds neither, or both; or several CSV files, or a test split, and none that is called ``train``; or some
            parts of a split alone.
    """
    folder = data_folder(folder)
    files = table_files(folder)
    if files:
        splits = by_split(files)
        named = "train" in splits and "train" not in by_split(folders_in(folder))
        if not named and (images := _like_classes(folder)):
            shown = first_few([str(path.relative_to(folder)) for path in images], 3)
            raise UsageError(
                f"{folder} holds the table {files[0].name} and folders of images ({shown}); move one of them away, or give the "
                "table itself as the data set"
            )
        test = _test_split(splits)
        if "train" not in splits:
            files = [file for file in files if _kind(file) == ".parquet"] or files
            alone = test is not None and files == splits[test]
            if alone or (len(files) > 1 and (test is not None or _kind(files[0]) == ".csv")):
                missing = "train.csv" if _kind(files[0]) == ".csv" else "train split"
                names = ", ".join(file.name for file in files)
                raise UsageError(f"{folder} holds {names} and no {missing}; rename one, or give it as the data set")
            return _open_files(files), None
        return _open_files(splits["train"]), _open_files(splits[test]) if test else None
    if _is_saved(folder):
        return open_saved(folder)
    folders = by_split(folders_in(folder))
    if folders and folders.keys() <= set(SPLITS):
        files = next(iter(folders.values()))
        raise UsageError(f"{folder} holds {', '.join(folders)} and no train; rename one, or give {files[0]} as the data set")
    if "train" not in folders:
        return _image_folder(folder, classes), None
    test = _test_split(folders)
    if table_files(folders["train"][0]):
        return open_folder(folders["train"][0])[0], open_folder(folders[test][0])[0] if test else None
    train = _image_folder(folders["train"][0], classes)
    return train, _image_folder(folders[test][0], train.features["label"].names) if test else None


def _is_saved(folder: Path) -> bool:
    """Whether the `datasets` library wrote it."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _like_classes(folder: Path) -> list[Path]:
    """Two folders or more side by side that hold images, in a folder or one below it."""
    for root in (folder, *folders_in(folder)):
        if len(classes := list(filter(holds_images, folders_in(root)))) > 1:
            return classes
    return []


def _check_parts(files: Sequence[Path]) -> None:
    """Refuse files whose names say that there are further parts, if one of these is missing."""
    held: dict[tuple[str, str], dict[int, str]] = {}
    for file in files:
        if (part := _PART.fullmatch(file.stem)) is not None:
            held.setdefault((part["before"], part["parts"]), {})[int(part["number"])] = part["number"]
    for (before, parts), there in held.items():
        whole, width = int(parts), len(next(iter(there.values())))
        first = int(whole in there)  # some count from 1
        missing = list(islice((number for number in range(first, whole + first) if number not in there), 4))
        if missing:
            names = first_few([f"{before}{number:0{width}}-of-{parts}{files[0].suffix}" for number in missing], 3)
            what = f"{len(there)} of {whole} parts and lacks {names}"
            raise UsageError(f"{files[0].parent} holds {what}; add them, or give a file as the data set")


def _open_files(files: Sequence[Path]) -> Table:
    """The rows of one file, or of several parquet files."""
    _check_parts(files)
    if len(files) > 1 and any(_kind(file) != ".parquet" for file in files):
        raise UsageError(f"{', '.join(map(str, files))} are the same split; several files of one are parquet")
    return open_file(files[0]) if len(files) == 1 else ParquetTable(tuple(files))


def _image_folder(folder: Path, known: Sequence[str] = ()) -> Table:
    """The images of ``<class>/*``, with the class numbers of ``known`` if given."""
    names = [path.name for path in folders_in(folder)]
    if known and (strange := sorted(set(names) - set(known))):
        raise UsageError(f"{folder} holds the class {strange[0]!r}, which is not in the training split ({', '.join(known)})")
    classes = list(known) or names
    inside = below(folder)
    for path in inside:
        if not str(path).isascii() and (odd := str(path).encode(errors="replace").decode()) != str(path):
            raise UsageError(f"{odd}: the name of a file or a folder is not UTF-8")
    files = [path for path in inside if path.is_file()]
    if not classes or not files:
        raise UsageError(f"{folder} holds no parquet or CSV file and no image folder (<class>/<image>)")
    images = [file for file in files if is_image(file) and file.parent != folder]
    if not images:
        raise UsageError(f"{folder} holds no images in its class folders {', '.join(classes[:5])}")
    if not known and (empty := sorted(set(classes) - {file.relative_to(folder).parts[0] for file in images})):
        raise UsageError(f"{folder}: the folder of the class {empty[0]!r} holds no images; remove it")
    number = {name: place for place, name in enumerate(classes)}
    labels = tuple(number[file.relative_to(folder).parts[0]] for file in images)
    return SamplesInFiles(str(folder), tuple(images), labels, tuple(classes))
