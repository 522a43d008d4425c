"""Flower as it is needed: installed, in a version that was tested, and silent."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedpriv.errors import UsageError, extra

TESTED = "1.41"
"""Flower's version, but for its last number."""
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Environment of every process of it: it sends no usage reports and looks for no updates."""


def require_flower() -> None:
    """Check that Flower is there.

    Raises:
        UsageError: it is not, or its version is another than the tested one.
    """
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise UsageError(f"deploying needs Flower; {extra('deploy')}") from None
    if not f"{found}.".startswith(f"{TESTED}."):
        raise UsageError(f"Flower {found} was not tested, {TESTED}.x was: pip install 'flwr=={TESTED}.*'")
