"""The files of a deployment: what ``fedpriv deploy init`` writes, and server and clients read."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedpriv.config import parse, read_yaml
from fedpriv.deploy.requires import Requires
from fedpriv.errors import UsageError
from fedpriv.storage.run_folder import RunFolder

PORT, INNER_PORT = 8443, 8400
"""At which clients reach the server, and at which it listens behind a reverse proxy."""
LOOPBACK = "127.0.0.1"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerFile(_File):
    """``server.yaml``."""

    host: str = Field(description="name or address under which clients reach the server")
    listen: str = Field(LOOPBACK, description="address that the server listens on")
    port: int = Field(INNER_PORT, ge=1, le=65535, description="its port")
    clients: int = Field(ge=1, description="number of clients")
    answer_within: float = Field(3600.0, gt=0, description="seconds that a client has for an answer")


class DataFile(_File):
    """``data`` of a client's file."""

    name: str | None = Field(None, description="as --dataset takes it: a name, a folder, a parquet or CSV file")
    dir: Path | None = Field(None, description="as --data-dir")
    share: Literal["own", "partition"] = Field("own", description="own: all samples; partition: its share by the run's partition")
    label: str | None = Field(None, description="column of the labels; null: found by its type or a common name")


class ClientFile(_File):
    """``client-N.yaml``; paths are relative to it."""

    client: int = Field(ge=0, description="its number")
    server: str = Field(description="host:port of the server")
    certificate: Path = Field(description="of the authority")
    key: Path = Field(description="the client's private key")
    folder: Path = Field(description="of its private states and its secret")
    data: DataFile = DataFile()
    device: str | None = Field(None, description="torch device; null: as the run says")
    check_downloads: bool = Field(True, description="refuse weights with marks of an attack on its data")
    requires: Requires = Requires()
    port: int | None = Field(None, ge=1, le=65535, description="local port of its node; null: a free one")
    poll: float = Field(1.0, ge=0.1, le=3, description="seconds between its questions for messages")


class DeploymentPaths:
    """The folder of a deployment on the server's machine."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.server_file = self.path / "server.yaml"
        self.authority, self.authority_key = self.path / "ca.crt", self.path / "ca.key"
        self.certificate, self.key = self.path / "server" / "server.crt", self.path / "server" / "server.key"
        self.secret, self.database = self.path / "server" / "superexec.secret", self.path / "server" / "link.db"
        self.flower, self.log = self.path / "server" / "flower", self.path / "server" / "log.txt"
        self.requests, self.runs = self.path / "requests", self.path / "runs"

    @classmethod
    def open(cls, path: Path) -> DeploymentPaths:
        """That of an existing deployment; :class:`UsageError` where there is none."""
        home = cls(path)
        if not home.server_file.exists():
            if path.is_file():
                raise UsageError(f"{path} is a file; name its folder, {path.parent}")
            if (path / "config.yaml").exists():
                raise UsageError(f"{path} is a run, and no deployment; {RunFolder(home.path).how_to_resume} continues it")
            raise UsageError(f"{path} holds no deployment (no server.yaml); `fedpriv deploy init {path} --host ...` makes one")
        return home

    def settings(self) -> ServerFile:
        """What ``server.yaml`` says."""
        return parse(ServerFile, read_yaml(self.server_file), str(self.server_file))

    def client_file(self, number: int) -> Path:
        """The file of a client."""
        return self.path / f"client-{number}.yaml"

    def public_key(self, number: int) -> Path:
        """The public key of a client."""
        return self.path / f"client-{number}" / "key.pub"


def host_port(host: str, port: int) -> str:
    """As in an address, where an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_client(path: Path) -> ClientFile:
    """A client's file, its paths absolute; :class:`UsageError` where it is not one."""
    found = parse(ClientFile, read_yaml(path), str(path))
    if not _is_server(found.server):
        raise UsageError(f"{path}: server = {found.server!r}: expected host:port, such as server.example.org:{PORT}")
    base = path.absolute().parent
    paths = {name: base / getattr(found, name).expanduser() for name in ("certificate", "key", "folder")}
    for name in ("certificate", "key"):
        if not paths[name].is_file():
            raise UsageError(
                f"{path}: {name} {paths[name]} does not exist; `fedpriv deploy init` made it on the server's machine"
            )
    where, source = found.data.dir, found.data.name
    if source is not None and (base / source).exists():
        source = str(base / source)
    data = found.data.model_copy(update={"dir": where and base / where.expanduser(), "name": source})
    return found.model_copy(update={**paths, "data": data})


def make(
    path: Path, clients: int, host: str, port: int = PORT, listen: str = LOOPBACK, inner_port: int | None = None
) -> DeploymentPaths:
    """Write a new deployment.

    Args:
        host, port: at which clients reach the server.
        listen, inner_port: at which it listens; ``None``: at the same port where no reverse proxy is needed.

    Raises:
        UsageError: the folder is not empty or cannot be written, or the host cannot be one.
    """
    from fedpriv.deploy.flower.certificates import make_authority, make_client_key, make_server_certificate, write_secret

    if not (
        (re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host) and _can_be_looked_up(host)) or _is_address(host)
    ):
        raise UsageError(f"--host {host!r}: expected a name such as server.example.org, or an address, without a port (--port)")
    inner = inner_port or (INNER_PORT if listen == LOOPBACK else port)
    home = DeploymentPaths(path)
    if home.server_file.exists():
        raise UsageError(
            f"{path} holds a deployment already; another folder, or remove it (`fedpriv deploy renew` makes a new certificate)"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not empty; name a new folder")
    try:
        for folder in (home.path, home.certificate.parent, home.flower, home.requests, home.runs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_authority(home.authority, home.authority_key)
        make_server_certificate(home.authority, home.authority_key, _hosts(host, listen), home.certificate, home.key)
        write_secret(home.secret, secrets.token_bytes(32))
        for number in range(clients):
            own = home.path / f"client-{number}"
            own.mkdir(mode=0o700, exist_ok=True)
            make_client_key(own / "key")
            (own / "ca.crt").write_bytes(home.authority.read_bytes())
            home.client_file(number).write_text(_client_yaml(number, host, port), encoding="utf-8")
        for name, text in _units(home.path, clients).items():
            (home.path / "systemd").mkdir(exist_ok=True)
            (home.path / "systemd" / name).write_text(text, encoding="utf-8")
        if proxied := inner != port:  # else it listens there itself
            (home.path / "nginx.conf").write_text(_proxy(home, host, port, inner), encoding="utf-8")
        home.server_file.write_text(_server_yaml(clients, host, listen, inner, proxied), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the deployment {path}: {error.strerror}") from None
    return home


def renew(home: DeploymentPaths) -> None:
    """Sign another certificate for the server, by its authority and for the same host; nothing else changes.

    Raises:
        UsageError: the authority's key is not there, its own certificate has expired, or the files cannot be written.
    """
    from fedpriv.deploy.flower.certificates import check_authority, make_server_certificate

    check_authority(home.authority, home.authority_key)
    settings = home.settings()
    try:
        hosts = _hosts(settings.host, settings.listen)
        make_server_certificate(home.authority, home.authority_key, hosts, home.certificate, home.key)
    except OSError as error:
        raise UsageError(f"cannot write {home.certificate}: {error.strerror}") from None


def _is_server(text: str) -> bool:
    """Whether it is host:port, an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 1 <= int(port) <= 65535:
        return False
    if host.startswith("[") and host.endswith("]"):
        return _is_address(host[1:-1])
    return re.fullmatch(r"[^\s:]+", host) is not None and _can_be_looked_up(host)


def _can_be_looked_up(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:  # a part of it is empty, or has more than 63 letters
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def _hosts(host: str, listen: str) -> Sequence[str]:
    return list(dict.fromkeys([host, "localhost", "127.0.0.1", *([] if listen in ("0.0.0.0", "::") else [listen])]))


def _server_yaml(clients: int, host: str, listen: str, port: int, proxied: bool) -> str:
    alone, trusted = "it is this\n# machine alone", "only\n# machines that you trust should reach it"
    who = f"A process that reaches this port can start runs and register clients, so {alone if listen == LOOPBACK else trusted}"
    if proxied:
        who += "; clients come through a reverse proxy that lets only /v1/fleet/ pass (nginx.conf)"
    return f"""# The server of a deployment: fedpriv deploy server THIS-FOLDER
# Name or address under which clients reach it; its certificate is for this name.
host: {host}
# Address and port that it listens on. {who}.
listen: {listen}
port: {port}
# Number of clients; client-0.yaml to client-{clients - 1}.yaml are theirs.
clients: {clients}
# Seconds that a client has for an answer; then its local update does not count, and the round goes on without it.
answer_within: 3600
"""


def _client_yaml(number: int, host: str, port: int) -> str:
    return f"""# Client {number} of a deployment: fedpriv deploy client THIS-FILE
# Copy this file and the folder client-{number} to the client's machine, and nothing else; then remove them here, but for key.pub.
client: {number}
server: {f"'{host_port(host, port)}'" if ":" in host else host_port(host, port)}
# Paths are relative to this file.
certificate: client-{number}/ca.crt
key: client-{number}/key
# Its private states and the secret that its noise is drawn from. Keep it: a run goes on from there.
folder: client-{number}/state
data:
  # As --dataset takes it: a name of `fedpriv data list`, a folder of images, a parquet or CSV file. null: as the run says, which
  # may then be a name of that list only.
  name: null
  # As --data-dir: folder with <name>/{{train,test}}.parquet.
  dir: null
  # own: all samples are this client's; of images in files, this needs runs with data.pixels=unit. partition: every client has the
  # whole data set and takes its share, for trials.
  share: own
  # Column of the labels, whatever the run says. null: found by its type or a common name.
  label: null
# Torch device, such as cuda. null: as the run says.
device: null
# Refuse weights with marks of an attack on its data, whatever the run's config says.
check_downloads: true
# What every run must have for this client to take part, whatever the server asks.
requires:
  # Sample-level differential privacy: privacy.target_epsilon at most this, and privacy.delta at most `delta`. null: not required.
  epsilon: null
  delta: 1.0e-5
  secure_aggregation: false
  # Such as [fedavg, fedrep]. null: any.
  methods: null
  # false: it takes part without being tested. A server that lies reads test samples out of accuracies, which neither of the above
  # prevents.
  tests: true
# Local port of its node. null: a free one.
port: null
# Seconds between its questions for messages, from 0.1 to 3.
poll: 1
"""


def _units(home: Path, clients: int) -> dict[str, str]:
    def unit(what: str, command: str) -> str:
        return f"""[Unit]
Description=fedpriv {what}
After=network-online.target time-sync.target
Wants=network-online.target

[Service]
# The path of fedpriv, as `which fedpriv` says it.
ExecStart=/usr/local/bin/fedpriv {command}
Restart=always
RestartSec=5
# It ends its own processes.
KillMode=mixed
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""

    units = {"fedpriv-server.service": unit("server", f"deploy server {home}")}
    for number in range(clients):
        units[f"fedpriv-client-{number}.service"] = unit(f"client {number}", f"deploy client /etc/fedpriv/client-{number}.yaml")
    return units


def _proxy(home: DeploymentPaths, host: str, port: int, inner: int) -> str:
    return f"""# For nginx, within http {{ }}: clients reach the fleet API and nothing else.
# The other APIs of the server have no login: they start runs and register clients.
server {{
    listen {port} ssl;
    listen [::]:{port} ssl;
    server_name {host};
    ssl_certificate {home.certificate};
    ssl_certificate_key {home.key};
    client_max_body_size 0;
    proxy_read_timeout 1h;

    location /v1/fleet/ {{
        proxy_pass https://127.0.0.1:{inner};
        proxy_ssl_trusted_certificate {home.authority};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_request_buffering off;
    }}
    location / {{
        return 403;
    }}
}}
"""
