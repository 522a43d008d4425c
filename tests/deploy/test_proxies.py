"""A deployment with a proxy: processes of one machine connect directly, and a client's check and node use the same proxy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedpriv.deploy.flower import machines
from fedpriv.deploy.flower.paths import ClientFile, DeploymentPaths, make, read_client
from fedpriv.errors import UsageError
from fedpriv.tracking import ServerAway
from fedpriv.tracking.store import check_server, quiet_mlflow
from fedpriv.untrusted.proxies import proxy_for, use_proxy
from tests.deploy.test_files import answering

pytestmark = pytest.mark.usefixtures("no_proxies")
needs_flower = pytest.mark.extra("deploy")
DEAD = "http://127.0.0.1:9"
"""A proxy at which nothing listens."""


@pytest.fixture
def deployment(tmp_path: Path) -> DeploymentPaths:
    return make(tmp_path / "d", 1, "server.example.org")


@contextmanager
def proxy(to: int, refuses: bytes | None = None) -> Iterator[tuple[str, list[str]]]:
    """A real proxy, which leads every tunnel to a port of this machine; its URL, and the hosts that it was asked for."""
    listening, asked = socket.create_server(("127.0.0.1", 0)), list[str]()

    def pass_on(source: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while sent := source.recv(65536):
                other.sendall(sent)
        for end in (source, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def listen() -> None:
        with suppress(OSError):
            while True:
                client = listening.accept()[0]
                request = client.recv(65536)
                asked.append(request.split()[1].decode())
                if refuses is not None:
                    client.sendall(b"HTTP/1.1 " + refuses + b"\r\n\r\n")
                    client.close()
                    continue
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                other = socket.create_connection(("127.0.0.1", to))
                for ends in ((client, other), (other, client)):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def of(paths: DeploymentPaths, server: str) -> ClientFile:
    return read_client(paths.client_file(0)).model_copy(update={"server": server})


@needs_flower
def test_the_operator_reaches_the_server_of_this_machine(deployment: DeploymentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.deploy.flower.control import SuperLink

    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, DEAD)
    with answering(deployment.certificate, deployment.key, time.time(), status=200) as port:
        link = SuperLink(f"127.0.0.1:{port}", deployment.authority)
        assert link.answers() and link.nodes() == []


def test_a_client_reaches_a_server_of_this_machine_directly(deployment: DeploymentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", DEAD)
    with answering(deployment.certificate, deployment.key, time.time()) as port:
        machines.check_server(of(deployment, f"127.0.0.1:{port}"))
        machines.check_server(of(deployment, f"localhost:{port}"))


@needs_flower
def test_a_client_and_its_node_go_by_the_same_proxy(deployment: DeploymentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient

    server = "server.example.org:8443"  # no such machine, but by the proxy
    with (
        answering(deployment.certificate, deployment.key, time.time(), status=200) as port,
        proxy(port) as (url, asked),
    ):
        monkeypatch.setenv("https_proxy", url)
        machines.check_server(of(deployment, server))
        assert asked == [server]
        use_proxy(proxy_for(f"https://{server}"))  # as the process of a node does
        node = FleetHttpClient.from_server_address(server, False, str(deployment.authority), [])
        node.ActivateNode(ActivateNodeRequest())
        assert asked == [server, server]


def test_no_proxy_is_respected(deployment: DeploymentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", DEAD)
    monkeypatch.setenv("no_proxy", "server.invalid")
    with pytest.raises(machines.Unreachable) as caught:
        machines.check_server(of(deployment, "server.invalid:8443"))
    assert "proxy" not in str(caught.value)


def test_errors_through_a_proxy_name_it(deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, direct = "server.example.org:8443", r"no_proxy=server\.example\.org goes without it"
    monkeypatch.setenv("https_proxy", DEAD)
    with pytest.raises(machines.Unreachable, match=rf"through the proxy {DEAD} .*{direct}.*: Connection refused"):
        machines.check_server(of(deployment, server))
    with proxy(0, b"403 Forbidden") as (url, _):
        monkeypatch.setenv("https_proxy", url)
        with pytest.raises(machines.Unreachable, match=rf"through the proxy {url} .*: 403 Forbidden"):
            machines.check_server(of(deployment, server))
    foreign = make(tmp_path / "foreign", 1, "server.example.org")  # as a proxy has that reads what passes
    with answering(foreign.certificate, foreign.key, time.time()) as port, proxy(port) as (url, _):
        monkeypatch.setenv("https_proxy", url)
        with pytest.raises(UsageError, match=rf"certificate of {server} through the proxy {url} .* does not hold"):
            machines.check_server(of(deployment, server))
    monkeypatch.setenv("https_proxy", "ftp://proxy.example.org")
    with pytest.raises(UsageError, match=r"through the proxy ftp://proxy\.example\.org .*: Unknown scheme"):
        machines.check_server(of(deployment, server))


def test_a_tracking_server_of_this_machine_is_reached(deployment: DeploymentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", DEAD)
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        quiet_mlflow()
        check_server(f"http://127.0.0.1:{_answering_once(listening)}")
    with pytest.raises(ServerAway, match=rf"http://mlflow\.invalid:5000 does not answer through the proxy {DEAD} "):
        check_server("http://mlflow.invalid:5000")


def _answering_once(listening: socket.socket) -> int:
    def answer() -> None:
        connection = listening.accept()[0]
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    return int(listening.getsockname()[1])
