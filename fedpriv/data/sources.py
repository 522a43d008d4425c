"""Data sets by name: their sources and normalisation, and the function that loads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.config import DataConfig
from fedpriv.data.assembling import SampleChoice, assemble
from fedpriv.data.dataset import Dataset, Opened, Source, Texts, Values
from fedpriv.data.disaster import open_damage
from fedpriv.data.medic import TASKS, medic_opener
from fedpriv.data.statistics.cells import Cells
from fedpriv.data.subsets import hold_out, in_proportion
from fedpriv.data.synthetic_pairs import open_synthetic
from fedpriv.data.tables.columns import Columns
from fedpriv.data.user_data.owners import NO_CLIENT, Owners
from fedpriv.errors import UsageError
from fedpriv.registry import Registry, instance_of

Opener = Callable[[Path | None], Opened]

if TYPE_CHECKING:
    from fedpriv.data.tables.decoding import Mode
    from fedpriv.data.tables.files import Table


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


def load_labels(name: str, data_dir: Path | None = None, limit: int | None = None) -> Opened:
    """As :func:`load_dataset`, but samples are read on access."""
    return open_data(DataConfig(name=name, dir=data_dir, limit=limit))


def load_data(data: DataConfig) -> Dataset:
    """As :func:`read_data`, with samples that are scaled and coded by statistics of all training rows, as of one client's."""
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
    if data.name not in _SOURCES and (both := dataset.repeated()):
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
    """As :func:`_scaling`, where there may be no data.

    Args:
        named: whether the config names the data set; otherwise the clients' data are their own.
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
    if folder is None or data.dir is not None or data.name not in sources() or data.name in _WITHOUT_FILES:
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
    return {name: known[name] for name in (*_SOURCES, *sorted(known.keys() - _SOURCES))}


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
    """With so many training and test samples; ``None``: with all."""
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


@cache
def _digits() -> tuple[Tensor, NDArray[np.int64]]:
    """Pixels ``(n, 1, 8, 8)`` and labels ``(n,)``; read once a process, not to be written to."""
    # As sklearn.datasets.load_digits, whose import would take longer than many a run.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    # Its pixels are 0..16.
    return torch.from_numpy(np.round(rows[:, :-1] * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8), rows[:, -1].astype(np.int64)


def _open_digits(_: Path | None) -> Opened:
    pixels, labels = _digits()
    train, test = hold_out(labels, 0.2)

    def images(side: int | None) -> tuple[Tensor, Tensor]:
        shown = pixels
        if side is not None:
            from torchvision.transforms.v2.functional import resize

            shown = resize(pixels, [side, side], antialias=True)
        return shown[train], shown[test]

    return Opened(labels[train], labels[test], tuple("0123456789"), images)


def hub_source(
    hub_id: str,
    name: str,
    columns: Columns | None,
    mode: Mode | None = None,
    splits: tuple[str, ...] = ("train", "test"),
    choice: SampleChoice | None = None,
) -> Callable[[Path | None], Opened]:
    """An opener for a data set of the hub, or its copy ``<dir>/<name>/{train,test}.parquet`` (or CSV).

    Args:
        columns: the roles of the columns; ``None``: found by type and name, where the hub and other copies name them differently.
    """

    def open_(data_dir: Path | None) -> Opened:
        from fedpriv.data.tables.columns import find_columns
        from fedpriv.data.tables.folders import open_folder, table_files
        from fedpriv.data.tables.hub import open_hub

        folder = data_dir / name if data_dir else None
        tables: list[Table]
        if folder and table_files(folder):
            train, test = open_folder(folder)
            if test is None and len(splits) > 1:
                raise UsageError(f"{folder} holds no test split; {name} needs one, such as test.parquet")
            tables = [train] if test is None or len(splits) == 1 else [train, test]
        else:
            hint = (
                f"put its files under <dir>/{name}/{{train,test}}.parquet and give <dir> as --data-dir or FEDPRIV_DATA, "
                "or connect to the hub once"
            )
            tables = open_hub(hub_id, name, splits, hint)
        columns_read = columns or find_columns(tables[0])
        there = tables[0].features
        for column in columns_read.read:
            if column not in there:
                raise UsageError(f"{tables[0].origin} has no column {column!r}; its columns are: {', '.join(there)}")
        return assemble(name, tables, columns_read, mode, choice)

    return open_


def _usual_model(opened: Opened, shape: tuple[int, ...] | None) -> str:
    """For images of shape ``(C, H, W)``; ``None``: the samples have none."""
    if opened.cells is not None:
        return "mlp"
    if shape is None or opened.texts is not None:
        return "transformer" if shape is None else "fusion"
    if shape[0] == 1:
        return "mlp_lineage"
    return "cnn10" if shape[1:] == (32, 32) else "resnet18"


_WITHOUT_FILES = ("digits", "disaster_synthetic")
"""Data sets that are read from no data folder."""
# The normalisations of CIFAR are those of FedRep's code (Collins et al. 2021).
_SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source("digits", "8 x 8 grey digits of scikit-learn, 10 classes; 1,797 images, fixed 80 / 20 split", _open_digits,
               (0.0,), (1.0,), "mlp_lineage"),
        Source("fashion_mnist", "28 x 28 grey articles of clothing, 10 classes (Zalando)",
               hub_source("zalando-datasets/fashion_mnist", "fashion_mnist", Columns("label", image="image"), "L"),
               (0.2860,), (0.3530,), "mlp_lineage"),
        Source("cifar10", "32 x 32 colour photographs, 10 classes (Krizhevsky 2009)",
               hub_source("uoft-cs/cifar10", "cifar10", Columns("label", image="img"), "RGB"),
               (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "cnn10"),
        Source("cifar100", "32 x 32 colour photographs, 100 classes (Krizhevsky 2009)",
               hub_source("uoft-cs/cifar100", "cifar100", Columns("fine_label", image="img"), "RGB"),
               (0.507, 0.487, 0.441), (0.267, 0.256, 0.276), "cnn100"),
        # The published runs read lower-case a-j of NIST SD19 by_class with their own resizing, at most 4,000 a class. This is
        # LEAF's preparation of the same pages, hence a substitute: other cropping, other counts. It has one split; a tenth of
        # each class is the server's test set, and the partition `lognormal` takes the clients' test images from the rest.
        Source("femnist", "28 x 28 lower-case letters a-j; LEAF's preparation of NIST SD19, a substitute for the papers' own",
               hub_source("flwrlabs/femnist", "femnist", Columns("character", image="image"), "L", ("train",),
                          SampleChoice(tuple("abcdefghij"), 4000, 0.1)),
               (0.0,), (1.0,), "mlp_lineage"),
        Source("tiny_imagenet", "64 x 64 colour photographs, 200 classes; its validation split is the test split",
               hub_source("zh-plus/tiny-imagenet", "tiny_imagenet", Columns("label", image="image"), "RGB", ("train", "valid")),
               None, None, "resnet18"),
        # Casanueva et al. 2020; partitioned as in SimProx (2024).
        Source("banking77", "customers' questions to a bank, 77 intents; texts (Casanueva et al. 2020)",
               hub_source("PolyAI/banking77", "banking77", None),
               default_model="transformer",
               suggests={"data.partition.name": "class_subsets", "data.partition.classes_per_client": 20,
                         "data.max_tokens": 64, "train.participation": 0.3}),
        # Mouzannar et al. 2018; split as in SimProx (2024), normalised as ImageNet.
        Source("medic", "5,831 photographs with tweets, 6 classes (Mouzannar 2018); SimProx calls these pairs MEDIC",
               open_damage, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "fusion",
               {"data.partition.name": "dirichlet", "data.partition.alpha": 0.5, "data.image_size": 224, "data.max_tokens": 128,
                "train.participation": 0.3}),
        *(Source(f"medic_{task}", f"MEDIC's 71,198 photographs of disasters, labels {task.replace('_', ' ')} (Alam et al. 2022)",
                 medic_opener(task), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "resnet18", {"data.image_size": 224})
          for task in TASKS),
        Source("disaster_synthetic", "generated 32 x 32 images and texts in those 6 classes; synthetic pairs, no download",
               lambda _: open_synthetic(), default_model="fusion",
               suggests={"data.partition.name": "dirichlet", "data.partition.alpha": 0.5, "data.max_tokens": 32,
                         "train.participation": 0.3, "model.encoder": "tiny", "model.backbone": "moon_cnn",
                         "model.pretrained": False, "model.projection": None, "train.lr": 0.05}),
    )
}  # fmt: skip
for _source in _SOURCES.values():
    REGISTRY.add(_source.name, _source, __name__)
