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
    """Whether a model name is that of a user net, ``package.module:Name``."""
    return ":" in (name or "")


def name_of(build: Any) -> str:
    """The name by which a config stores a class or function; if it cannot be imported, this process keeps it.

    Raises:
        UsageError: it is a net instead of a class or function that builds one.
    """
    if isinstance(build, nn.Module):
        kind = type(build).__name__
        raise UsageError(f"model is a net, and every run draws its own from its seed: give the class {kind}, or a function")
    module, name = getattr(build, "__module__", "__main__"), getattr(build, "__qualname__", type(build).__name__)
    full_name = f"{module}:{name}"
    if module != "__main__" and _attribute(sys.modules.get(module), name) is build:
        return full_name
    number, unique_name = 1, full_name
    while _unimportable.setdefault(unique_name, build) is not build:  # an earlier run used another one of this name
        number += 1
        unique_name = f"{full_name}#{number}"
    return unique_name


def unimportable_note(name: str | None) -> str | None:
    """A note that no other process can import the net; ``None`` if it can be imported."""
    if name not in _unimportable:
        return None
    return (
        f"model {name} cannot be imported, as it was defined in a notebook, a script or a function: this process can resume and "
        "audit the run, another one cannot; a net in a module, such as model='my_nets:Net', can be imported"
    )


def find_user_net(name: str) -> Build:
    """The class or function of a name, or a ``functools.partial`` of one.

    Raises:
        UsageError: there is none, or it is something else.
        FedprivError: its module cannot be imported.
    """
    if name in _unimportable:
        return _unimportable[name]
    module, _, attribute = name.partition(":")
    build = _attribute(_imported(module, name), attribute)
    if module == "__main__" and build is None:
        raise UsageError(
            f"model {name} was defined in the notebook or script that trained the run, and cannot be imported here; put it into "
            "a module and train with model='my_nets:Net'"
        )
    maker = _maker(build)
    if not (inspect.isfunction(maker) or (inspect.isclass(maker) and issubclass(maker, nn.Module))):
        what = f"is not in module {module}"
        if build is not None:
            what = "is neither a class derived from nn.Module nor a function, nor functools.partial of one"
        raise UsageError(f"model {name}: {attribute or 'nothing'} {what}")
    return build  # type: ignore[no-any-return]


def _maker(build: Any) -> Any:
    """The class or function of a partial; anything else unchanged."""
    return build.func if isinstance(build, partial) else build


def hash_user_net(name: str | None) -> dict[str, str]:
    """SHA-256 (hex) of the modules that a user net is named by and defined in, by module name.

    Empty for other nets, for modules without a file, and for nets that only this process has. A file is hashed once in a process.
    """
    if not is_user_net(name) or name in _unimportable:
        return {}
    build = find_user_net(str(name))
    modules = {str(name).partition(":")[0], _maker(build).__module__} - {"__main__"}
    return {module: content for module in sorted(modules) if (content := _content(module, build))}


@cache  # also by class, since a module that is loaded again has another class
def _content(module: str, build: Build) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None


def _imported(module: str, of: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if os.getcwd() in sys.path or module.partition(".")[0] != error.name:
            is_there = not f"{module}.".startswith(f"{error.name}.")  # then one of its imports is missing
            kind = FedprivError if is_there else UsageError
            raise kind(f"model {of} cannot be imported: {in_a_line(error)}") from error
        sys.path.append(os.getcwd())  # like plug-ins, modules are found in the working directory
        return _imported(module, of)
    except Exception as error:
        raise FedprivError(f"model {of} cannot be imported: {in_a_line(error)}") from error


def _attribute(module: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        module = getattr(module, part, None)
    return module
