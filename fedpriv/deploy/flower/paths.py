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
from fedpriv.deploy.requires import Requires
from fedpriv.deploy.source import Source
from fedpriv.errors import UsageError
from fedpriv.storage.run_folder import RunFolder

PORT, INNER_PORT = 8443, 8400
"""The public port, and the one that the server listens on behind a reverse proxy."""
LOOPBACK = "127.0.0.1"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerFile(_File):
    """``server.yaml``."""

    host: str = Field(description="name or address under which clients reach the server")
    listen: str = Field(LOOPBACK, description="address that the server listens on")
    port: int = Field(INNER_PORT, ge=1, le=65535, description="its port")
    clients: int = Field(ge=1, description="number of clients")
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
    from fedpriv.deploy.flower.certificates import make_authority, make_client_key, make_server_certificate, write_secret

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
        for number in range(clients):
            own = paths.path / f"client-{number}"
            own.mkdir(mode=0o700, exist_ok=True)
            make_client_key(own / "key")
            (own / "ca.crt").write_bytes(paths.authority.read_bytes())
            paths.client_file(number).write_text(_client_yaml(number, host, port), encoding="utf-8")
        for name, text in _units(paths.path, clients).items():
            (paths.path / "systemd").mkdir(exist_ok=True)
            (paths.path / "systemd" / name).write_text(text, encoding="utf-8")
        if proxied := inner != port:
            (paths.path / "nginx.conf").write_text(_proxy(paths, host, port, inner), encoding="utf-8")
        paths.server_file.write_text(_server_yaml(clients, host, listen, inner, proxied), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the deployment {path}: {error.strerror}") from None
    return paths


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


def _server_yaml(clients: int, host: str, listen: str, port: int, proxied: bool) -> str:
    alone, trusted = "it is\n# open to this machine alone", "only\n# machines that you trust should reach it"
    access = (
        f"A process that reaches this port can start runs and register clients, so {alone if listen == LOOPBACK else trusted}"
    )
    if proxied:
        access += "; clients come through a reverse proxy that lets only /v1/fleet/ pass (nginx.conf)"
    return f"""# The server of a deployment: fedpriv deploy server THIS-FOLDER
# Name or address under which clients reach it; its certificate is for this name.
host: {host}
# Address and port that it listens on. {access}.
listen: {listen}
port: {port}
# Number of clients; client-0.yaml to client-{clients - 1}.yaml are theirs.
clients: {clients}
# Seconds that a client has to answer; then the round continues without it.
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
# For its private states and the secret that its noise is drawn from. Keep it: a run continues from there.
folder: client-{number}/state
data:
  # As --dataset takes it: a name of `fedpriv data list`, a folder of images, a parquet or CSV file. null: the data set
  # that the run names, which must be a name of that list.
  name: null
  # As --data-dir: folder with <name>/{{train,test}}.parquet.
  dir: null
  # own: all samples are this client's. partition: every client has the whole data set and takes its share of the run's
  # partition, for trials.
  share: own
  # Column of the labels, whatever the run says. null: found by its type or a common name.
  label: null
  # Columns of a table that a run may use, such as [age, sex], and columns that no run uses. null: all but the latter.
  features: null
  drop: []
# Torch device, such as cuda. null: that of the run.
device: null
# Refuse weights with marks of an attack on its data, whatever the run's config says.
check_downloads: true
# What every run must have for this client to take part, whatever the server asks.
requires:
  # Sample-level differential privacy: privacy.target_epsilon at most this, and privacy.delta at most `delta`. null: not required.
  epsilon: null
  delta: 1.0e-5
  secure_aggregation: false
  # Of a table: the least data.min_level. A level that fewer of its rows have is not named to the server.
  min_level: 1
  # Such as [fedavg, fedrep]. null: any.
  methods: null
  # false: it takes part without being tested. A lying server can read test samples out of accuracies, which neither of the above
  # prevents.
  tests: true
# Local port of its node. null: a free one.
port: null
# Seconds between checks for messages, from 0.1 to 3.
poll: 1
"""


def _units(paths: Path, clients: int) -> dict[str, str]:
    def unit(what: str, command: str) -> str:
        return f"""[Unit]
Description=fedpriv {what}
After=network-online.target time-sync.target
Wants=network-online.target

[Service]
# The path of fedpriv, as printed by `which fedpriv`.
ExecStart=/usr/local/bin/fedpriv {command}
Restart=always
RestartSec=5
# fedpriv ends its own processes.
KillMode=mixed
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""

    units = {"fedpriv-server.service": unit("server", f"deploy server {paths}")}
    for number in range(clients):
        units[f"fedpriv-client-{number}.service"] = unit(f"client {number}", f"deploy client /etc/fedpriv/client-{number}.yaml")
    return units


def _proxy(paths: DeploymentPaths, host: str, port: int, inner: int) -> str:
    return f"""# For nginx, within http {{ }}: clients reach the fleet API and nothing else.
# The other APIs of the server have no login: they start runs and register clients.
server {{
    listen {port} ssl;
    listen [::]:{port} ssl;
    server_name {host};
    ssl_certificate {paths.certificate};
    ssl_certificate_key {paths.key};
    client_max_body_size 0;
    proxy_read_timeout 1h;

    location /v1/fleet/ {{
        proxy_pass https://127.0.0.1:{inner};
        proxy_ssl_trusted_certificate {paths.authority};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_request_buffering off;
    }}
    location / {{
        return 403;
    }}
}}
"""
