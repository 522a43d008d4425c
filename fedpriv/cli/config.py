"""``fedpriv config`` and ``fedpriv init``: the keys of a run's config, in words and as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.options import config_from, config_options
from fedpriv.cli.terminal import FilePath, styled

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

_ALWAYS = ("method", "seed", "data.name", "train.rounds")
"""Keys that every file sets; no data suggest another value than the default."""
_WIDTH = 100
"""Of the comments."""


@command(main, "config")
@click.argument("key", required=False)
def config(key: str | None) -> dict[str, Any]:
    """Explain the keys of a run's config: values, default, meaning.

    KEY is a key or a section; without it, all are listed. `fedpriv methods` has the options of methods.

    \b
    Example: fedpriv config train.lr
             fedpriv config privacy
    """
    from dataclasses import asdict

    from fedpriv.cli.config_keys import keys, sections

    shown_keys, about, out = keys(key), sections(), console()
    shown = None
    for entry in shown_keys:
        section = entry.name.rpartition(".")[0]
        if section != shown and len(shown_keys) > 1:
            out.print(styled("\n", (section or "the run", "bold"), f": {about[section]}"), soft_wrap=True)
        shown = section
        out.print(styled((entry.name, "bold"), f" = {entry.default}   ({entry.values})"), soft_wrap=True)
        out.print(f"    {entry.description}", soft_wrap=True)
    return {"keys": [asdict(entry) for entry in shown_keys]}


@command(main, "init")
@click.argument("file", type=FilePath(), default=Path("run.yaml"))
@config_options()
def init(file: Path, config_file: Path | None, assignments: tuple[str, ...], **flags: Any) -> dict[str, Any]:
    """Write a commented config file for `fedpriv train --config`.

    It has every key with its default and meaning. Options of `fedpriv train` set keys; for the others a run takes what the data
    set or the method suggests, else the default.

    \b
    Example: fedpriv init
             fedpriv init private.yaml --method fedavg --clients 500 --dp client --noise 1
    """
    from fedpriv.errors import UsageError
    from fedpriv.files import write_atomically
    from fedpriv.methods.build import with_options

    config = config_from(config_file, assignments, flags)
    with_options(config)  # refuses names and options that are wrong
    if file.exists():
        raise UsageError(f"{file} is there already; name another file")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}")
    try:
        write_atomically(file, "\n".join(_lines(config, file)).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file") from None
    console().print(f"{file}: fedpriv train --config {file}", soft_wrap=True)
    return {"file": str(file)}


def _lines(config: RunConfig, file: Path) -> Iterator[str]:
    """The file, line by line: what is set as it is, and the rest behind ``#``."""
    import textwrap

    from fedpriv.cli.config_keys import as_yaml, keys, sections
    from fedpriv.config import lookup

    every, about = keys(), sections()
    given = {key.name for key in every if key.name in _ALWAYS or _is_set(config, key.name)}
    yield f"# A run of fedpriv: fedpriv train --config {file}"
    yield "# A key behind # is as the data set or the method suggests, else the default that it shows. To set it, take away the #"
    yield "# before it, and the one before its section."
    for section, says in about.items():
        depth = section.count(".") + 1 if section else 0
        live = any(name.startswith(f"{section}.") for name in given)
        if section:
            name = section.rpartition(".")[2]
            yield ""
            yield f"{'' if live else '#'}{'  ' * (depth - 1)}{name}:  # {says}"
        for key in every:
            if key.name.rpartition(".")[0] != section:
                continue
            name, indent = key.name.rpartition(".")[2], "  " * depth
            yield from textwrap.wrap(f"{key.description} ({key.values})", _WIDTH, initial_indent=f"{indent}# ",
                                     subsequent_indent=f"{indent}#   ", break_on_hyphens=False)  # fmt: skip
            value = as_yaml(lookup(config, key.name)) if key.name in given else key.default
            yield f"{'' if key.name in given else '#'}{indent}{name}: {value}"


def _is_set(config: RunConfig, dotted: str) -> bool:
    section: Any = config
    *path, key = dotted.split(".")
    for part in path:
        if part not in section.model_fields_set:
            return False
        section = getattr(section, part)
    return key in section.model_fields_set
