"""Listings of what has a name, kept in the user's cache: from the second time on they need no import of PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from fedpriv.cli.common import loading
from fedpriv.errors import UnknownName
from fedpriv.files import Damaged, load_json, save_json
from fedpriv.untrusted.cache import cache_folder

Rows = dict[str, list[dict[str, Any]]]
_PACKAGE = Path(__file__).parents[1]


def listed(command: str, *facts: object, compute: Callable[[], Rows]) -> Rows:
    """The rows that a listing command shows: from the cache, or computed and put there.

    With plug-ins they are always computed, as these may change without a trace in their file names. A listing that is kept was
    made without any: what is installed is part of its name, so that entry points are read only where a listing is made.

    Args:
        command: its name; ``facts``: the values of its options.

    Returns:
        The rows as JSON has them: with lists, not tuples.
    """
    path = _path(command, *facts)
    if path is not None:
        with suppress(Damaged):  # or not there
            return load_json(path)
    loading()
    rows: Rows = json.loads(json.dumps(compute()))
    if path is not None and not any(group.startswith("fedpriv.") for group in entry_points().groups):
        with suppress(OSError):  # a full disk, or a home that cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            save_json(path, rows)
    return rows


def check_name(command: str, kind: str, name: str | None) -> None:
    """Refuse a name that the kept listing lacks. Without a kept listing, names are checked later, once PyTorch is loaded.

    Raises:
        UnknownName: with the nearest name.
    """
    path = _path(command)
    if name is None or path is None:
        return
    with suppress(Damaged):
        known = [row["name"] for row in load_json(path)[f"{kind}s"]]
        if name not in known:
            raise UnknownName(kind, name, known)


def _path(command: str, *facts: object) -> Path | None:
    """The file of a listing; ``None`` where ``--plugin`` names plug-ins."""
    if click.get_current_context().meta.get("fedpriv.plugins"):
        return None
    state = (command, facts, sys.version, sorted(_sources()), sorted(_installed()))
    return cache_folder() / "listings" / f"{hashlib.sha256(repr(state).encode()).hexdigest()[:32]}.json"


def _sources() -> Iterator[tuple[str, int, int]]:
    """Path, size and time of the last change of each Python file of this package."""
    for folder, _, names in os.walk(_PACKAGE, followlinks=True):
        for name in names:
            if name.endswith(".py"):
                status = os.stat(path := os.path.join(folder, name))
                yield path, status.st_size, status.st_mtime_ns


def _installed() -> Iterator[tuple[str, int]]:
    """Path and time of the last change of the metadata of each installed distribution, which list its entry points."""
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    yield entry.path, entry.stat().st_mtime_ns
