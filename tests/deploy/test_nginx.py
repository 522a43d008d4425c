"""The reverse proxy of a deployment, as a real nginx: clients train through it, and nothing else passes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.deployed import REAL, SMALL, Deployment, same
from tests.deploy.test_bounds import ended
from tests.simulation.small import play

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
pytestmark = [*REAL, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]
_MAIN = """{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {site};
}}
"""


@contextmanager
def nginx(site: Path, folder: Path) -> Iterator[None]:
    """A block in which nginx serves a site, on this machine alone."""
    folder.mkdir()
    here = folder / "site.conf"
    text = re.sub(r"listen \[::\]:\d+ ssl;", "", site.read_text())
    here.write_text(re.sub(r"listen (\d+) ssl", r"listen 127.0.0.1:\1 ssl", text))
    user = "user root;" if os.geteuid() == 0 else ""  # its workers read the deployment's folder
    (folder / "nginx.conf").write_text(_MAIN.format(user=user, folder=folder, site=here))
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")])
    try:
        yield
        assert process.poll() is None, (folder / "error.log").read_text()
    finally:
        process.terminate()
        process.wait(20)


def half_open(port: int, authority: Path) -> ssl.SSLSocket:
    """A connection whose request never ends."""
    context = ssl.create_default_context(cafile=str(authority))
    peer = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname="localhost")
    peer.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\n")
    return peer


def status(address: str, authority: Path, body: bytes = b"") -> int:
    """The HTTP status that a POST without a key gets."""
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/protobuf"})
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10, context=ssl.create_default_context(cafile=authority)) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:  # nginx has not started yet
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def test_nginx_lets_only_clients_pass(tmp_path: Path) -> None:
    from fedpriv.deploy.flower.demo import running_deployment
    from fedpriv.deploy.flower.machines import free_port
    from fedpriv.deploy.flower.paths import make

    public, inner = free_port(), free_port()
    paths = make(tmp_path / "d", 3, "localhost", public, inner_port=inner)
    for number in range(3):
        file = paths.client_file(number)
        file.write_text(file.read_text().replace("  share: own", "  share: partition").replace("poll: 1", "poll: 0.2"))
    play(tmp_path / "whole", "mpfedcon", **SMALL)
    with nginx(paths.path / "nginx.conf", tmp_path / "nginx"), running_deployment(paths) as (link, look, supervisors):
        peers = [half_open(public, paths.authority) for _ in range(529)]
        same(Deployment(paths, link, look, supervisors).play("proxied", "mpfedcon"), tmp_path / "whole")
        above = [f"/v1/fleet/{dots}control/runs" for dots in ("../", "%2e%2e/", "..%2f", "./..//")]
        for path in ("/", "/flwr.proto.Control/ListRuns", "/v1/control/runs", *above):
            assert status(f"https://localhost:{public}{path}", paths.authority) == 403, path
        assert all(ended(peer) for peer in peers)
        assert status(f"https://localhost:{public}/v1/fleet/push-object", paths.authority, bytes(2**20)) == 401
        assert status(f"https://localhost:{public}/v1/fleet/push-object", paths.authority, bytes(2**25)) == 413
        assert status(f"https://localhost:{public}/v1/fleet/pull-messages", paths.authority) in (400, 401), "no key"
