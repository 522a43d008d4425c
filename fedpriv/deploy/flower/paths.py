"""The files of a deployment, which ``fedpriv deploy init`` writes and server and clients read."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fedpriv.config import parse, read_yaml
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.operation.members import Member, Members
from fedpriv.deploy.operation.templates import LOOPBACK, client_unit, client_yaml, proxy, server_unit, server_yaml
from fedpriv.errors import UsageError
from fedpriv.storage.run_folder import RunFolder

PORT, INNER_PORT = 8443, 8400
"""The public port, and the one that the server listens on behind a reverse proxy."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerFile(_File):
    """``server.yaml``."""

    host: str = Field(description="name or address under which clients reach the server")
    listen: str = Field(LOOPBACK, description="address that the server listens on")
    port: int = Field(INNER_PORT, ge=1, le=65535, description="its port")
    public_port: int | None = Field(None, ge=1, le=65535, description="port at which clients reach it; null: the same")
    clients: int = Field(ge=1, description="number of clients that it was made for; clients.json has all")
    answer_within: float = Field(3600.0, gt=0, description="seconds that a client has to answer")


class ClientFile(_File):
    """``client-N.yaml``; paths are relative to it."""

    client: int = Field(ge=0, description="its number")
    server: str = Field(description="host:port of the server")
    certificate: Path = Field(description="of the authority")
    key: Path = Field(description="the client's private key")
    folder: Path = Field(description="for its private states and its secret")
    data: Source = Source()
    device: str | None = Field(None, description="torch device; null: that of the run")
    check_downloads: bool = Field(True, description="refuse weights with marks of an attack on its data")
    requires: Requires = Requires()
    port: int | None = Field(None, ge=1, le=65535, description="local port of its node; null: a free one")
    poll: float = Field(1.0, ge=0.1, le=3, description="seconds between checks for messages")


class DeploymentPaths:
    """The folder of a deployment on the server's machine, and the files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.server_file = self.path / "server.yaml"
        self.authority, self.authority_key = self.path / "ca.crt", self.path / "ca.key"
        self.certificate, self.key = self.path / "server" / "server.crt", self.path / "server" / "server.key"
        self.secret, self.database = self.path / "server" / "superexec.secret", self.path / "server" / "link.db"
        self.flower, self.log = self.path / "server" / "flower", self.path / "server" / "log.txt"
        self.counters, self.journal = self.path / "server" / "counters.json", self.path / "journal.jsonl"
        self.requests, self.runs = self.path / "requests", self.path / "runs"

    @classmethod
    def open(cls, path: Path) -> DeploymentPaths:
        """The paths of an existing deployment; :class:`UsageError` if there is none."""
        paths = cls(path)
        if not paths.server_file.exists():
            if path.is_file():
                raise UsageError(f"{path} is a file; name its folder, {path.parent}")
            if (path / "config.yaml").exists():
                raise UsageError(f"{path} is a run, and no deployment; {RunFolder(paths.path).how_to_resume} continues it")
            raise UsageError(f"{path} holds no deployment (no server.yaml); `fedpriv deploy init {path} --host ...` makes one")
        return paths

    def settings(self) -> ServerFile:
        """The contents of ``server.yaml``."""
        return parse(ServerFile, read_yaml(self.server_file), str(self.server_file))

    @property
    def members(self) -> Members:
        """Its clients."""
        return Members(self.path / "clients.json", self.settings().clients)

    def client_file(self, number: int) -> Path:
        """A client's settings."""
        return self.path / f"client-{number}.yaml"

    def public_key(self, number: int) -> Path:
        """A client's public key."""
        return self.path / f"client-{number}" / "key.pub"


def host_port(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_client(path: Path) -> ClientFile:
    """A client's settings with absolute paths; :class:`UsageError` if the file is invalid."""
    settings = parse(ClientFile, read_yaml(path), str(path))
    if not _is_server(settings.server):
        raise UsageError(f"{path}: server = {settings.server!r}: expected host:port, such as server.example.org:{PORT}")
    base = path.absolute().parent
    absolute = {name: base / getattr(settings, name).expanduser() for name in ("certificate", "key", "folder")}
    for name in ("certificate", "key"):
        if not absolute[name].is_file():
            raise UsageError(
                f"{path}: {name} {absolute[name]} does not exist; `fedpriv deploy init` made it on the server's machine"
            )
    folder, dataset = settings.data.dir, settings.data.name
    if dataset is not None and (base / dataset).exists():
        dataset = str(base / dataset)
    data = replace(settings.data, dir=folder and base / folder.expanduser(), name=dataset)
    return settings.model_copy(update={**absolute, "data": data})


def make(
    path: Path, clients: int, host: str, port: int = PORT, listen: str = LOOPBACK, inner_port: int | None = None
) -> DeploymentPaths:
    """Write the files of a new deployment.

    Args:
        host, port: public address of the server.
        listen, inner_port: address that it listens on; ``None``: the public port, or that behind a reverse proxy if it listens on
            this machine alone.

    Raises:
        UsageError: the folder is not empty or cannot be written, or the host is invalid.
    """
    from fedpriv.deploy.flower.certificates import make_authority, make_server_certificate, write_secret

    if not ((re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host) and _is_encodable(host)) or _is_address(host)):
        raise UsageError(
            f"--host {host!r}: expected a name such as server.example.org, or an address, without a port (use --port)"
        )
    inner = inner_port or (INNER_PORT if listen == LOOPBACK else port)
    paths = DeploymentPaths(path)
    if paths.server_file.exists():
        raise UsageError(
            f"{path} holds a deployment already; another folder, or remove it (`fedpriv deploy renew` makes a new certificate)"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not empty; name a new folder")
    try:
        for folder in (paths.path, paths.certificate.parent, paths.flower, paths.requests, paths.runs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_authority(paths.authority, paths.authority_key)
        make_server_certificate(paths.authority, paths.authority_key, _hosts(host, listen), paths.certificate, paths.key)
        write_secret(paths.secret, secrets.token_bytes(32))
        (paths.path / "systemd").mkdir()
        (paths.path / "systemd" / "fedpriv-server.service").write_text(server_unit(paths.path), encoding="utf-8")
        for number in range(clients):
            _make_client(paths, number, host_port(host, port))
        if inner != port:
            text = proxy(paths.certificate, paths.key, paths.authority, host, port, inner)
            (paths.path / "nginx.conf").write_text(text, encoding="utf-8")
        paths.server_file.write_text(server_yaml(clients, host, listen, inner, port), encoding="utf-8")
        paths.members.begin()
    except OSError as error:
        raise UsageError(f"cannot write the deployment {path}: {error.strerror}") from None
    return paths


def _make_client(paths: DeploymentPaths, number: int, server: str) -> None:
    """Write a client's file, its folder with a new key, and its unit."""
    from fedpriv.deploy.flower.certificates import make_client_key

    own = paths.path / f"client-{number}"
    own.mkdir(mode=0o700)
    make_client_key(own / "key")
    (own / "ca.crt").write_bytes(paths.authority.read_bytes())
    paths.client_file(number).write_text(client_yaml(number, server), encoding="utf-8")
    (paths.path / "systemd" / f"fedpriv-client-{number}.service").write_text(client_unit(number), encoding="utf-8")


def add_client(paths: DeploymentPaths, name: str) -> Member:
    """Write the files of a new client with a new key; it is not registered yet.

    Raises:
        UsageError: the name is taken or cannot be one, or the files cannot be written.
    """
    settings, member = paths.settings(), paths.members.next(name)
    try:
        _make_client(paths, member.number, host_port(settings.host, settings.public_port or settings.port))
        paths.members.add(member)
    except OSError as error:
        raise UsageError(f"cannot write the files of client {name}: {error.filename}: {error.strerror}") from None
    return member


def renew_certificate(paths: DeploymentPaths) -> None:
    """Replace the server's certificate and key, for the same host and by the same authority.

    Raises:
        UsageError: the authority's key is missing, its own certificate has expired, or the files cannot be written.
    """
    from fedpriv.deploy.flower.certificates import check_authority, make_server_certificate

    check_authority(paths.authority, paths.authority_key)
    settings = paths.settings()
    try:
        hosts = _hosts(settings.host, settings.listen)
        make_server_certificate(paths.authority, paths.authority_key, hosts, paths.certificate, paths.key)
    except OSError as error:
        raise UsageError(f"cannot write {paths.certificate}: {error.strerror}") from None


def _is_server(text: str) -> bool:
    """Whether a text is host:port, with an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 1 <= int(port) <= 65535:
        return False
    if host.startswith("[") and host.endswith("]"):
        return _is_address(host[1:-1])
    return re.fullmatch(r"[^\s:]+", host) is not None and _is_encodable(host)


def _is_encodable(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:  # a label is empty, or longer than 63 characters
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def _hosts(host: str, listen: str) -> Sequence[str]:
    return list(dict.fromkeys([host, "localhost", "127.0.0.1", *([] if listen in ("0.0.0.0", "::") else [listen])]))
