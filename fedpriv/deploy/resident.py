"""The process of a client that stays: torch, data and net are loaded once, and every local update comes over a Unix socket."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from fedpriv.deploy.client_node import ClientNode
from fedpriv.deploy.frames import Frame, line_of
from fedpriv.deploy.stream import Broken, read, write
from fedpriv.errors import FedprivError
from fedpriv.wire.message import Refused


def serve(site: ClientNode, address: Path) -> None:
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
            try:
                with one, one.makefile("rb") as incoming, one.makefile("wb") as outgoing:
                    asked = read(incoming)
                    if not _closed(one):  # or it waited behind a local update for longer than its answer is of use
                        answer = _answer(site, *asked)
                        write(outgoing, answer.head_bytes, answer.parts)
            except (EOFError, Broken):
                continue
            except OSError:  # of the write, or of the end of the block, which tries again to send what is left
                print("fedpriv: an answer came too late; it is kept in case it is asked for again", file=sys.stderr, flush=True)


def _answer(site: ClientNode, head: bytes, parts: list[bytes]) -> Frame:
    """What the site answers to a frame."""
    try:
        return site.answer(Frame.of(head, parts))
    except Refused as reason:
        return Frame({"error": str(reason)})
    except Exception as error:  # what a server sends must not end the process
        print(
            f"fedpriv: a frame could not be answered: {type(error).__name__}: {line_of(str(error))}", file=sys.stderr, flush=True
        )
        return Frame({"error": f"the client cannot answer ({type(error).__name__})"})


def _closed(one: socket.socket) -> bool:
    """Whether the other end has closed; it sends nothing after its frame."""
    try:
        return not one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
