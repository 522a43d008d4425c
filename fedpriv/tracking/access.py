"""Which tracking store a run may be sent to, and with which credentials.

A run folder may come from elsewhere, and MLflow sends this user's credentials to any server that it is pointed at. So the store
that a folder names is used only if the user's own configuration names it, too.
"""

from __future__ import annotations

import os
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedpriv.errors import UsageError
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.folder import runs_dir_of
from fedpriv.tracking.store import TrackingError, default_uri, explained, sqlite_path
from fedpriv.untrusted.addresses import HIDDEN, keep_secrets, tracking_address, with_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

ANSWER = 60.0
"""Seconds for a server's whole answer to a request."""


class ForeignStore(UsageError):
    """A run folder names a store that the user's own configuration does not name."""


def named_store(uri: str) -> str:
    """A store that the user names, without its secrets, or ``none``.

    Raises:
        UsageError: it is no tracking URI.
    """
    try:
        return uri if uri == "none" else tracking_address(uri)
    except ValueError as error:
        raise UsageError(f"tracking URI {keep_secrets(uri)}: {error}") from None


def permitted_store(run_dir: Path, uri: str | None) -> str:
    """The store that a run folder names, if it is the user's: that of ``MLFLOW_TRACKING_URI``, or the file in the runs folder.

    Args:
        uri: named by the folder; ``None``: none, so the default.

    Raises:
        ForeignStore: it is another; the message says how to allow it.
    """
    runs_dir = run_dir.resolve().parent
    own = runs_dir_of(run_dir.resolve())
    default = default_uri(own)
    if uri is None or uri == "none":
        return uri or default
    uri = named_store(uri)
    stores = [f"sqlite:///{folder / 'mlflow.db'}" for folder in (own, runs_dir)]
    if any(same_store(uri, store) for store in (default, *stores)):
        return uri
    store = sqlite_path(uri)
    moved = store is not None and not store.exists()  # together with its runs
    hint = (
        f"for the one beside the run: --tracking-uri {shlex.quote(stores[0])}"
        if moved
        else f"to use it: --tracking-uri {shlex.quote(uri)}"
    )
    raise ForeignStore(
        f"{run_dir} names the tracking store {uri}, which is neither MLFLOW_TRACKING_URI nor beside the run"
        f"{', and not there' if moved else ''}; {hint}"
    )


def settle_store(run: RunFolder, uri: str | None) -> None:
    """Before a run is resumed, save the store that the user names in its folder, or check the one that the folder names.

    Args:
        uri: ``"none"``: no tracking from now on; ``None``: the store that the folder names.

    Raises:
        ForeignStore: the folder's store is not the user's.
    """
    if not run.facts:  # killed before it saved the store of its config
        in_config = run.config().tracking.uri
        if uri is None or named_store(uri) != in_config:
            permitted_store(run.path, in_config)
        return
    tracking = run.facts["tracking"]
    if uri is None:
        permitted_store(run.path, tracking["uri"])
        return
    with run.alone(runs=False):
        run.update_facts(tracking=tracking | {"name": "mlflow", "uri": named_store(uri)})


def client_of(uri: str) -> MlflowClient:
    """A client of the store at an address as it is shown. Each answer must be complete within :data:`ANSWER` seconds."""
    from mlflow import MlflowClient

    _limit_answers()
    return MlflowClient(tracking_uri=whole_address(uri))


@cache
def _limit_answers() -> None:
    from mlflow.utils import request_utils

    from fedpriv.untrusted.slow_servers import adapter_within

    module: Any = request_utils
    module.TCPKeepAliveHTTPAdapter = adapter_within(ANSWER, module.TCPKeepAliveHTTPAdapter)


def whole_address(shown: str) -> str:
    """A store's URI with its secrets, which this process knows or MLflow's own variables or file hold.

    Raises:
        TrackingError: a secret is in none of them, or the file is open to others.
    """
    from mlflow.utils.credentials import read_mlflow_creds

    if shown.startswith("sqlite"):
        return shown
    _check_file()
    whole = with_secrets(shown)
    if whole is not None:
        return whole
    credentials, token = read_mlflow_creds(), os.environ.get("MLFLOW_TRACKING_TOKEN")
    user, at, host = shown.rpartition("@")
    secret = credentials.password or token if user.endswith(f":{HIDDEN}") else token or credentials.password
    if not secret or HIDDEN in host:
        raise TrackingError(
            f"{shown} needs its password, which is never stored: set MLFLOW_TRACKING_PASSWORD (for a token "
            "MLFLOW_TRACKING_TOKEN), or MLFLOW_TRACKING_URI with the password in it"
        )
    if secret == token and user.endswith(f":{HIDDEN}") and shown.startswith("http"):  # MLflow sends the token itself
        return f"{shown.partition('://')[0]}://{host}"
    whole = f"{user.removesuffix(HIDDEN)}{quote(secret, safe='')}{at}{host}"
    keep_secrets(whole)  # so that messages do not show it
    return whole


def _check_file() -> None:
    """Raise :class:`TrackingError` if other users may read MLflow's file of credentials."""
    path = Path.home() / ".mlflow" / "credentials"
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & 0o077:
        raise TrackingError(f"{path} holds your MLflow credentials and is open to others: chmod 600 {path}")


def same_store(first: str, second: str) -> bool:
    """Whether two URIs without secrets name the same store, whatever the path to a file, or a server's last slash."""
    return _normalised(first) == _normalised(second)


def check_database(uri: str) -> None:
    """Raise :class:`TrackingError`, of one line, if a database other than SQLite cannot be reached."""
    import sqlalchemy

    try:
        sqlalchemy.create_engine(whole_address(uri)).connect().close()
    except (ImportError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise explained(error, uri) from None


def _normalised(uri: str) -> str:
    store = sqlite_path(uri)
    return f"sqlite:///{store.resolve()}" if store is not None else uri.rstrip("/").lower()
