"""A second name of :mod:`fedpriv.attacks`. Modules imported by it are the same objects, so are their classes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType

_HERE = __name__.rpartition(".")[0]


class _Alias(MetaPathFinder, Loader):
    """Finds ``<name>.x.y`` as ``fedpriv.attacks.x.y``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _real(self, name: str) -> str:
        return _HERE + name.removeprefix(self.name)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        ours = fullname.startswith(f"{self.name}.") and find_spec(self._real(fullname)) is not None
        return spec_from_loader(fullname, self) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its own name; what the import system writes into it is undone in :meth:`exec_module`."""
        found = import_module(self._real(spec.name))
        self._own = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""
        module.__spec__ = self._own


def install(name: str) -> None:
    """Let ``import <name>`` and ``import <name>.x`` give :mod:`fedpriv.attacks` and its modules."""
    sys.modules[name] = sys.modules[_HERE]
    sys.meta_path.insert(0, _Alias(name))
