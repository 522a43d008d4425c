"""Copying a run folder to MLflow: idempotent, resumable, one process at a time.

MLflow's own asynchronous logging is not used: its queue is in memory, a failed batch is dropped, and batches may overtake each
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpriv.tracking.access import named_store, permitted_store
from fedpriv.tracking.cursor import CURSOR, Cursor, stored_cursor
from fedpriv.tracking.folder import read_run
from fedpriv.tracking.sending import Pass, SyncReport
from fedpriv.tracking.store import TrackingError, create_store, explaining, quiet_mlflow, sqlite_path


def target_uri(run_dir: Path, uri: str | None = None) -> str:
    """The store that :func:`sync` sends a run to: ``uri``, else the last one, else that of ``run.json``, else the default.

    Raises:
        ForeignStore: as :func:`sync`.
    """
    if uri is not None:
        return named_store(uri)
    wanted = read_run(run_dir).get("tracking") or {}
    return permitted_store(run_dir, stored_cursor(run_dir).get("uri") or wanted.get("uri"))


def sync(run_dir: Path, uri: str | None = None, experiment: str | None = None) -> SyncReport:
    """Send the new records of a live or finished run to MLflow. Repeated calls send nothing twice.

    Args:
        run_dir: the run's folder.
        uri: MLflow tracking URI; ``None``: the store to which the run was sent before, else that of ``run.json``, else
            :func:`default_uri`; it must be the user's own. ``"none"`` sends nothing.
        experiment: MLflow experiment name; ``None``: as for ``uri``.

    Raises:
        UsageError: ``run_dir`` is not a run folder.
        ForeignStore: the folder names a store that the user's own configuration does not.
        TrackingError: the server does not answer, or refuses a request. The next call continues from there.
    """
    facts, before = read_run(run_dir), stored_cursor(run_dir)
    wanted, cursor_path = facts.get("tracking") or {}, run_dir / CURSOR
    uri = target_uri(run_dir, uri)
    experiment = experiment or before.get("experiment") or wanted.get("experiment") or "fedpriv"
    if uri == "none":
        return SyncReport(None)
    if (store := sqlite_path(uri)) is not None:
        uri = f"sqlite:///{store}"  # absolute, so that a later sync from another folder finds it
    quiet_mlflow()
    with _alone(run_dir, uri):
        cursor = Cursor.load(cursor_path, uri, experiment)
        cursor.save(cursor_path)
        with explaining(uri):
            if store is not None:
                create_store(store)
            return Pass(run_dir, facts, cursor).run()


@contextmanager
def _alone(run_dir: Path, uri: str) -> Iterator[None]:
    """A block in which no other process sends the run: two would each create it in MLflow."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(run_dir / ".tracking.lock", timeout=60):
            yield
    except Timeout:
        raise TrackingError(f"another process is sending {run_dir} to {uri}") from None
