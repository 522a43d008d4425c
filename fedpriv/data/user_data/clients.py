"""A folder with a folder for each client: ``clients/<client>/...``, each an image folder by class, a table, or both splits.

It is recognised by its name, ``clients``; by several sub-folders that all hold tables (CSV, parquet); or by the config (partition
``given``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpriv.data.disaster import holds_pairs
from fedpriv.data.subsets import hold_out
from fedpriv.data.tables.files import Table, shown
from fedpriv.data.tables.folders import by_split, data_folder, folders_in, holds_images, open_folder, table_files
from fedpriv.data.tables.hub import SPLITS
from fedpriv.data.tables.joined import Joined, Part
from fedpriv.errors import UsageError

NAME = "clients"
SHARE = 0.2
"""Share of a client's rows that is held out, where it has no test rows and others have."""


def client_folders(folder: Path, asked: bool = False) -> list[Path]:
    """The clients' folders in a folder; none where it is not one of clients.

    Args:
        asked: the config says that it is.
    """
    inner_folders = folders_in(folder)
    if [inner.name for inner in inner_folders] == [NAME]:
        return client_folders(inner_folders[0], asked)
    if not inner_folders or table_files(folder) or {inner.name.lower() for inner in inner_folders} <= {"train", *SPLITS}:
        return []
    named = (asked or folder.name == NAME) and not any(map(holds_images, inner_folders))
    several = len(inner_folders) > 1  # one alone is where the hub's repositories have their tables
    return inner_folders if named or (several and all(map(table_files, inner_folders))) else []


def looks_like_clients(folder: Path) -> str | None:
    """A hint, where folders that are read as classes have sub-folders of the same names, as clients' would."""
    subfolders = folders_in(folder)
    if len(subfolders) < 2 or _train(folder) != folder or any(map(holds_images, subfolders)):
        return None
    if client_folders(folder) or holds_pairs(folder):  # read as what they are
        return None
    inner = [{child.name for child in folders_in(sub)} for sub in subfolders]
    if len(common := set.intersection(*inner)) < 2:
        return None
    classes, names = (", ".join(list(some)[:3]) for some in (sorted(common), [sub.name for sub in subfolders]))
    return f"{names} are read as classes; if they are clients and {classes} their classes, add --partition given"


def open_clients(folders: Sequence[Path]) -> tuple[Joined, Joined | None, tuple[str, ...]]:
    """The clients' training rows and test rows, and the names of the clients that lack a test split where others have one.

    Of these clients a fifth of the rows is held out. There are no test rows (``None``) where no client has any.

    Raises:
        UsageError: a client's folder holds no data, or pairs.
    """
    for folder in folders:
        if not folder.name.isprintable():
            raise UsageError(f"{str(folder)!r}: the name of a client holds a character that cannot be shown")
        if holds_pairs(folder):
            raise UsageError(
                f"{folder} holds image-text pairs, which cannot come by client; put the pairs of all clients into one folder, as "
                "<class>/images/<name>.jpg and <class>/text/<name>.txt, for a partition to divide"
            )
    tables = [table_files(data_folder(folder)) for folder in folders]
    classes = () if any(tables) else sorted({child.name for folder in folders for child in folders_in(_train(folder))})
    opened = [open_folder(folder, classes) for folder in folders]
    names, where = tuple(folder.name for folder in folders), shown(folders[0].parent)
    trained, tested = zip(*opened, strict=True)
    if not any(tested):
        return Joined(names, trained, where), None, ()
    without = tuple(name for name, table in zip(names, tested, strict=True) if table is None)
    parts = [_held_out(train) if test is None else (train, test) for train, test in zip(trained, tested, strict=True)]
    trained, tested = zip(*parts, strict=True)
    return Joined(names, trained, where), Joined(names, tested, f"{where} (test)"), without


def _held_out(table: Table) -> tuple[Table, Table]:
    """The rows of a table without a fixed fifth, and these."""
    count = len(table.column(next(iter(table.features))))
    train, test = hold_out(np.zeros(count, dtype=np.int64), SHARE)
    return Part(table, train), Part(table, test)


def _train(folder: Path) -> Path:
    return by_split(folders_in(folder)).get("train", [folder])[0]
