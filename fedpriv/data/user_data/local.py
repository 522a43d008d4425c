"""Data sets that are no built-in ones: files and folders by path, and data sets of the hub as ``hf:owner/name``."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.config import DataConfig
from fedpriv.data.assembling import assemble
from fedpriv.data.dataset import Opened, Source
from fedpriv.data.disaster import holds_pairs, open_pairs
from fedpriv.data.tables.columns import find_columns
from fedpriv.data.tables.files import open_file
from fedpriv.data.tables.folders import not_read, open_folder
from fedpriv.data.tables.hub import open_hub
from fedpriv.data.tables.paths import with_images
from fedpriv.data.user_data.clients import client_folders, looks_like_clients, open_clients
from fedpriv.data.user_data.objects import FOLDER
from fedpriv.data.user_data.owners import GIVEN
from fedpriv.errors import UsageError
from fedpriv.untrusted.names import first_few, printable

if TYPE_CHECKING:
    from fedpriv.data.tables.files import Table

HUB = "hf:"
_SHOWN = 5
"""How many of the files that are not read a line names."""
_HUB_NAME = re.compile(r"hf:(?P<id>[\w.-]+(/[\w.-]+)?)(:(?P<config>[^@\s]+))?(@(?P<revision>\S+))?")


def local_source(path: Path, data: DataConfig) -> Source:
    """A parquet or CSV file, or a folder: of these, of images, of image-text pairs, or with one of these for each client."""
    asked = data.partition.name == GIVEN and "name" in data.partition.model_fields_set
    folders = client_folders(path, asked) if path.is_dir() else []
    suggests = {"data.partition.name": GIVEN} if folders else {}
    return Source(str(path), "local files", lambda _: _open(path, folders, data), suggests=suggests)


def _open(path: Path, folders: list[Path], data: DataConfig) -> Opened:
    """A single split is divided 80 / 20 by a fixed choice; of clients, each client's."""
    if not path.exists():
        given = "; it held data that were given as an object: pass it to fedpriv.train once more" if FOLDER in path.parts else ""
        raise UsageError(f"there is no file or folder {path}{given}")
    if holds_pairs(path):
        return open_pairs(path)
    train: Table
    test: Table | None
    if folders:
        train, test, without = open_clients(folders)
    else:
        without = ()
        train, test = open_folder(path) if path.is_dir() else (open_file(path), None)
    tables = [train] if test is None else [train, test]
    if data.features is None:
        tables = with_images(tables, (data.label, data.partition.column, *data.drop))
    opened = _assembled(path.name, tables, data)
    if without:
        names = first_few(without, _SHOWN)
        opened.notes.append(f"these clients have no test split, and a fixed fifth of their samples is held out: {names}")
    if path.is_dir():
        used = {Path(os.path.normpath(file)) for table in tables for file in table.files}
        if unread := [printable(str(file.relative_to(path))) for file in not_read(path, used)]:
            more = f", ... ({len(unread):,} in all)" if len(unread) > _SHOWN else ""
            opened.notes.append(f"not read in {path}: {', '.join(unread[:_SHOWN])}{more}")
        if not folders and (hint := looks_like_clients(path)) is not None:
            opened.notes.append(hint)
    return opened


def hub_source(name: str, data: DataConfig) -> Source:
    """A data set of the Hugging Face hub: ``hf:owner/name``, with ``:config`` and ``@revision`` if need be.

    Raises:
        UsageError: the name is none of these.
    """
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"data set {name!r}: expected hf:owner/name, hf:owner/name:config or hf:owner/name@revision")
    hub_id, config, revision = match["id"], match["config"], match["revision"]

    def open_(_: Path | None) -> Opened:
        hint = "connect to the hub once, or download its files and give their folder as --dataset"
        tables = open_hub(hub_id, name, None, hint, config, revision)
        return _assembled(hub_id.replace("/", "--"), tables, data)

    return Source(name, "data set of the hub", open_)


def _assembled(name: str, tables: list[Table], data: DataConfig) -> Opened:
    columns = find_columns(tables[0], data.label, data.partition.column, data.features, data.drop)
    declared = replace(columns, numbers=tuple(data.bounds), categories=tuple(data.levels))
    opened = assemble(name, tables, declared, task=data.task)
    if len(tables) == 1:
        whose = "the samples" if opened.owners is None else "each client's samples"
        opened.notes.append(f"there is no test split: a fixed fifth of {whose} is held out")
    return opened
