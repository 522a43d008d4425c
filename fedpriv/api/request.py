"""Checks of a config that need neither PyTorch nor the data, which take seconds to load: names, the device, columns."""

from __future__ import annotations

import ast
import csv
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.config.device import check_device
from fedpriv.config.model import PAIR_MODEL, TEXT_MODEL
from fedpriv.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

_PACKAGE = Path(__file__).parents[1]
REGISTERED = {
    "method": ("methods", "fedpriv.methods"),
    "objective": ("objectives", "fedpriv.objectives"),
    "aggregation": ("aggregation", "fedpriv.aggregation"),
    "partition": ("data", "fedpriv.partitions"),
    "model": ("models", "fedpriv.models"),
}
"""By kind, the folder whose files register the built-in ones, and the entry points of plug-ins."""
_DECORATORS = ("register", "register_model", "partition_rule")
_OWN_NET = "package.module:Name for a net of your own"


def check_names(config: RunConfig) -> None:
    """Check the names of built-in things, unless PyTorch is loaded: plug-ins may then be, too, and the registries know them.

    Raises:
        UnknownName: nothing has the name.
    """
    if "torch" in sys.modules:
        return
    names = {"method": config.method.name, "partition": config.data.partition.name}
    model = config.model.name
    names |= {"model": model} if model and ":" not in model and model not in (TEXT_MODEL, PAIR_MODEL) else {}
    names |= {"objective": config.objective.name} if config.objective else {}
    names |= {"aggregation": config.aggregation.name} if config.aggregation else {}
    for kind, name in names.items():
        _check_name(kind, name)


def check_machine(config: RunConfig) -> None:
    """Check what a run on this machine needs of it.

    Raises:
        UsageError: a device or a file with starting weights that is not here, or a column that a CSV file does not have.
    """
    check_device(config.device)
    if config.model.init is not None and not config.model.init.is_file():
        raise UsageError(f"model.init {config.model.init}: there is no such file")
    for column in (config.data.label, config.data.partition.column):
        _check_column(Path(config.data.name), column)


def registered(kind: str) -> set[str]:
    """The names of the built-in things of a kind, as the decorators in the sources have them."""
    calls = [
        call
        for file in (_PACKAGE / REGISTERED[kind][0]).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for call in getattr(node, "decorator_list", ())
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _DECORATORS
    ]
    written = {argument.value for call in calls for argument in call.args if isinstance(argument, ast.Constant)}
    return {name for name in written if isinstance(name, str)} | ({"by_column", "given"} if kind == "partition" else set())


def _check_name(kind: str, name: str) -> None:
    folder, group = REGISTERED[kind]
    files = list((_PACKAGE / folder).rglob("*.py"))  # none of an installation without sources
    if not files or any(f'"{name}"' in file.read_text(encoding="utf-8") for file in files):
        return
    if not entry_points(group=group):
        raise UnknownName(kind, name, registered(kind), _OWN_NET if kind == "model" else "")


def _check_column(file: Path, column: str | None) -> None:
    if column is None or file.suffix.lower() != ".csv":
        return
    with suppress(OSError, UnicodeDecodeError, csv.Error), file.open(encoding="utf-8-sig", newline="") as opened:
        header = next((row for row in csv.reader(opened) if row), [])
        if len(header) > 1 and column not in header:
            raise UsageError(f"{file} has no column {column!r}; its columns are: {', '.join(header)}")
