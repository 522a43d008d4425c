"""The operators' journal: who began, stopped and resumed runs, and added and removed clients."""

from __future__ import annotations

import getpass
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fedpriv.errors import FedprivError

Deed = Literal["init", "renew", "server", "run", "stop", "resume", "add-client", "remove-client"]


def note(file: Path, did: Deed, what: str = "") -> None:
    """Append a line to a journal: the time, the system's user (after ``sudo`` the one that called it) and the host, with ``did``
    and ``what``.

    Args:
        did: the subcommand of ``fedpriv deploy``.
        what: the run or client.

    Raises:
        FedprivError: it cannot be written, so the command must not go on.
    """
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # of a container, a user without a name
        user = str(os.getuid())
    time = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"time": time, "user": user, "host": socket.gethostname(), "did": did, "what": what}
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as opened:
            opened.write(json.dumps(entry).encode() + b"\n")
    except OSError as error:
        raise FedprivError(f"cannot write the journal {file}: {error.strerror}") from None
