"""Tables of samples: parquet and CSV files, folders of images, data sets of the Hugging Face hub. Images are not decoded here."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpriv.data.columns import Columns
from fedpriv.errors import FedprivError, UsageError
from fedpriv.hub import hub_mode

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

IMAGE_COLUMNS = ("image", "img", "images", "picture")
TEXT_COLUMNS = ("text", "sentence", "tweet_text", "tweet", "utterance", "question", "query", "review", "content")
LABEL_COLUMNS = ("label", "labels", "fine_label", "character", "class", "category", "intent", "target", "y")
SPLITS = ("test", "valid", "validation", "val")
"""Names of a test split, the first of which that is there is taken."""


class Table(Protocol):
    """Rows with typed columns, read on access."""

    @property
    def origin(self) -> str:
        """The source of the rows, for messages."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files on disk on which the rows depend."""

    @property
    def features(self) -> datasets.Features:
        """Column names and Hugging Face feature types."""

    def column(self, name: str) -> pa.ChunkedArray:
        """One column; the others are not read."""


@dataclass(frozen=True)
class ParquetTable:
    """The rows of parquet files, one after the other."""

    files: tuple[Path, ...]

    @property
    def origin(self) -> str:
        return ", ".join(map(str, self.files))

    @cached_property
    def features(self) -> datasets.Features:
        import datasets
        import pyarrow.parquet as pq

        file = self.files[0]
        with _readable(file):
            schema = pq.read_schema(file)
        _check_columns(schema.names, file)
        try:
            with _readable(file):
                return datasets.Features.from_arrow_schema(schema)
        except (AttributeError, LookupError, RecursionError, TypeError) as error:
            raise FedprivError(
                f"{file}: its metadata `huggingface` does not describe columns as the `datasets` library does "
                f"({_first_line(error)}); write the file anew, with another description or none"
            ) from None

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = []
        for file in self.files:
            with _readable(file):
                # Not read_table, which would take a parent folder such as `label=3` for a column.
                table = pq.ParquetFile(file).read(columns=[name])
            if name not in table.column_names:
                raise UsageError(f"{file} has no column {name!r}, which {self.files[0]} has")
            parts.append(table.column(name))
        try:
            return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)
        except (pa.ArrowInvalid, TypeError):
            raise UsageError(f"column {name!r} has not the same type in all of {self.origin}") from None


@dataclass(frozen=True)
class CsvTable:
    """The rows of a CSV file with a header."""

    file: Path

    @property
    def origin(self) -> str:
        return str(self.file)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    @cached_property
    def _rows(self) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        with _readable(self.file):
            # A text may hold line breaks, and an empty one is not a missing one.
            rows = csv.read_csv(
                self.file,
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=csv.ConvertOptions(strings_can_be_null=False),
            )
        try:
            # Names are decoded here; a column that cannot be has become one of bytes.
            columns = zip(rows.schema.names, rows.schema.types, strict=True)
            where = next((f"its column {name!r}" for name, kind in columns if pa.types.is_binary(kind)), None)
        except UnicodeDecodeError:
            where = "its header"
        if where is not None:
            hint = f"convert it; from Latin-1: iconv -f latin1 -t utf-8 {shlex.quote(self.file.name)} > utf8.csv"
            raise FedprivError(f"{self.file}: {where} is not UTF-8; {hint}")
        return rows

    @cached_property
    def features(self) -> datasets.Features:
        import datasets

        _check_columns(self._rows.schema.names, self.file)
        return datasets.Features.from_arrow_schema(self._rows.schema)

    def column(self, name: str) -> pa.ChunkedArray:
        return self._rows.column(name)


@dataclass(frozen=True)
class HubTable:
    """A split that the `datasets` library opened (from the hub, what it saved, or an image folder)."""

    rows: datasets.Dataset
    origin: str
    files: tuple[Path, ...]

    @property
    def features(self) -> datasets.Features:
        return self.rows.features

    def column(self, name: str) -> pa.ChunkedArray:
        return self.rows.select_columns([name]).with_format("arrow")[:].column(name)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FedprivError(f"{file} is not a valid {file.suffix[1:]} file: {_first_line(error)}") from None


def _check_columns(names: Sequence[str], file: Path) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"{file} has the column {twice[0]!r} more than once")


def open_file(file: Path) -> Table:
    """The rows of a parquet or a CSV file, by its suffix.

    Raises:
        UsageError: it has another suffix.
    """
    kind = file.suffix.lower()
    if kind == ".csv":
        return CsvTable(file)
    if kind != ".parquet":
        raise UsageError(
            f"{file} is no .csv or .parquet file; arrays and data sets in Python go through fedpriv.train(dataset=...)"
        )
    return ParquetTable((file,))


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
        return _saved(folder)
    if not (folder / "train").is_dir():
        return _image_folder(folder, classes), None
    test = next((folder / name for name in SPLITS if (folder / name).is_dir()), None)
    train = _image_folder(folder / "train", classes)
    return train, _image_folder(test, train.features["label"].names) if test else None


def _saved(folder: Path) -> tuple[Table, Table | None]:
    """What ``datasets.Dataset.save_to_disk``, or ``DatasetDict.save_to_disk``, wrote."""
    import datasets
    import pyarrow as pa

    try:
        found = datasets.load_from_disk(str(folder))
        splits = _splits(found) if isinstance(found, datasets.DatasetDict) else {"train": found}
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise FedprivError(f"{folder} is not a whole data set of save_to_disk: {_first_line(error)}") from None
    train, *test = [_opened(rows, f"{folder} ({name})") for name, rows in splits.items()]
    return train, test[0] if test else None


def _splits(found: datasets.DatasetDict) -> dict[str, datasets.Dataset]:
    """The training split, and a test split (:data:`SPLITS`) if there is one; :class:`ValueError` where the first is missing."""
    if "train" not in found:
        raise ValueError(f"it has no split train, but {', '.join(found)}")
    return {name: found[name] for name in ["train", *[name for name in SPLITS if name in found][:1]]}


def _opened(rows: datasets.Dataset, origin: str) -> HubTable:
    return HubTable(rows, origin, tuple(Path(file["filename"]) for file in rows.cache_files))


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


def open_hub(
    hub_id: str, name: str, splits: Sequence[str] | None, hint: str, config: str | None = None, revision: str | None = None
) -> list[Table]:
    """Splits of a data set of the hub; one that was downloaded before needs no connection.

    Args:
        splits: which ones; ``None``: the training split, and a test split (:data:`SPLITS`) if there is one.
        hint: what helps where it cannot be had.
        config, revision: those of the data set; ``None``: its only config, its latest revision.

    Raises:
        UsageError: neither the hub nor a downloaded copy is available; the message says what to do.
    """
    import datasets

    try:
        with hub_mode():
            if splits is None:
                found = _splits(datasets.load_dataset(hub_id, config, revision=revision))
            else:
                found = {split: datasets.load_dataset(hub_id, split=split) for split in splits}
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"cannot get {name} from the hub ({hub_id}: {_first_line(error)}); {hint}") from None
    return [_opened(rows, f"{hub_id} ({split})") for split, rows in found.items()]


def find_columns(table: Table, label: str | None = None, client: str | None = None) -> Columns:
    """The columns of image, text and label, found by Hugging Face type where it is stated, otherwise by common names. Without
    images and texts, all other numbers and categories are features.

    Args:
        label: the column of the labels; ``None``: found.
        client: a column that says whose a row is, which is nothing else.

    Raises:
        UsageError: there is no label, or neither an image, a text nor a feature; the message lists the columns.
    """
    import datasets

    from fedpriv.data.own.vectors import choose_features, is_text

    features = {name: kind for name, kind in table.features.items() if name != client}
    for name in (label, client):
        if name is not None and name not in table.features:
            raise UsageError(f"{table.origin} has no column {name!r}; its columns are: {', '.join(table.features)}")
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    image = _choose(images, IMAGE_COLUMNS) or _choose([n for n, kind in features.items() if _holds_bytes(kind)], IMAGE_COLUMNS)
    label = label or _choose(labels, LABEL_COLUMNS) or next((name for name in LABEL_COLUMNS if name in features), None)
    strings = [n for n, kind in features.items() if getattr(kind, "dtype", None) in ("string", "large_string") and n != label]
    text = next((name for name in TEXT_COLUMNS if name in strings), None)
    if image is None and text is None and len(strings) == 1:  # beside numbers, it may be a category
        text = strings[0] if set(features) <= {strings[0], label} or is_text(table.column(strings[0])) else None
    vector, notes = choose_features(table, (label, client)) if image is None and text is None else ((), ())
    if text is not None and text not in TEXT_COLUMNS and (unused := sorted(set(features) - {text, label})):
        notes = (f"the samples are the texts of column {text}; not used: {', '.join(unused)}",)
    missing = "label" if label is None else None
    if image is None and text is None and not vector:
        missing = "image or text"
    if missing or label is None:
        if not len(table.column(next(iter(table.features)))):
            raise UsageError(f"{table.origin} has no rows")
        columns = ", ".join(f"{name} ({_kind(kind)})" for name, kind in table.features.items())
        hint = "; --set data.label=NAME says which it is" if missing == "label" else ""
        raise UsageError(f"{table.origin} has no recognisable {missing} column; its columns are: {columns}{hint}")
    return Columns(label, image, text, vector, notes)


def _choose(candidates: list[str], preferred: Sequence[str]) -> str | None:
    return next((name for name in preferred if name in candidates), candidates[0] if candidates else None)


def _holds_bytes(kind: Any) -> bool:
    if isinstance(kind, dict):
        return "bytes" in kind
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _kind(kind: Any) -> str:
    return str(getattr(kind, "dtype", type(kind).__name__))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
