"""Data that are Python objects, written as files into the user's cache, so that a run can be resumed and audited later.

They become what can be read from a path: ``train.parquet`` and ``test.parquet``, or ``clients/<client>/...``. The folder's name
has a hash of its content, so that a config says which data it means, and the same object is written once.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.tables.file_names import file_names, is_image_name
from fedpriv.data.tables.files import GIVEN_LABEL, array_types
from fedpriv.data.tables.hub import SPLITS, HubTable
from fedpriv.data.tables.paths import names_images, resolved
from fedpriv.data.user_data.clients import NAME
from fedpriv.errors import FedprivError, UsageError, first_line

if TYPE_CHECKING:
    import datasets

FOLDER = "objects"
THIN = 4
"""No image has fewer rows or columns."""
_EXPECTED = (
    "expected arrays (x, y), a list of pairs (sample, label), a torch or Hugging Face data set, a mapping of train and test, or "
    "a list or mapping of these, one a client"
)


def name_of(data: Any) -> Path:
    """Write data into the user's cache; the path that a config names them by.

    Args:
        data: arrays ``(x, y)``; a list or torch ``Dataset`` of pairs of a sample and its label; a Hugging Face ``Dataset``; a
            mapping of ``train`` and ``test`` to these; or a list of these, one a client, or a mapping by the clients' names.
            ``x`` are images ``(N, H, W)``, ``(N, C, H, W)`` or ``(N, H, W, C)``, uint8 or floats in [0, 1], which are rounded to
            8 bits; a list of PIL images, read as files of images are; rows ``(N, F)``; or texts, in a list, an array or a Series.

    Raises:
        UsageError: they are none of these, or two clients have one name, or one that is no name of a visible folder.
        FedprivError: an image cannot be decoded, or the cache cannot be written.
    """
    from fedpriv.untrusted.cache import cache_folder

    folder = cache_folder() / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder, prefix=".part-"))
        try:
            where = _write(data, part)
            final = folder / f"data-{_digest(part)}"
            if not final.exists():
                os.replace(part, final)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise FedprivError(f"cannot write the data into the cache {folder}: {error.strerror}") from None
    return final / where


def _write(data: Any, folder: Path) -> str:
    """Write data into a folder; where in it they are."""
    clients = _clients(data)
    if clients is None:
        _write_splits(data, folder)
        return ""
    for name, held in clients.items():
        if not name or not name.isprintable() or Path(name).name != name:
            raise UsageError(f"client {name!r}: the name of a client becomes that of a folder")
        if name.startswith("."):
            raise UsageError(f"client {name!r}: a folder whose name begins with a dot is hidden and not read; name it otherwise")
        (folder / NAME / name).mkdir(parents=True)
        _write_splits(held, folder / NAME / name)
    return NAME


def _clients(data: Any) -> dict[str, Any] | None:
    """The clients' data by name; ``None``: they are not by client."""
    if isinstance(data, list) and not _are_pairs(data):
        if not data:
            raise UsageError("a list of no clients")
        width = len(str(len(data) - 1))
        return {f"{number:0{width}}": held for number, held in enumerate(data)}
    if isinstance(data, Mapping) and not set(data) <= {"train", *SPLITS}:
        if "train" in data:
            raise UsageError(f"data with the splits {', '.join(map(str, data))}; beside train, one of {', '.join(SPLITS)}")
        if twice := [name for name, count in Counter(map(str, data)).items() if count > 1]:
            raise UsageError(f"two clients are called {twice[0]!r} (as a text and as a number, say); give each a name of its own")
        return {str(name): held for name, held in data.items()}
    return None


def _are_pairs(data: list[Any]) -> bool:
    """Whether a list holds samples with their labels, rather than clients, each ``(x, y)`` with several labels in ``y``."""
    return bool(data) and all(isinstance(pair, tuple | list) and len(pair) == 2 and _is_single(pair[1]) for pair in data)


def _is_single(label: Any) -> bool:
    """Whether it is one label, not several."""
    return isinstance(label, str) or getattr(label, "shape", None) == () or not isinstance(label, Iterable)


def _write_splits(data: Any, folder: Path) -> None:
    if not isinstance(data, Mapping):
        data = {"train": data}
    if "train" not in data:
        raise UsageError(f"data with the splits {', '.join(map(str, data)) or 'none'}, but no train")
    splits = ("train", *[name for name in SPLITS if name in data][:1])
    shapes = {shape: f"{shape} in {split}" for split in splits if (shape := _shape(data[split])) is not None}
    if len(shapes) > 1:
        raise UsageError(f"samples of shape {' and '.join(shapes.values())}; bring them to one shape first")
    for split in splits:
        with _no_bars():
            _rows(data[split]).to_parquet(folder / f"{split}.parquet")


def _shape(data: Any) -> tuple[int, ...] | None:
    """The shape of a sample of arrays ``(x, y)``, without channels, which may come first or last; ``None``: it has none."""
    x = data[0] if isinstance(data, tuple) and len(data) == 2 else None
    shape = tuple(getattr(x, "shape", ()))[1:]
    return tuple(n for n in shape if n not in (1, 3)) or None


@contextmanager
def _no_bars() -> Iterator[None]:
    """A block without the progress bars of the `datasets` library."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _rows(data: Any) -> datasets.Dataset:
    """Data as a table, images as PNG."""
    import datasets
    import torch

    if isinstance(data, datasets.Dataset):
        return _whole(data)
    if isinstance(data, tuple) and len(data) == 2:
        x, y = data
        if _is_single(y):
            raise UsageError(f"labels of type {type(y).__name__}; arrays are (x, y), where y has a label for each sample of x")
    elif isinstance(data, list) or (isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__")):
        pairs = [data[i] for i in range(len(data))]
        if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            what = "list" if isinstance(data, list) else "torch data set"
            raise UsageError(f"a {what} whose items are not pairs of a sample and its label")
        x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    else:
        raise UsageError(f"data of type {type(data).__name__}; {_EXPECTED}")
    labels = [_label(number, label) for number, label in enumerate(y)]
    if not labels:
        raise UsageError("data without samples; a client that has none is left out")
    columns, features = _samples(x)
    if len(labels) != len(next(iter(columns.values()))):
        raise UsageError(f"{len(next(iter(columns.values())))} samples and {len(labels)} labels")
    kinds = {type(label) for label in labels}
    if kinds <= {int, float} and float in kinds:
        kind = datasets.Value("float64")  # as in a file, so that quantities are refused as labels
    elif kinds != {int}:
        kind, labels = datasets.Value("string"), [str(label) for label in labels]
    elif negative := [number for number, label in enumerate(labels) if label < 0]:
        raise UsageError(
            f"the label of sample {negative[0]} is {labels[negative[0]]}; number the classes from 0, or name them, and leave out "
            "samples without a label"
        )
    else:
        names = _names(data, labels)
        kind = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    return datasets.Dataset.from_dict(
        {**columns, GIVEN_LABEL: labels}, features=datasets.Features({**features, GIVEN_LABEL: kind})
    )


def _names(data: Any, labels: Sequence[int]) -> list[str]:
    """The names that a data set gives its classes, as torchvision's do in ``classes``; none where these cannot be the names."""
    given = getattr(data, "classes", None)
    names = [str(name) for name in given] if isinstance(given, list | tuple | np.ndarray) else []
    return names if len(set(names)) == len(names) and min(labels) >= 0 and max(labels) < len(names) else []


def _whole(data: datasets.Dataset) -> datasets.Dataset:
    """A data set whose images are in it, not in files that it names, which may change or go."""
    import datasets
    from datasets.table import embed_table_storage

    name = names_images(HubTable(data, "the data set", ()), Path.cwd())
    if name is not None:
        image, kind = _by_name(data[name], f"column {name!r}, row")
        rest = data.remove_columns(name)
        return rest.add_column(name, image["image"], feature=kind["image"])
    if not any(isinstance(kind, datasets.Image) for kind in data.features.values()):
        return data
    return data.with_format("arrow").map(embed_table_storage, batched=True, keep_in_memory=True).with_format(None)


def _label(number: int, label: Any) -> Any:
    shape = tuple(getattr(label, "shape", ())) or ((len(label),) if isinstance(label, list | tuple) else ())
    if shape:
        raise UsageError(
            f"the label of sample {number} has the shape {shape}; a label is one class, such as the argmax of a one-hot row"
        )
    value = label.item() if hasattr(label, "item") else label
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise UsageError(f"the label of sample {number} is {value}; leave out samples without a label")
    return value


def _samples(x: Any) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Samples as columns, and the columns' types."""
    import datasets
    import PIL.Image

    if isinstance(x, Iterable) and len(getattr(x, "shape", (None,))) == 1:  # also texts as an array or a pandas Series
        x = list(x)
    if isinstance(x, list) and any(isinstance(item, str | os.PathLike) for item in x) and (names := file_names(x)):
        if not any(map(is_image_name, names)):
            raise UsageError(f"samples that name files, such as {names[0]!r}; images alone are read so: give the arrays")
        return _by_name(x, "sample")
    if isinstance(x, list) and any(isinstance(item, str) for item in x):
        if odd := [number for number, item in enumerate(x) if not isinstance(item, str)]:
            raise UsageError(f"sample {odd[0]} is {x[odd[0]]!r}, and others are texts; leave out what has no text")
        return {"text": [str(item) for item in x]}, {"text": datasets.Value("string")}
    arrays = [as_array(item, number) for number, item in enumerate(x)] if isinstance(x, list) else []
    if arrays and all(isinstance(item, PIL.Image.Image) for item in x):
        return _images(arrays)  # of whatever sizes, as in files
    try:
        array = np.stack(arrays) if isinstance(x, list) else as_array(x)
    except ValueError:
        raise UsageError("samples of several shapes; bring them to one shape first") from None
    if array.ndim == 2 and array.dtype.kind in "fiub":
        columns = {f"x{i}": column.astype(np.float64) for i, column in enumerate(array.T)}
        return dict(columns), dict.fromkeys(columns, datasets.Value("float64"))
    if array.dtype.kind == "f" and _are_no_images(array):
        return _floats(array)
    if array.ndim in (3, 4):
        return _images(pixels(array))
    raise UsageError(f"samples of shape {array.shape[1:]} and type {array.dtype}; images, rows of numbers, or texts")


def _are_no_images(array: NDArray[Any]) -> bool:
    """Whether floats ``(N, C, ...)`` are arrays of another kind, such as time series: by their shape, or, of ``(N, C, L)``, by
    fewer channels than an image has rows, or numbers that are not in [0, 1]."""
    if array.ndim == 4:
        return not {1, 3} & {array.shape[1], array.shape[3]}
    if array.ndim == 3 and array.size:
        return min(array.shape[1:]) < THIN or not (np.nanmin(array) >= 0 and np.nanmax(array) <= 1)
    return array.ndim in (5, 6)


def _floats(array: NDArray[Any]) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Arrays ``(N, C, ...)`` of floats as a column, and its type."""
    array = array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32)
    return {"x": list(array)}, {"x": array_types()[array.ndim - 3](array.shape[1:], str(array.dtype))}


def as_array(sample: Any, number: int = 0) -> NDArray[Any]:
    """A sample, or all of them, as an array.

    Args:
        number: the sample's, for messages.
    """
    import PIL.Image
    import torch

    from fedpriv.data.tables.decoding import plain
    from fedpriv.data.tables.depth import DEEP, is_deep

    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu()
        return np.asarray(sample.float() if sample.dtype == torch.bfloat16 else sample)
    if isinstance(sample, PIL.Image.Image):
        try:
            deep = is_deep(sample)
            pixels = None if deep else plain(sample)
        except Exception as error:  # Pillow's plugins raise any exception on a broken file, which is read here
            raise FedprivError(f"cannot decode the image {number}: {type(error).__name__}: {first_line(error)}") from None
        if pixels is None:
            raise UsageError(f"the image {number} {DEEP}")
        return pixels
    return np.asarray(sample)


def _images(images: Iterable[NDArray[np.uint8]]) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Images ``(H, W)`` or ``(H, W, 3)`` as a column, and its type."""
    import datasets

    return {"image": [{"bytes": _png(image), "path": None} for image in images]}, {"image": datasets.Image(decode=False)}


def _by_name(names: Sequence[object], what: str) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """The files of images, named relative to the working folder, as a column, and its type."""
    import datasets

    paths = resolved(names, Path.cwd(), lambda row: f"{what} {row}")
    values = [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]
    return {"image": values}, {"image": datasets.Image(decode=False)}


def pixels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Images ``(N, H, W)`` or ``(N, H, W, 3)``."""
    if array.ndim == 4 and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim == 4:
        if array.shape[3] not in (1, 3):
            raise UsageError(f"images of shape {array.shape[1:]}: one or three channels, first or last")
        array = array[..., 0] if array.shape[3] == 1 else array
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "f" and len(broken := np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))):
        raise UsageError(f"sample {broken[0]} holds a NaN or an infinity; mend it, or leave it out")
    if array.dtype.kind != "f" or not (array.min() >= 0 and array.max() <= 1):
        shown = f"{array.dtype}, from {array.min():g} to {array.max():g}"
        raise UsageError(
            f"images are uint8, or floats in [0, 1], and these are {shown}; leave out what normalises them: the run does it; "
            "arrays of other kinds, such as time series, are floats"
        )
    return np.round(array * 255).astype(np.uint8)


def _png(image: NDArray[np.uint8]) -> bytes:
    import PIL.Image

    content = io.BytesIO()
    PIL.Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.parquet")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
