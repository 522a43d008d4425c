"""``fedpriv ui``: the runs in MLflow's own pages."""

from __future__ import annotations

import os
import socket
import sys
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import click

from fedpriv.cli import main
from fedpriv.cli.common import RUNS_DIR, command
from fedpriv.cli.terminal import say
from fedpriv.errors import UsageError


@command(main, "ui")
@RUNS_DIR
@click.option(
    "--tracking-uri", help="MLflow store to show; default: MLFLOW_TRACKING_URI, else the SQLite file in the runs folder."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="Port to listen on.")
def ui(runs_dir: Path, tracking_uri: str | None, host: str, port: int) -> None:
    """Open the runs in MLflow, until Ctrl-C.

    \b
    Example: fedpriv ui --port 5001
    """
    from fedpriv.tracking import artifact_dir, create_store, default_uri, named_store, sqlite_path, tracked_in, whole_address
    from fedpriv.tracking.access import check_database

    if not runs_dir.is_dir() and tracking_uri is None:
        raise UsageError(f"there is no runs folder {runs_dir}; --runs-dir names another, `fedpriv train` makes one")
    uri = default_uri(runs_dir) if tracking_uri is None else named_store(tracking_uri)
    if uri.startswith(("http://", "https://")):
        raise UsageError(f"{uri} is a tracking server already: open it in a browser")
    arguments = ["--host", host, "--port", str(port), "--workers", "1"]
    if (store := sqlite_path(uri)) is not None:
        if not store.is_file() and any(tracked_in(file.parent) == store for file in runs_dir.glob("*/run.json")):
            say(f"creating the MLflow store {store}, which has no runs yet")
            create_store(store)  # or wait until another process has created it
        if not store.is_file():
            raise UsageError(f"no MLflow store {store}; `fedpriv train` makes one, --runs-dir or --tracking-uri name another")
        arguments += ["--artifacts-destination", str(artifact_dir(store))]
    elif uri.startswith(("postgresql", "mysql", "mssql")):
        check_database(uri)  # MLflow would show a traceback
    _check_port(host, port)
    # By default MLflow opens its pages for language-model applications.
    page = "#/experiments?workflowType=machine_learning"
    shown = "localhost" if host == "0.0.0.0" else host
    say("MLflow starts, which takes some seconds; Ctrl-C ends it")
    sys.stdout.flush()
    _announce(host, port, f"MLflow shows the runs at http://{shown}:{port}/{page}")
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # By its environment: other users see the arguments of a process, and a database's address may hold a password.
    environment = settings | dict(os.environ) | {"MLFLOW_BACKEND_STORE_URI": whole_address(uri)}
    # In place of this process, so that Ctrl-C and kill reach the server itself and leave no orphan.
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", "server", *arguments], environment)


def _announce(host: str, port: int, line: str) -> None:
    """Start a process that prints a line once the server answers, and ends then, or with this process."""
    server = os.getpid()
    if os.fork():
        return
    while os.getppid() == server:
        connection = HTTPConnection(host, port, timeout=2)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == HTTPStatus.OK:
                say(line)
                sys.stdout.flush()
                break
        except (OSError, HTTPException):
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(0.2)
    os._exit(0)


def _check_port(host: str, port: int) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port just left is free
            probe.bind(address)
    except OSError as error:
        other = port + 1 if port < 65535 else 5001
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); --port {other} may be free") from None
