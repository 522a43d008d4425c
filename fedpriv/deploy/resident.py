"""The process of a client that stays: torch, data and net are loaded once, and every turn comes over a Unix socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from fedpriv.deploy.frames import Frame
from fedpriv.deploy.site import Site
from fedpriv.deploy.stream import Broken, read, write
from fedpriv.errors import FedprivError
from fedpriv.wire.message import Refused


def serve(site: Site, address: Path) -> None:
    """Answer frames, one after another, until the process is ended.

    Args:
        address: of the socket, in a folder that only this user may enter.

    Raises:
        FedprivError: the socket cannot be made.
    """
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            address.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(address.parent, 0o700)
            address.unlink(missing_ok=True)
            listening.bind(str(address))
        except OSError as error:
            raise FedprivError(f"cannot listen on {address}: {error}") from None
        listening.listen()
        while True:
            one, _ = listening.accept()
            with one, one.makefile("rb") as incoming, one.makefile("wb") as outgoing:
                try:
                    answer = _answered(site, *read(incoming))
                    write(outgoing, answer.head_bytes, answer.parts)
                except (OSError, EOFError, Broken):
                    continue  # who asked is gone, and asks again


def _answered(site: Site, head: bytes, parts: list[bytes]) -> Frame:
    try:
        return site.answer(Frame.of(head, parts))
    except Refused as reason:
        return Frame({"error": str(reason)})
