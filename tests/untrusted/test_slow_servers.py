"""Servers that send a byte now and then, so that no single read times out, and an answer would never be complete."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import requests

from fedpriv import hub
from fedpriv.tracking import store
from fedpriv.tracking.store import ServerAway, check_server
from fedpriv.untrusted.slow_servers import adapter_within
from tests.untrusted.trickling import HEAD, trickling

SECONDS = 0.15


def session(seconds: float) -> requests.Session:
    session = requests.Session()
    session.mount("http://", adapter_within(seconds)())
    return session


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", HEAD], ids=["status", "headers", "body"])
def test_an_answer_has_a_limit_in_all(answer: bytes) -> None:
    with trickling(answer) as address, session(SECONDS) as limited:
        began = time.monotonic()
        with pytest.raises(requests.RequestException):
            limited.get(address, timeout=30)
        assert time.monotonic() - began >= SECONDS


def test_an_answer_in_time_is_read_and_the_connection_used_again() -> None:
    """Its limit is its own: a second answer on the same connection comes after the first one's has passed."""

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for text in (b"first", b"again"):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + text)

    with socket.create_server(("127.0.0.1", 0)) as listening, session(SECONDS) as limited:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert limited.get(address, timeout=30).text == "first"
        time.sleep(2 * SECONDS)
        assert limited.get(address, timeout=30).text == "again"


def test_no_check_of_a_server_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_QUICK", SECONDS)
    monkeypatch.setattr(hub, "_PROBE_SECONDS", SECONDS)
    with trickling(b"HTTP/1.1 200 OK\r\nX-Long: ") as address:
        check_server(address)  # which is there; what it answers is left to MLflow
        assert not hub._answers(address)
    with pytest.raises(ServerAway):
        check_server("http://127.0.0.1:9")
