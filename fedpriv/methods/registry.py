"""Methods by name. A third party adds one through the entry-point group ``fedpriv.methods``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import entry_points

from fedpriv.config import MethodConfig, RunConfig, parse
from fedpriv.errors import UnknownName
from fedpriv.methods.base import Method

_methods: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: make a method known by ``name``. Its docstring's first line is its title."""

    def add(method: type[Method]) -> type[Method]:
        known = _methods.get(name, method)
        if (known.__module__, known.__qualname__) != (method.__module__, method.__qualname__):
            raise ValueError(f"two methods are named {name!r}: {known} and {method}")
        method.name = name
        method.title = (method.__doc__ or name).strip().splitlines()[0]
        _methods[name] = method
        return method

    return add


def methods() -> dict[str, type[Method]]:
    """All methods by name: every module beside this one, then other packages' entry points."""
    package = importlib.import_module("fedpriv.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedpriv.methods.{module.name}")
    for point in entry_points(group="fedpriv.methods"):
        point.load()
    return dict(sorted(_methods.items()))


def find_method(name: str) -> type[Method]:
    """The class registered as ``name``; :class:`UnknownName` where there is none."""
    known = methods()
    if name not in known:
        raise UnknownName("method", name, known)
    return known[name]


def with_options(config: RunConfig) -> RunConfig:
    """The config with all of its method's options, checked; :class:`UsageError` where one is wrong."""
    name = config.method.name
    options = parse(find_method(name).Params, config.method.params, f"method {name}")
    return config.model_copy(update={"method": MethodConfig(name=name, **asdict(options))})
