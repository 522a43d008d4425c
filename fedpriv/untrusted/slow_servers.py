"""A limit on the time of a server's whole answer. A socket's own timeout is for each read, so a byte now and then evades it."""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPResponse
from typing import Any

from requests import Session
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a moment of the clock, and raises ``TimeoutError`` then."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._socket, self._until = connection, until
        self._raw = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError("the answer takes too long")
        pause = self._socket.gettimeout()
        self._socket.settimeout(left if pause is None else min(left, pause))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def adapter_within(seconds: float, base: type[HTTPAdapter] = HTTPAdapter) -> type[HTTPAdapter]:
    """A class of adapters for sessions of ``requests``, each answer to which must be complete within some seconds.

    Args:
        base: the class that it extends.
    """

    class Response(HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
            super().__init__(sock, *arguments, **options)
            self.fp.close()
            self.fp = io.BufferedReader(_TimedReader(sock, time.monotonic() + seconds))

    class Plain(HTTPConnection):
        response_class = Response

    class Encrypted(HTTPSConnection):
        response_class = Response

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(HTTPSConnectionPool):
        ConnectionCls = Encrypted

    class Adapter(base):  # type: ignore[misc, valid-type]
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(*arguments, **options)
            manager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}
            return manager

    return Adapter


def ask_head(url: str, seconds: float) -> None:
    """Ask for the head of a page, to see whether a server answers within some seconds.

    Raises:
        requests.RequestException: it does not.
    """
    with Session() as session:
        adapter = adapter_within(seconds)()
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)
        session.head(url, timeout=seconds).close()
