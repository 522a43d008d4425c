"""MLflow's tracking stores: their locations, creation, and errors."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from fedpriv.errors import FedprivError, causes
from fedpriv.processes import python_command
from fedpriv.tracking.folder import read_run
from fedpriv.untrusted.addresses import hide_secrets, keep_secrets
from fedpriv.untrusted.proxies import by_proxy, go_direct

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PATIENCE = 120
"""Seconds to wait for another process that creates the same store."""
_QUICK = 2.0
"""Seconds for a server to accept a request."""
_PLACES = {"experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location"}
"""Table -> column with absolute paths of artifacts, in MLflow's schema."""


class TrackingError(FedprivError):
    """MLflow did not accept a record: the server is unreachable, or it refused."""


class ServerAway(TrackingError):
    """The tracking server does not answer."""


def default_uri(base: Path) -> str:
    """``MLFLOW_TRACKING_URI`` without its secrets if it is set, else the SQLite file ``mlflow.db`` in the runs folder."""
    return keep_secrets(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{base.resolve() / 'mlflow.db'}")


def sqlite_path(uri: str) -> Path | None:
    """The file of an SQLite tracking URI; ``None`` for any other URI."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").split("?")[0]).absolute()


def tracked_in(run_dir: Path) -> Path | None:
    """The file of the SQLite store that a run folder names; ``None``: another kind of store or tracker."""
    tracking = read_run(run_dir).get("tracking") or {}
    return sqlite_path(tracking.get("uri") or "") if tracking.get("name") == "mlflow" else None


def artifact_dir(store: Path) -> Path:
    """The folder for artifacts of an SQLite store: ``mlartifacts`` beside the file."""
    return store.parent / "mlartifacts"


def quiet_mlflow() -> None:
    """Set short timeouts for MLflow, turn off its output and telemetry, and let it reach this machine without a proxy. The user's
    environment variables take precedence."""
    go_direct()
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

    A separate process does it, as the migrations block the interpreter for seconds and reconfigure logging. It writes a draft
    that is then moved into place, as a kill would leave a partial schema that MLflow cannot open. A lock keeps several runs from
    doing it at once.
    """
    if path.exists():
        return
    from filelock import FileLock, Timeout

    drafts = f".{path.name}-"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()  # the lock would wait for ever in a read-only folder
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE):
            for draft in path.parent.glob(f"{glob.escape(drafts)}*"):  # left by a process that was killed
                shutil.rmtree(draft, ignore_errors=True)
            if not path.exists():
                _make_store(path, drafts)
    except OSError as error:
        raise TrackingError(f"cannot create {path}: {error.strerror or error}") from None
    except Timeout:
        raise TrackingError(f"cannot create {path}: another process has been creating it for {_PATIENCE} s") from None


def _make_store(path: Path, drafts: str) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=drafts) as folder:
        draft = Path(folder) / path.name
        # In its own session: Ctrl-C stops the run, but it is still recorded.
        command = python_command("from mlflow.cli import cli; cli()", "db", "upgrade", f"sqlite:///{draft}")
        maker = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, encoding="utf-8"
        )
        import mlflow  # noqa: F401 -- it takes seconds, too, which pass meanwhile

        _, stderr = maker.communicate()
        if maker.returncode:
            raise TrackingError(f"cannot create {path}: {(stderr.strip().splitlines() or ['no message'])[-1]}")
        draft.replace(path)


def follow_move(uri: str) -> None:
    """Update the paths of artifacts in an SQLite store whose folder was moved.

    To be called after a client has opened the store, so that it has MLflow's schema.

    Raises:
        TrackingError: the artifacts are neither in the old place nor beside the store.
    """
    if (store := sqlite_path(uri)) is None:
        return
    own = artifact_dir(store)
    with closing(sqlite3.connect(store)) as database, database:  # one transaction
        named = database.execute("SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE 'file:///%'")
        for (place,) in named.fetchall():
            old = Path(unquote(place.removeprefix("file://")))
            # isdir is also false for a folder that this user may not enter, and so could not write to.
            if old.name != own.name or old.resolve() == own.resolve() or os.path.isdir(old):
                continue
            if not own.is_dir():
                raise TrackingError(
                    f"{uri} names {old} for artifacts, which is not there: move it to {own}, or make that folder if there is none"
                )
            for table, column in _PLACES.items():
                database.execute(
                    f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "
                    f"WHERE instr({column} || '/', :old || '/') = 1",
                    {"old": place, "new": own.as_uri()},
                )


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """The id of an experiment, which is created if it does not exist.

    Raises:
        TrackingError: the experiment was deleted in MLflow.
    """
    from mlflow.exceptions import MlflowException

    store = sqlite_path(uri)
    for _ in range(2):
        if (experiment := client.get_experiment_by_name(name)) is not None:
            if experiment.lifecycle_stage == "deleted":
                raise TrackingError(f"experiment {name!r} was deleted in MLflow; restore it, or set tracking.experiment")
            return str(experiment.experiment_id)
        try:
            # Beside the SQLite file; MLflow's default is the working directory.
            place = artifact_dir(store).as_uri() if store else None
            return str(client.create_experiment(name, place, tags={"mlflow.experimentKind": "custom_model_development"}))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise  # otherwise another process created it: look it up again
    raise TrackingError(f"cannot create experiment {name!r}")


def check_server(uri: str) -> None:
    """Check within tenths of a second that a server accepts connections: importing MLflow takes longer than a short run.

    Raises:
        ServerAway: it does not.
    """
    if not uri.startswith("http"):
        return
    import requests

    from fedpriv.untrusted.slow_servers import ask_head

    scheme, _, rest = uri.partition("://")
    try:
        ask_head(f"{scheme}://{rest.rpartition('@')[2]}", _QUICK)
    except requests.exceptions.SSLError:  # there is a server; MLflow's error will say more
        pass
    except requests.ConnectionError as error:
        raise explained(error, uri) from None
    except requests.RequestException:
        pass


@contextmanager
def explaining(uri: str) -> Iterator[None]:
    """A block that talks to a store; an error of MLflow in it becomes a :class:`TrackingError`."""
    try:
        yield
    except FedprivError:
        raise
    except Exception as error:
        raise explained(error, uri) from error


def explained(error: Exception, uri: str) -> TrackingError:
    """The :class:`TrackingError` for an error of MLflow, in one line; :class:`ServerAway` if the server does not answer."""
    import requests

    if any(isinstance(cause, requests.RequestException) for cause in causes(error)):
        return ServerAway(f"tracking server {uri} does not answer{by_proxy(uri)}")
    if isinstance(error, ModuleNotFoundError):  # the driver of a database
        return TrackingError(f"tracking at {uri} needs the package {error.name}, which is not installed")
    lines = hide_secrets(str(error)).strip().splitlines() or [type(error).__name__]
    return TrackingError(f"tracking at {uri} failed: {lines[0][:300]}")
