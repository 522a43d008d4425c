"""The data sets that have a name: where they are read from, and how they are normalised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.assembling import SampleChoice, assemble
from fedpriv.data.dataset import Opened, Source
from fedpriv.data.disaster import open_damage
from fedpriv.data.medic import TASKS, medic_opener
from fedpriv.data.subsets import hold_out
from fedpriv.data.synthetic_pairs import open_synthetic
from fedpriv.data.tables.columns import Columns
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.data.tables.decoding import Mode
    from fedpriv.data.tables.files import Table


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


WITHOUT_FILES = ("digits", "disaster_synthetic")
"""Data sets that are read from no data folder."""
# The normalisations of CIFAR are those of FedRep's code (Collins et al. 2021).
NAMED: Mapping[str, Source] = {
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
