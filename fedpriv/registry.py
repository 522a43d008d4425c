"""Things of fedpriv by name: :class:`attacks.core.by_name.Registry`, with the errors of the command line."""

from __future__ import annotations

from typing import Generic, TypeVar

from attacks.core import by_name
from fedpriv.errors import FedprivError, UnknownName, UsageError

T = TypeVar("T")


class Registry(by_name.Registry[T], Generic[T]):
    """The things of one kind by name; :meth:`find` raises UnknownName, or UsageError where a plug-in could not be imported."""

    def unknown(self, name: str, where: str = "") -> FedprivError:
        """As :meth:`attacks.core.by_name.Registry.unknown`; ``where`` the name was given."""
        what = self.kind + (where and f" in {where}")
        if name in self.missing:
            return UsageError(f"{what}: {name!r} is not there: {self.missing[name]}")
        return UnknownName(what, name, self._known)
