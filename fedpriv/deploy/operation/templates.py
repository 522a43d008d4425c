"""The texts of a deployment's files, with comments for those who edit them."""

from __future__ import annotations

from pathlib import Path

from fedpriv.deploy.operation.bounds import MAX_BODY, MAX_OF_AN_ADDRESS

LOOPBACK = "127.0.0.1"


def server_yaml(clients: int, host: str, listen: str, port: int, public_port: int) -> str:
    """``server.yaml``."""
    access = "Only processes of this machine can start runs and register clients"
    if port != public_port:
        access += "; clients come\n# through a reverse proxy that lets only /v1/fleet/ pass (nginx.conf)"
    return f"""# The server of a deployment: fedpriv deploy server THIS-FOLDER
# Name or address under which clients reach it; its certificate is for this name.
host: {host}
# Address and port that it listens on. {access}.
listen: {listen}
port: {port}
# Port at which clients reach it.
public_port: {public_port}
# Number of clients that it was made for. `fedpriv deploy add-client` and `remove-client` change them; clients.json names all.
clients: {clients}
# Seconds that a client has to answer; then the round continues without it.
answer_within: 3600
"""


def client_yaml(number: int, server: str) -> str:
    """``client-N.yaml``."""
    return f"""# Client {number} of a deployment: fedpriv deploy client THIS-FILE
# Copy this file and the folder client-{number} to the client's machine, and nothing else; then remove them here, but for key.pub.
client: {number}
server: {f"'{server}'" if server.startswith("[") else server}
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
  # Bytes that a run may need, by an estimate before anything is allocated. null: half of this machine's memory.
  max_memory: null
  # Bytes of the run's net, and pixels a side to which images are resized (data.image_size).
  max_model_bytes: 1073741824
  max_image_side: 512
# Local port of its node. null: a free one.
port: null
# Seconds between checks for messages, from 0.1 to 3.
poll: 1
"""


def server_unit(paths: Path) -> str:
    """The server's unit of systemd."""
    return _unit("server", f"deploy server {paths}")


def client_unit(number: int) -> str:
    """A client's unit of systemd."""
    return _unit(f"client {number}", f"deploy client /etc/fedpriv/client-{number}.yaml")


def _unit(what: str, command: str) -> str:
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


def proxy(certificate: Path, key: Path, authority: Path, host: str, port: int, inner: int) -> str:
    """``nginx.conf``."""
    return f"""# For nginx, within http {{ }}: clients reach the fleet API and nothing else.
# The other APIs of the server have no login: they start runs and register clients.
# In nginx's own file, set `events {{ worker_connections 8192; }}`: a connection without complete headers uses one for up to 10 s.
limit_conn_zone $binary_remote_addr zone=fedpriv_{port}:1m;

server {{
    listen {port} ssl;
    listen [::]:{port} ssl;
    server_name {host};
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    # A message of any size arrives in chunks; the server asks for a login before it reads more than 64 KiB.
    client_max_body_size {MAX_BODY};
    client_body_buffer_size 64k;
    client_body_timeout 30s;
    client_header_timeout 10s;
    # Requests of one address at once, such as of the clients behind one router.
    limit_conn fedpriv_{port} {MAX_OF_AN_ADDRESS};
    proxy_read_timeout 1h;

    location /v1/fleet/ {{
        proxy_pass https://127.0.0.1:{inner};
        proxy_ssl_trusted_certificate {authority};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_request_buffering off;
    }}
    location / {{
        return 403;
    }}
}}
"""
