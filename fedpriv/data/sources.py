"""Data sets by name or path: found, opened and loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.config import DataConfig
from fedpriv.data.catalogue import NAMED, WITHOUT_FILES
from fedpriv.data.dataset import Dataset, Opened, Source, Texts, Values
from fedpriv.data.statistics.cells import Cells
from fedpriv.data.subsets import in_proportion
from fedpriv.data.user_data.owners import NO_CLIENT, Owners
from fedpriv.errors import UsageError
from fedpriv.registry import Registry, instance_of

Opener = Callable[[Path | None], Opened]

REGISTRY: Registry[Source] = Registry("data set", "fedpriv.data", ["fedpriv.data.sources"], *instance_of(Source))


def register_dataset(name: str, about: str, **says: Any) -> Callable[[Opener], Opener]:
    """Register a function, data folder or ``None`` -> :class:`Opened`, as the data set ``name``; ``says``: fields of
    :class:`Source`.

    A plug-in does the same and lists its module, or a :class:`Source`, in the entry-point group ``fedpriv.data``.
    """

    def register(opener: Opener) -> Opener:
        REGISTRY.add(name, Source(name, about, opener, **says), opener)
        return opener

    return register


def load_dataset(
    name: str, data_dir: Path | None = None, limit: int | None = None, image_size: int | None = None, label: str | None = None
) -> Dataset:
    """Load a data set by name; arguments as the keys of :class:`DataConfig`, errors as for :func:`load_data`."""
    return load_data(DataConfig(name=name, dir=data_dir, limit=limit, image_size=image_size, label=label))


def load_data(data: DataConfig) -> Dataset:
    """As :func:`read_data`, with samples that are scaled and coded as if one client held all of them."""
    dataset = read_data(data)
    if dataset.is_encoded:
        return dataset
    everything, kind = np.arange(len(dataset.train_labels)), dataset.kind
    rows = dataset.training_rows(everything, data.min_level)
    inquiry = kind.inquiry(rows.levels(kind.undeclared(data.levels)))
    return dataset.encoded(kind.encoding(inquiry, rows.totals(inquiry), data.levels), everything)


def read_data(data: DataConfig, every_column: bool = False) -> Dataset:
    """Read the data set of a config, by name, or from the path of a folder, a parquet or a CSV file.

    It is looked for in the folder ``data.dir`` (or the environment's ``FEDPRIV_DATA``) as ``<name>/{train,test}.parquet`` (or
    CSV), and else on the Hugging Face hub.

    Args:
        every_column: whether to read columns of a table, too, that are no features by these rows alone.

    Raises:
        UsageError: the name is unknown, files are missing, or samples and labels do not fit.
        FedprivError: a file is damaged.
    """
    source, opened = _find(data.name, data), open_data(data)
    images = opened.images and opened.images(data.image_size or opened.suggests.get("data.image_size"))
    texts = opened.texts and opened.texts()
    mean, std = _scaling(data, source, images[0].shape[1]) if images else ((), ())
    dataset = Dataset(
        name=source.name,
        train_labels=torch.from_numpy(opened.train_labels),
        test_labels=torch.from_numpy(opened.test_labels),
        classes=opened.classes,
        default_model=source.default_model or _usual_model(opened, images and tuple(images[0].shape[1:])),
        images=images,
        texts=texts,
        target=opened.target,
        cells=opened.cells(every_column) if opened.cells else (),
        mean=mean,
        std=std,
        suggests=opened.suggests,
        owners=opened.owners,
        notes=tuple(opened.notes),
    )
    if data.name not in NAMED and (both := dataset.repeated()):
        tested = len(dataset.test_labels)
        overlap = f"{both:,} of the {tested:,} test samples equal a training sample; scores are too high if they are the same"
        dataset = replace(dataset, notes=(*dataset.notes, overlap))
    return dataset


def _scaling(data: DataConfig, source: Source, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation by which images are scaled, per channel on the [0, 1] scale; none: the clients measure them."""
    if data.pixels != "standardised":
        return (0.0,) * channels, (1.0 if data.pixels == "unit" else 1 / 255,) * channels
    return source.mean or (), source.std or ()


def known_scaling(data: DataConfig, channels: int, named: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """As :func:`_scaling`, where no data can be read.

    Args:
        named: whether the config names the data set; false: clients bring data of their own.
    """
    if named or data.pixels != "standardised":
        return _scaling(data, _find(data.name, data), channels)
    return (), ()


def open_data(data: DataConfig) -> Opened:
    """As :func:`load_data`, but samples are read on access."""
    source, folder = _find(data.name, data), data.dir or _of_environment()
    if folder is not None and not folder.is_dir():
        raise UsageError(f"the data folder {folder} does not exist")
    opened = source.open(folder)
    opened = replace(opened, suggests={**opened.suggests, **source.suggests})
    if data.limit is not None or data.test_limit is not None:
        opened = _limited(opened, data.limit, data.test_limit)
    if (column := data.partition.column) is not None:
        if opened.column is None:
            raise UsageError(f"data.partition.column {column}: {data.name} has no columns besides samples and labels")
        owners = Owners.of_values(*opened.column(column))
        opened = replace(opened, owners=owners)
        if owners.test is not None and (strange := int((owners.test == NO_CLIENT).sum())):
            opened.notes.append(
                f"{strange:,} of the {len(owners.test):,} test samples have a value in {column!r} that no training sample has: "
                "they are in the server's test set, and in no client's"
            )
    return opened


def _of_environment() -> Path | None:
    named = os.environ.get("FEDPRIV_DATA")
    return Path(named) if named else None


def environment_folder(data: DataConfig) -> Path | None:
    """The absolute data folder that the environment names for a data set; ``None``: none, or the data set is looked for elsewhere
    (in the config's folder, at a path of its own, or in this package)."""
    folder = _of_environment()
    if folder is None or data.dir is not None or data.name not in sources() or data.name in WITHOUT_FILES:
        return None
    return folder.absolute()


def suggestions(name: str) -> Mapping[str, Any]:
    """Values that a data set suggests for keys that the config leaves open, as far as known without opening it."""
    return _find(name, DataConfig(name=name)).suggests


def full_name(name: str) -> str:
    """The name by which a run stores a data set: of a file or folder, its absolute path."""
    return _find(name, DataConfig(name=name)).name


def usual_model(name: str) -> str | None:
    """The net of a data set where the config names none, as far as known without opening it; ``None``: it is not."""
    return _find(name, DataConfig(name=name)).default_model


def sources() -> dict[str, Source]:
    """All data sets by name, including those of plug-ins."""
    known = REGISTRY.all()
    return {name: known[name] for name in (*NAMED, *sorted(known.keys() - NAMED))}


def _find(name: str, data: DataConfig) -> Source:
    from fedpriv.data.user_data import local

    if name not in sources():  # takes precedence over a folder of that name
        if name.startswith(local.HUB):
            return local.hub_source(name, data)
        path = Path(name).expanduser()
        if path.suffix.lower() in (".parquet", ".csv") or os.sep in name or path.is_dir():
            return local.local_source(path.absolute(), data)  # absolute: a run can be resumed from another working directory
    for key in ("label", "task", "features", "drop", "bounds", "levels"):
        if value := getattr(data, key):
            shown = value if isinstance(value, str) else ", ".join(value)
            raise UsageError(f"data.{key} {shown}: the columns of {name} are known; leave it out")
    return REGISTRY.find(name)


def _limited(opened: Opened, limit: int | None, test_limit: int | None) -> Opened:
    """The data set with fewer training or test samples; ``None``: with all."""
    kept = _kept(opened.strata[0], limit, "limit", "training")
    tested = _kept(opened.strata[1], test_limit, "test_limit", "test")

    def images(side: int | None) -> tuple[Tensor, Tensor]:
        assert opened.images is not None
        train, test = opened.images(side)
        return train[kept], test[tested]

    def texts() -> tuple[Texts, Texts]:
        assert opened.texts is not None
        train, test = opened.texts()
        return tuple(train[i] for i in kept), tuple(test[i] for i in tested)

    def cells(every: bool) -> tuple[Cells, ...]:
        assert opened.cells is not None
        return tuple(column.at(kept, tested) for column in opened.cells(every))

    def column(name: str) -> Values:
        assert opened.column is not None
        train, test = opened.column(name)
        return train[kept], None if test is None else test[tested]

    return replace(
        opened,
        train_labels=opened.train_labels[kept],
        test_labels=opened.test_labels[tested],
        images=opened.images and images,
        texts=opened.texts and texts,
        cells=opened.cells and cells,
        column=opened.column and column,
        owners=opened.owners and opened.owners.at(kept, tested),
    )


def _kept(labels: NDArray[np.int64], limit: int | None, key: str, what: str) -> NDArray[np.int64]:
    """The positions of so many samples; ``None``: of all."""
    if limit is None:
        return np.arange(len(labels))
    if limit > len(labels):
        raise UsageError(f"data.{key} {limit}: there are {len(labels)} {what} samples")
    return in_proportion(labels, limit)


def _usual_model(opened: Opened, shape: tuple[int, ...] | None) -> str:
    """For images of shape ``(C, H, W)``; ``None``: the samples have none."""
    if opened.cells is not None:
        return "mlp"
    if shape is None or opened.texts is not None:
        return "transformer" if shape is None else "fusion"
    if shape[0] == 1:
        return "mlp_lineage"
    return "cnn10" if shape[1:] == (32, 32) else "resnet18"


for _source in NAMED.values():
    REGISTRY.add(_source.name, _source, __name__)
