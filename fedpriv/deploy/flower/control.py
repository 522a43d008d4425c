"""The operator's access to a SuperLink: register nodes, start and stop runs, list both."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedpriv.deploy.flower.tls import trusting, wrong_server
from fedpriv.errors import FedprivError, UsageError
from fedpriv.untrusted.proxies import go_direct

_PYPROJECT = b"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedpriv-app"
version = "1.0.0"
description = "Plays a run of the fedpriv that is installed"
license = {file = "LICENSE"}
dependencies = []

[tool.flwr.app]
publisher = "fedpriv"

[tool.flwr.app.components]
serverapp = "fedpriv_app.server:app"
clientapp = "fedpriv_app.client:app"

[tool.flwr.app.config]
request = ""
"""
_APP = {
    "pyproject.toml": _PYPROJECT,
    "LICENSE": b"Apache-2.0\n",
    "README.md": b"Plays a run of the fedpriv that is installed.\n",
    "fedpriv_app/__init__.py": b'"""Plays a run of the fedpriv that is installed."""\n',
    "fedpriv_app/server.py": b"from fedpriv.deploy.flower.apps import server_app as app\n\n__all__ = ['app']\n",
    "fedpriv_app/client.py": b"from fedpriv.deploy.flower.apps import client_app as app\n\n__all__ = ['app']\n",
}
"""The files of the app that Flower starts. Its code is in fedpriv."""


@dataclass(frozen=True)
class Node:
    """A registered node; its status is ``online``, ``offline`` or ``registered``."""

    number: int
    name: str
    status: str


@dataclass(frozen=True)
class SuperLink:
    """The SuperLink of this machine, reached over TLS and without a proxy.

    Attributes:
        address: ``host:port``.
        certificate: file of the authority that signed its certificate.
    """

    address: str
    certificate: Path

    def __post_init__(self) -> None:
        go_direct(self.address.rpartition(":")[0].strip("[]"))

    def answers(self) -> bool:
        """Whether it answers; waits a moment if it does not.

        Raises:
            UsageError: another server answers, or the certificate is invalid.
        """
        try:
            self.nodes()
        except (OSError, httpx.HTTPError) as error:
            if (wrong := wrong_server(self.address, error)) is not None:
                raise wrong from None
            time.sleep(0.2)
            return False
        return True

    def admit(self, public_keys: Mapping[str, Path]) -> None:
        """Register nodes by name with their public keys, and unregister all others.

        Raises:
            UsageError: a file holds no public key.
        """
        keys = {name: _read_key(file) for name, file in public_keys.items()}
        with self._client() as client:
            for node in client.ListNodes(ListNodesRequest()).nodes_info:
                if node.status == "unregistered":
                    continue
                if keys.get(node.name) == node.public_key:
                    del keys[node.name]
                else:
                    client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            for name, key in keys.items():
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def register(self, name: str, public_key: Path) -> None:
        """Register one more node.

        Raises:
            UsageError: the file holds no public key.
        """
        key = _read_key(public_key)
        with self._client() as client:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, name: str) -> None:
        """Unregister a node; its requests are refused from now on."""
        number = next((node.number for node in self.nodes() if node.name == name), None)
        if number is not None:
            with self._client() as client:
                client.UnregisterNode(UnregisterNodeRequest(node_id=number))

    def nodes(self) -> list[Node]:
        """The registered nodes."""
        with self._client() as client:
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
        return [Node(node.node_id, node.name, node.status) for node in nodes if node.status != "unregistered"]

    def start(self, request: Path) -> int:
        """Start the run of a request (:mod:`fedpriv.deploy.flower.requests`); Flower's number of the run.

        The request's path is relative to the deployment's folder, the app's working directory, as that may be moved or copied.
        """
        name = "/".join(request.parts[-2:])
        bundle, _facts = build_fab_from_files(_APP)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        with self._client() as client:
            answer = client.StartRun(
                StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto({"request": name}))
            )
        if not answer.HasField("run_id"):
            raise FedprivError(f"the server at {self.address} did not start the run {answer.note or ''}")
        return int(answer.run_id)

    def check(self, run: int) -> bool:
        """Whether the SuperLink answers.

        Raises:
            FedprivError: the app of a run was ended, such as by a kill, and no other was started for the same request.
        """
        try:
            with self._client() as client:
                app = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
                if app.status.status != "finished" or app.status.sub_status == "completed":
                    return True
                apps = client.ListRuns(ListRunsRequest()).run_dict.values()
        except (OSError, httpx.HTTPError):
            return False  # the SuperLink may be back in a moment
        if not any(_request(other) == _request(app) and other.status.status != "finished" for other in apps):
            raise FedprivError(f"the server's app was ended ({app.status.sub_status})")
        return True

    def stop(self, run: int) -> None:
        """Stop a run immediately."""
        with self._client() as client:
            client.StopRun(StopRunRequest(run_id=run))

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
        client = ControlHttpClient(
            f"https://{self.address}",
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            verify=trusting(self.certificate),
        )
        try:
            yield client
        finally:
            client.close()


def _request(run: Any) -> str:
    """The name of the request of a run of Flower's."""
    return Path(run.override_config["request"].string).name


def _read_key(file: Path) -> bytes:
    """A public key as the SuperLink stores it."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key: Any = load_ssh_public_key(file.read_bytes())
        stored: bytes = public_key_to_bytes(key)  # of any type where Flower is not installed
        return stored
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist; the server needs the public key of each client of server.yaml") from None
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{file} holds no public key of an elliptic curve: {error}") from None
