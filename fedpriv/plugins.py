"""Plug-ins that are single files: ``--plugin my.py`` imports a file, whose decorators register plug-ins by name."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedpriv.errors import FedprivError, UsageError, in_a_line

VARIABLE = "FEDPRIV_PLUGINS"
"""Environment variable with the loaded files, separated as in PATH, for child processes."""


class _Imported(NamedTuple):
    file: Path
    sha256: str


_loaded: dict[str, _Imported] = {}


def load_plugins(files: Iterable[Path], of: str = "") -> None:
    """Import files, each once.

    A run stores the paths of its files. If a file has moved, it can be loaded first with ``--plugin``; it is recognised by its
    name.

    Args:
        of: where the paths come from, for messages, such as ``runs/a/config.yaml``.

    Raises:
        UsageError: there is no such file, or another module has its name.
        FedprivError: it cannot be imported.
    """
    for file in (Path(file).expanduser().absolute() for file in files):
        if not file.is_file() and file.stem in _loaded:
            continue
        label = f"plug-in {file}" + (of and f" (of {of})")
        if file.suffix != ".py" or not file.stem.isidentifier():
            raise UsageError(f"{label}: not the name of a Python module, such as my_method.py")
        if not file.is_file():
            raise UsageError(f"{label}: there is no such file; if it has moved, give its new path: --plugin .../{file.name}")
        _load(file.resolve(), label)


def contents(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 (hex) of loaded files as they were imported, by module name."""
    return {file.stem: _loaded[file.stem].sha256 for file in files}


def line_of_plugin(error: BaseException) -> str:
    """The last line of a plug-in in an error's traceback; empty: there is none."""
    files = {str(plugin.file) for plugin in _loaded.values()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def load_inherited() -> None:
    """In a child process: load the plug-ins of the parent process."""
    load_plugins(Path(file) for file in os.environ.get(VARIABLE, "").split(os.pathsep) if file)


def _load(file: Path, label: str) -> None:
    """Import a file by its own name, from its folder, so that child processes can import it too."""
    if file.stem in _loaded and _loaded[file.stem].file == file:
        return
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = find_spec(file.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != file:
        raise UsageError(f"{label}: there is another module {file.stem} ({spec and spec.origin}); give the file another name")
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    try:
        import_module(file.stem)
    except (Exception, SystemExit) as error:
        raise FedprivError(f"{label} cannot be imported: {in_a_line(error)}") from error
    _loaded[file.stem] = _Imported(file, content)
    os.environ[VARIABLE] = os.pathsep.join(str(plugin.file) for plugin in _loaded.values())
