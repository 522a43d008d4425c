"""The names of user nets, ``package.module:Name``, and their import.

A run stores the name, and resuming or auditing the run imports it again. A class or function that cannot be imported, because a
notebook or script defines it, is kept for the present process.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from fedpriv.errors import FedprivError, UsageError, in_a_line

Build = Callable[..., nn.Module]
_unimportable: dict[str, Build] = {}
"""Name -> class or function that only this process has."""


def is_user_net(name: str | None) -> bool:
    """Whether it is the name of a user's own net."""
    return ":" in (name or "")


def name_of(build: Any) -> str:
    """The name under which a config stores a class or function; one that cannot be imported is kept for this process.

    Raises:
        UsageError: it is a net, and not what makes one.
    """
    if isinstance(build, nn.Module):
        kind = type(build).__name__
        raise UsageError(f"model is a net, and every run draws its own from its seed: give the class {kind}, or a function")
    module, name = getattr(build, "__module__", "__main__"), getattr(build, "__qualname__", type(build).__name__)
    found = f"{module}:{name}"
    if module != "__main__" and _attribute(sys.modules.get(module), name) is build:
        return found
    number, kept = 1, found
    while _unimportable.setdefault(kept, build) is not build:  # another of the same name, which an earlier run may have
        number += 1
        kept = f"{found}#{number}"
    return kept


def unimportable_note(name: str | None) -> str | None:
    """A remark on a net that no other process can import; ``None``: any can."""
    if name not in _unimportable:
        return None
    return (
        f"model {name} cannot be imported, as it was defined in a notebook, a script or a function: this process can resume and "
        "audit the run, another one cannot; a module of its own, such as model='my_nets:Net', can be imported"
    )


def find_user_net(name: str) -> Build:
    """The class or function of that name, or a partial of one.

    Raises:
        UsageError: there is none, or it is something else.
        FedprivError: its module fails when it is imported.
    """
    if name in _unimportable:
        return _unimportable[name]
    module, _, attribute = name.partition(":")
    found = _attribute(_imported(module, name), attribute)
    if module == "__main__" and found is None:
        raise UsageError(
            f"model {name} was defined in the notebook or script that trained the run, and cannot be imported here; put it into "
            "a module and train with model='my_nets:Net'"
        )
    maker = _maker(found)
    if not (inspect.isfunction(maker) or (inspect.isclass(maker) and issubclass(maker, nn.Module))):
        what = f"is not in module {module}"
        if found is not None:
            what = "is neither a class derived from nn.Module nor a function, nor functools.partial of one"
        raise UsageError(f"model {name}: {attribute or 'nothing'} {what}")
    return found  # type: ignore[no-any-return]


def _maker(build: Any) -> Any:
    """The class or function of a partial, which has no module of its own; anything else as it is."""
    return build.func if isinstance(build, partial) else build


def hash_user_net(name: str | None) -> dict[str, str]:
    """SHA-256 (hex) of the files of an own net's modules, by module: that of its name, and that which defines it.

    Empty for other nets, and for what has no file or only this process has. A file counts as it was when this process first
    asked.
    """
    if not is_user_net(name) or name in _unimportable:
        return {}
    build = find_user_net(str(name))
    modules = {str(name).partition(":")[0], _maker(build).__module__} - {"__main__"}
    return {module: content for module in sorted(modules) if (content := _content(module, build))}


@cache  # by what is built, too: a module that was loaded again has another class
def _content(module: str, build: Build) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None


def _imported(module: str, of: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if os.getcwd() in sys.path or module.partition(".")[0] != error.name:
            is_there = not f"{module}.".startswith(f"{error.name}.")  # and what it imports is not
            kind = FedprivError if is_there else UsageError
            raise kind(f"model {of} cannot be imported: {in_a_line(error)}") from error
        sys.path.append(os.getcwd())  # as plug-ins are found beside each other
        return _imported(module, of)
    except Exception as error:
        raise FedprivError(f"model {of} cannot be imported: {in_a_line(error)}") from error


def _attribute(module: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        module = getattr(module, part, None)
    return module
