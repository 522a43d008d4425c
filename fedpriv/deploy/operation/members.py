"""The clients of a deployment, which come and go while it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from fedpriv.config import parse
from fedpriv.errors import UsageError
from fedpriv.files import Damaged, load_json, save_json

_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Member:
    """A client of a deployment.

    Attributes:
        number: by which runs know it; no other client ever gets it.
        name: the operator's name for it.
        added, removed: when it came, and went (UTC, ISO 8601); ``None``: not known, as of an older deployment; it is there.
    """

    number: int
    name: str
    added: str | None
    removed: str | None = None

    @property
    def node(self) -> str:
        """The name that its node is registered under."""
        return f"client-{self.number}"


class Members:
    """The file of a deployment's clients.

    Args:
        first: number of clients that the deployment was made for, which are named ``client-0`` and so on.
    """

    def __init__(self, file: Path, first: int) -> None:
        self._file, self._first = file, first

    def all(self) -> list[Member]:
        """All clients that ever came, by number.

        Raises:
            Damaged: the file is not as it was written.
        """
        if not self._file.exists():
            return [Member(number, f"client-{number}", None) for number in range(self._first)]
        members = load_json(self._file).get("clients")
        if not isinstance(members, list):
            raise Damaged(f"{self._file} is damaged: it names no clients")
        return [parse(Member, member, str(self._file)) for member in members]

    def present(self) -> list[Member]:
        """The clients that are there, by number."""
        return [member for member in self.all() if member.removed is None]

    def removed(self) -> Mapping[int, str]:
        """Clients that went -> a phrase on it."""
        return {member.number: f"it was removed at {member.removed}" for member in self.all() if member.removed is not None}

    def named(self, name: str) -> Member:
        """The client of a name that is there; :class:`UsageError` if there is none."""
        present = self.present()
        for member in present:
            if name in (member.name, member.node):
                return member
        known = ", ".join(member.name for member in present[:10])
        raise UsageError(f"no client of this deployment is called {name!r}; it has {known}{', ...' if len(present) > 10 else ''}")

    def begin(self) -> None:
        """Write the first clients."""
        self._save([replace(member, added=_now()) for member in self.all()])

    def next(self, name: str) -> Member:
        """A client that may be added; :class:`UsageError` if the name cannot be one, or is taken."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"client {name!r}: a name has letters, digits, '.', '_' and '-', at most 64")
        if name in {known for member in self.present() for known in (member.name, member.node)}:
            raise UsageError(f"a client of this deployment is called {name} already; another name")
        return Member(1 + max((member.number for member in self.all()), default=-1), name, _now())

    def add(self, member: Member) -> None:
        """Add a client."""
        with FileLock(self._file.with_suffix(".lock")):
            self._save([*self.all(), member])

    def remove(self, gone: Member) -> None:
        """Note that a client went."""
        with FileLock(self._file.with_suffix(".lock")):
            self._save([replace(member, removed=_now()) if member == gone else member for member in self.all()])

    def _save(self, members: list[Member]) -> None:
        save_json(self._file, {"clients": [asdict(member) for member in members]})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
