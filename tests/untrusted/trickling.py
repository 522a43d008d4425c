"""A server whose answer never ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


@contextmanager
def trickling(answer: bytes) -> Iterator[str]:
    """The address of a server that sends ``answer`` at once, and then a byte each 0.01 s until the client is gone."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(answer)
                while not ended.wait(0.01):
                    connection.sendall(b"x")
            except OSError:
                pass  # the client has closed

    def accept(listening: socket.socket) -> None:
        while not ended.is_set():
            try:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
