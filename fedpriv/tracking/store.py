"""MLflow's tracking stores: their locations, creation, and errors."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from fedpriv.errors import FedprivError


class TrackingError(FedprivError):
    """MLflow did not accept a record: the server is unreachable, or it refused."""


class ServerAway(TrackingError):
    """The tracking server does not answer."""


def default_uri(base: Path) -> str:
    """``MLFLOW_TRACKING_URI`` where it is set, else the SQLite file ``mlflow.db`` in the runs folder ``base``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{base.resolve() / 'mlflow.db'}"


def sqlite_path(uri: str) -> Path | None:
    """The file of an SQLite tracking URI; ``None`` for any other URI."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").split("?")[0]).absolute()


def artifact_dir(store: Path) -> Path:
    """The folder for artifacts of an SQLite store: ``mlartifacts`` beside the file."""
    return store.parent / "mlartifacts"


def shown(uri: str) -> str:
    """A tracking URI without the password it may carry."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=f"***@{parts.hostname}:{parts.port or ''}".rstrip(":"))) if parts.password else uri


def quiet_mlflow() -> None:
    """Set short timeouts for MLflow, and turn off its output and telemetry; the user's environment variables take precedence."""
    for name, value in {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_LOGGING_LEVEL": "CRITICAL",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logger = logging.getLogger(name)
        if logger.level in (logging.NOTSET, logging.INFO):
            logger.setLevel(logging.CRITICAL)


def create_store(path: Path) -> None:
    """Create an SQLite store with MLflow's schema if there is none.

    In a separate process, because the migrations block the interpreter for seconds and reconfigure logging; in a draft that is
    moved into place, because a kill would leave a partial schema that MLflow cannot open; under a lock, because several runs may
    start at once.
    """
    if path.exists():
        return
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mlflow-") as folder:
            draft = Path(folder) / path.name
            command = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{draft}"]
            # In its own session, so that Ctrl-C, after which the run is still recorded, does not end it.
            quiet = subprocess.DEVNULL
            maker = subprocess.Popen(command, stdout=quiet, stderr=subprocess.PIPE, text=True, start_new_session=True)
            import mlflow  # noqa: F401 -- it takes seconds too, and they may as well pass meanwhile

            _, stderr = maker.communicate()
            if maker.returncode:
                raise TrackingError(f"cannot create {path}: {(stderr.strip().splitlines() or ['no message'])[-1]}")
            draft.replace(path)


def explained(error: Exception, uri: str) -> TrackingError:
    import requests

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, requests.RequestException):
            return ServerAway(f"tracking server {shown(uri)} does not answer")
        cause = cause.__cause__ or cause.__context__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return TrackingError(f"tracking at {shown(uri)} failed: {lines[0][:300]}")
