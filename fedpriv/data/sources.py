"""Data sets by name: where each comes from, how it is normalised, and the one way to load it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.errors import FedprivError, UnknownName, UsageError

if TYPE_CHECKING:
    from fedpriv.data.decoding import Mode
    from fedpriv.data.tables import Table

_HOLD_OUT_SEED = 20220601  # fixed for good: the split of a data set is part of the data set
ENTRY_POINTS = "fedpriv.data"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Decoded images ``(N, C, H, W)`` uint8 and labels ``(N,)`` int64; ``mean`` and ``std`` per channel on the [0, 1] scale."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    default_model: str

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """``(C, H, W)``."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, eq=False)
class Opened:
    """A data set whose labels are read and whose images are not: ``images()`` decodes them, training and test."""

    train_labels: NDArray[np.int64]
    test_labels: NDArray[np.int64]
    classes: tuple[str, ...]
    images: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Source:
    """One data set by name. Another package adds its own as an entry point of the group ``fedpriv.data``.

    Attributes:
        open: given the data folder (or ``None``), returns the labels and a way to the images.
        mean, std: per channel on the [0, 1] scale; ``None``: measured on the training images.
        default_model: a name of ``fedpriv models``; ``None``: by the images' shape.
    """

    name: str
    about: str
    open: Callable[[Path | None], Opened]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    default_model: str | None = None


def load_dataset(name: str, data_dir: Path | None = None, limit: int | None = None) -> Dataset:
    """Load a data set by name, or from the path of an image folder, a parquet file or a folder of them.

    Args:
        data_dir: folder that may hold ``<name>/{train,test}.parquet``; ``None``: the environment's ``FEDPRIV_DATA``.
            Where it does not hold the data set, the Hugging Face hub is asked.
        limit: number of training samples kept (:func:`in_proportion`); ``None``: all.

    Raises:
        UsageError: unknown name, missing files, images or labels that do not fit together; one line.
        FedprivError: a damaged file, named.
    """
    source = _find(name)
    opened = _open(source, data_dir, limit)
    train, test = opened.images()
    mean, std = (source.mean, source.std) if source.mean and source.std else _measure(train)
    return Dataset(
        name=source.name,
        train_images=train,
        train_labels=torch.from_numpy(opened.train_labels),
        test_images=test,
        test_labels=torch.from_numpy(opened.test_labels),
        classes=opened.classes,
        mean=mean,
        std=std,
        default_model=source.default_model or _usual_model(tuple(train.shape[1:])),
    )


def load_labels(name: str, data_dir: Path | None = None, limit: int | None = None) -> Opened:
    """As :func:`load_dataset`, but no image is decoded until ``images()`` of the result is called."""
    return _open(_find(name), data_dir, limit)


def sources() -> dict[str, Source]:
    """All data sets by name, third parties' included."""
    theirs = {point.name: point.load() for point in entry_points(group=ENTRY_POINTS)}
    return {**theirs, **_SOURCES}


def _find(name: str) -> Source:
    if name in _SOURCES:  # without the look through installed packages
        return _SOURCES[name]
    path = Path(name).expanduser()
    if path.suffix == ".parquet" or os.sep in name or path.is_dir():
        path = path.absolute()  # a run that is resumed from another folder must find it
        return Source(str(path), "local files", lambda _: _open_local(path))
    known = sources()
    if name not in known:
        raise UnknownName("data set", name, known)
    return known[name]


def _open(source: Source, data_dir: Path | None, limit: int | None) -> Opened:
    if data_dir is None and os.environ.get("FEDPRIV_DATA"):
        data_dir = Path(os.environ["FEDPRIV_DATA"])
    if data_dir is not None and not data_dir.is_dir():
        raise UsageError(f"the data folder {data_dir} is not there")
    opened = source.open(data_dir)
    return opened if limit is None else _limited(opened, limit)


def _limited(opened: Opened, limit: int) -> Opened:
    if limit > len(opened.train_labels):
        raise UsageError(f"data.limit {limit}: there are {len(opened.train_labels)} training samples")
    kept = in_proportion(opened.train_labels, limit)

    def images() -> tuple[Tensor, Tensor]:
        train, test = opened.images()
        return train[kept], test

    return Opened(opened.train_labels[kept], opened.test_labels, opened.classes, images)


def in_proportion(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sorted positions ``(count,)`` of a fixed choice of samples with the classes' shares kept, to within one sample each.

    The samples of a smaller choice are not in general among those of a larger one.
    """
    rng = np.random.default_rng(_HOLD_OUT_SEED)
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * count / len(labels)
    quotas = np.floor(exact).astype(int)
    # Largest remainders, ties to the lower class.
    quotas[np.argsort(quotas - exact, kind="stable")[: count - quotas.sum()]] += 1
    return np.sort(
        np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, quotas, strict=True)])
    )


def hold_out(labels: NDArray[np.int64], fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of a fixed training and test split, the fraction held out of each class (rounded), both sorted."""
    rng = np.random.default_rng(_HOLD_OUT_SEED)
    groups = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    test = np.sort(np.concatenate([group[: round(fraction * len(group))] for group in groups]))
    return np.setdiff1d(np.arange(len(labels)), test), test


def _open_digits(_: Path | None) -> Opened:
    from sklearn.datasets import load_digits

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    train, test = hold_out(labels, 0.2)
    # sklearn's pixels are 0..16.
    pixels = torch.from_numpy(np.round(digits.images * 255 / 16).astype(np.uint8))[:, None]
    return Opened(labels[train], labels[test], tuple(map(str, digits.target_names)), lambda: (pixels[train], pixels[test]))


def hub_source(
    hub_id: str,
    name: str,
    image: str,
    label: str,
    mode: Mode,
    splits: tuple[str, ...] = ("train", "test"),
    keep: tuple[str, ...] = (),
    at_most: int | None = None,
    fraction: float = 0.1,
) -> Callable[[Path | None], Opened]:
    """How to open a data set of the hub, or its copy ``<dir>/<name>/{train,test}.parquet``.

    Args:
        keep: names of the classes that are kept, in their new order; empty: all.
        at_most: images kept per class, a fixed random choice.
        fraction: held out of each class for testing where there is one split only.
    """

    def open_(data_dir: Path | None) -> Opened:
        from fedpriv.data.tables import ParquetTable, open_folder, open_hub

        folder = data_dir / name if data_dir else None
        tables: list[Table]
        if folder and any(folder.glob("*.parquet")):
            train, test = open_folder(folder)
            if test is None and len(splits) > 1:
                raise UsageError(f"{folder} holds no test.parquet; {name} has a test split of its own")
            tables = [train] if test is None or len(splits) == 1 else [train, test]
        else:
            tables = open_hub(hub_id, name, splits)
        for table in tables:
            for column in (image, label):
                if column not in table.features:
                    where = table.origin if isinstance(table, ParquetTable) else hub_id
                    raise UsageError(f"{where} has no column {column!r}; its columns are: {', '.join(table.features)}")
        return _assemble(name, tables, image, label, mode, keep, at_most, fraction)

    return open_


def _open_local(path: Path) -> Opened:
    """A parquet file, or a folder of parquet or images; one split alone is divided 80 / 20 for good, class by class."""
    from fedpriv.data.tables import ParquetTable, find_columns, open_folder

    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    train, test = open_folder(path) if path.is_dir() else (ParquetTable((path,)), None)
    image, label = find_columns(train)
    tables: list[Table] = [train] if test is None else [train, test]
    return _assemble(path.name, tables, image, label, None, (), None, 0.2)


def _assemble(
    name: str,
    tables: list[Table],
    image: str,
    label: str,
    mode: Mode | None,
    keep: tuple[str, ...],
    at_most: int | None,
    fraction: float,
) -> Opened:
    """Labels and lazy images of one table (divided) or two (training, test)."""
    labels, classes = _labels(tables, label)
    kept = [np.arange(len(values)) for values in labels]
    if keep:
        if missing := [cls for cls in keep if cls not in classes]:
            raise UsageError(f"{tables[0].origin} has no class {missing[0]!r} in column {label!r}")
        new_id = np.full(len(classes), -1)
        new_id[[classes.index(cls) for cls in keep]] = np.arange(len(keep))
        labels, classes = [new_id[values] for values in labels], keep
        kept = [np.flatnonzero(values >= 0) for values in labels]
    if at_most is not None:
        rng = np.random.default_rng(_HOLD_OUT_SEED)
        chosen = [rng.permutation(kept[0][labels[0][kept[0]] == c])[:at_most] for c in range(len(classes))]
        kept[0] = np.sort(np.concatenate(chosen))
    if len(tables) == 1:
        train, test = hold_out(labels[0][kept[0]], fraction)
        tables, labels, kept = tables * 2, labels * 2, [kept[0][train], kept[0][test]]
    for table, rows, what in zip(tables, kept, ("training", "test"), strict=True):
        if not len(rows):
            raise UsageError(f"{table.origin} leaves no {what} images")
    pairs = list(zip(tables, kept, strict=True))

    def images() -> tuple[Tensor, Tensor]:
        from fedpriv.data import decoding

        cache = decoding.cache_folder() / f"{name}-{decoding.cache_key(pairs, image, mode)}.safetensors"
        cached = decoding.read_cache(cache)
        if cached is None:
            common = mode or decoding.common_mode(pairs, image)
            train, test = (decoding.decode(table, image, rows, common) for table, rows in pairs)
            if train.shape[1:] != test.shape[1:]:
                raise UsageError(f"the images of {tables[0].origin} and of {tables[1].origin} differ in size")
            cached = {"train": train, "test": test}
            decoding.write_cache(cache, cached)
        return cached["train"], cached["test"]

    return Opened(labels[0][kept[0]], labels[1][kept[1]], classes, images)


def _labels(tables: list[Table], column: str) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Class ids per table and the classes' names: as the file states them, else the sorted values of the training split."""
    import datasets

    raw = [table.column(column) for table in tables]
    for table, values in zip(tables, raw, strict=True):
        if values.null_count:
            raise FedprivError(f"{table.origin} has {values.null_count} rows without a label in column {column!r}")
    values = [array.to_numpy() for array in raw]
    feature = tables[0].features[column]
    if isinstance(feature, datasets.ClassLabel):
        classes = tuple(feature.names)
    elif all(np.issubdtype(array.dtype, np.integer) for array in values):
        highest = max(int(array.max(initial=-1)) for array in values)
        if highest >= sum(map(len, values)):
            raise UsageError(f"{tables[0].origin}: label {highest} in column {column!r} is too high; number the classes from 0")
        classes = tuple(map(str, range(highest + 1)))
    else:
        classes = tuple(sorted({str(value) for value in values[0]}))
        known = {cls: i for i, cls in enumerate(classes)}
        values = [np.array([known.get(str(value), -1) for value in array]) for array in values]
    for table, ids in zip(tables, values, strict=True):
        outside = np.flatnonzero((ids < 0) | (ids >= len(classes)))
        if len(outside):
            shown = raw[tables.index(table)][int(outside[0])].as_py()
            raise FedprivError(
                f"{table.origin}: label {shown!r} in row {outside[0]} of column {column!r} is none of the {len(classes)} classes"
            )
    return [ids.astype(np.int64) for ids in values], classes


def _measure(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on the [0, 1] scale, to four digits; a flat channel is left unscaled."""
    channels: list[Any] = [images[:, c].numpy() / np.float32(255) for c in range(images.shape[1])]
    mean = tuple(round(float(channel.mean(dtype=np.float64)), 4) for channel in channels)
    std = tuple(round(float(channel.std(dtype=np.float64)), 4) or 1.0 for channel in channels)
    return mean, std


def _usual_model(shape: tuple[int, ...]) -> str:
    if shape[0] == 1:
        return "mlp_lineage"
    return "cnn10" if shape[1:] == (32, 32) else "resnet18"


# Normalisations of CIFAR: method card MpFedcon 1.9 (those of the FedRep code).
_SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source("digits", "8 x 8 grey digits of scikit-learn, 10 classes; 1,797 images divided 80 / 20 for good", _open_digits,
               (0.0,), (1.0,), "mlp_lineage"),
        Source("fashion_mnist", "28 x 28 grey articles of clothing, 10 classes (Zalando)",
               hub_source("zalando-datasets/fashion_mnist", "fashion_mnist", "image", "label", "L"),
               (0.2860,), (0.3530,), "mlp_lineage"),
        Source("cifar10", "32 x 32 colour photographs, 10 classes (Krizhevsky 2009)",
               hub_source("uoft-cs/cifar10", "cifar10", "img", "label", "RGB"),
               (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "cnn10"),
        Source("cifar100", "32 x 32 colour photographs, 100 classes (Krizhevsky 2009)",
               hub_source("uoft-cs/cifar100", "cifar100", "img", "fine_label", "RGB"),
               (0.507, 0.487, 0.441), (0.267, 0.256, 0.276), "cnn100"),
        # The published runs read lower-case a-j of NIST SD19 by_class with their own resizing, at most 4,000 a class. This is
        # LEAF's preparation of the same pages, hence a substitute: other cropping, other counts. It has one split; a tenth of
        # each class is the server's test set, and the partition `lognormal` takes the clients' test images from the rest.
        Source("femnist", "28 x 28 lower-case letters a-j; LEAF's preparation of NIST SD19, a substitute for the papers' own",
               hub_source("flwrlabs/femnist", "femnist", "image", "character", "L", ("train",), tuple("abcdefghij"), 4000),
               (0.0,), (1.0,), "mlp_lineage"),
        Source("tiny_imagenet", "64 x 64 colour photographs, 200 classes; its validation split is the test split",
               hub_source("zh-plus/tiny-imagenet", "tiny_imagenet", "image", "label", "RGB", ("train", "valid")),
               None, None, "resnet18"),
    )
}  # fmt: skip
