"""The long-lived process of a client: it loads torch, data and net once, and answers frames over a Unix socket."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.frames import Frame, one_line
from fedpriv.deploy.stream import Broken, read, write
from fedpriv.errors import FedprivError
from fedpriv.wire.message import Refused


def serve(node: ClientNode, address: Path) -> None:
    """Answer frames one after another, until the process is ended.

    Args:
        address: path of the socket; its folder gets mode 700.

    Raises:
        FedprivError: the socket cannot be created.
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
            connection, _ = listening.accept()
            try:
                with connection, connection.makefile("rb") as incoming, connection.makefile("wb") as outgoing:
                    request = read(incoming)
                    if not _is_closed(connection):  # else it has waited too long behind another's local update
                        response = _answer(node, *request)
                        write(outgoing, response.head_bytes, response.parts)
                        node.counters.add("bytes", len(request[0]) + sum(map(len, request[1])), "in")
                        node.counters.add("bytes", len(response.head_bytes) + sum(map(len, response.parts)), "out")
                        node.counters.save(0)
            except (EOFError, Broken):
                continue
            except OSError:  # from the write, or from the end of the block, which flushes what is left
                print("fedpriv: an answer came too late; it is kept in case it is asked for again", file=sys.stderr, flush=True)


def _answer(node: ClientNode, head: bytes, parts: list[bytes]) -> Frame:
    try:
        return node.answer(Frame.of(head, parts))
    except Refused as reason:
        return Frame({"error": str(reason)})
    except Exception as error:  # no request of a server may end the process
        kind = type(error).__name__
        print(f"fedpriv: a frame could not be answered: {kind}: {one_line(str(error))}", file=sys.stderr, flush=True)
        return Frame({"error": f"the client cannot answer ({kind})"})


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed; it sends nothing after its frame."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
