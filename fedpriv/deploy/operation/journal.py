"""The operators' journal: who began, stopped and resumed runs, and added and removed clients."""

from __future__ import annotations

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fedpriv.errors import FedprivError

Deed = Literal["init", "renew", "server", "run", "stop", "resume", "add-client", "remove-client"]


@dataclass(frozen=True)
class Entry:
    """A line of the journal.

    Attributes:
        time: UTC, ISO 8601.
        user: of the system; after ``sudo`` the one that called it.
        did: the subcommand of ``fedpriv deploy``.
        what: the run or client.
    """

    time: str
    user: str
    host: str
    did: Deed
    what: str


def note(file: Path, did: Deed, what: str = "") -> None:
    """Append an entry to a journal.

    Raises:
        FedprivError: it cannot be written, so the command must not go on.
    """
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # of a container, a user without a name
        user = str(os.getuid())
    entry = Entry(datetime.now(UTC).isoformat(timespec="seconds"), user, socket.gethostname(), did, what)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as opened:
            opened.write(json.dumps(asdict(entry)).encode() + b"\n")
    except OSError as error:
        raise FedprivError(f"cannot write the journal {file}: {error.strerror}") from None
