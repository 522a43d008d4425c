"""Which store a run may be sent to, and with which secrets: the user's, whatever the run folder says.

A run folder may come from elsewhere. What it says of a tracking store is followed only where the user's own configuration says
the same, since MLflow sends this user's credentials to whatever server it is pointed at.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import quote

from fedpriv.errors import UsageError
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.store import TrackingError, default_uri, sqlite_path
from fedpriv.untrusted.addresses import HIDDEN, keep_secrets, tracking_address, with_secrets


class ForeignStore(UsageError):
    """A run folder names a store that the user's own configuration does not."""


def named_store(uri: str) -> str:
    """A store that the user names, as it may be shown; ``none`` is one, too.

    Raises:
        UsageError: it is no tracking URI.
    """
    try:
        return uri if uri == "none" else tracking_address(uri)
    except ValueError as error:
        raise UsageError(f"tracking URI {keep_secrets(uri)}: {error}") from None


def permitted_store(run_dir: Path, said: str | None) -> str:
    """The store that a run folder says, if that is the user's own, too: in ``MLFLOW_TRACKING_URI``, or beside the run folder.

    Args:
        said: by the folder; ``None``: nothing.

    Raises:
        ForeignStore: it is another; the message says how to allow it.
    """
    runs_dir = run_dir.resolve().parent
    usual = default_uri(runs_dir)
    if said is None or said == "none":
        return said or usual
    said = named_store(said)
    beside = f"sqlite:///{runs_dir / 'mlflow.db'}"
    if same_store(said, usual) or same_store(said, beside):
        return said
    store = sqlite_path(said)
    moved = store is not None and not store.exists()  # with its runs: it would be made anew in the old place
    hint = (
        f"for the one beside the run: --tracking-uri {shlex.quote(beside)}"
        if moved
        else f"to use it: --tracking-uri {shlex.quote(said)}"
    )
    raise ForeignStore(
        f"{run_dir} names the tracking store {said}, which is neither MLFLOW_TRACKING_URI nor beside the run"
        f"{', and not there' if moved else ''}; {hint}"
    )


def settle_store(run: RunFolder, uri: str | None) -> None:
    """Before a run goes on: note the store that the user names; without one, refuse what only the folder names.

    Args:
        uri: ``"none"``: no tracking from now on; ``None``: the store that the folder says.

    Raises:
        ForeignStore: it is not the user's own.
    """
    if not run.facts:  # killed before it noted the store of its config
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


def whole_address(shown: str) -> str:
    """What MLflow is given: with the secrets that this process knows, or that MLflow's own variables or file hold.

    Raises:
        TrackingError: it needs a secret that is in none of them, or the file is open to others.
    """
    from mlflow.utils.credentials import read_mlflow_creds

    if shown.startswith("sqlite"):
        return shown
    _check_file()
    whole = with_secrets(shown)
    if whole is not None:
        return whole
    found, token = read_mlflow_creds(), os.environ.get("MLFLOW_TRACKING_TOKEN")
    user, at, host = shown.rpartition("@")
    secret = found.password or token if user.endswith(f":{HIDDEN}") else token or found.password
    if not secret or HIDDEN in host:
        raise TrackingError(
            f"{shown} needs its password, which is never stored: set MLFLOW_TRACKING_PASSWORD (for a token "
            "MLFLOW_TRACKING_TOKEN), or MLFLOW_TRACKING_URI with the password in it"
        )
    if secret == token and user.endswith(f":{HIDDEN}") and shown.startswith("http"):  # which MLflow sends by itself
        return f"{shown.partition('://')[0]}://{host}"
    whole = f"{user.removesuffix(HIDDEN)}{quote(secret, safe='')}{at}{host}"
    keep_secrets(whole)  # so that the secret is known in messages
    return whole


def _check_file() -> None:
    """MLflow's file of credentials must not be open to others."""
    path = Path.home() / ".mlflow" / "credentials"
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & 0o077:
        raise TrackingError(f"{path} holds your MLflow credentials and is open to others: chmod 600 {path}")


def same_store(one: str, other: str) -> bool:
    """Whether two URIs, both without secrets, name one store: a file by whatever path, a server with or without a last slash."""
    return _compared(one) == _compared(other)


def _compared(uri: str) -> str:
    store = sqlite_path(uri)
    return f"sqlite:///{store.resolve()}" if store is not None else uri.rstrip("/").lower()
