"""Families of errors: each has a short name, which its message ends with, and a section of that name in ``docs/errors.md``."""

from __future__ import annotations

import traceback
from typing import Final

from fedpriv.errors import FedprivError, UsageError

CLASSES: Final = {
    "UnknownName": "unknown-name",
    "ClientDiverged": "client-diverged",
    "UploadRefused": "upload-refused",
    "SuspiciousDownload": "download-refused",
    "Damaged": "run-folder",
    "TrackingError": "tracking",
    "ForeignStore": "tracking",
}
"""Name of an error's class -> family."""
MODULES: Final = {
    "fedpriv.cli": "usage",
    "fedpriv.config": "config",
    "fedpriv.untrusted": "config",
    "fedpriv.data": "data",
    "fedpriv.server.merging": "plug-in",
    "fedpriv.storage.run_folder": "run-folder",
    "fedpriv.storage.run_lock": "run-folder",
    "fedpriv.tracking.folder": "run-folder",
    "fedpriv.simulation.reopening": "run-folder",
    "fedpriv.privacy": "privacy",
    "fedpriv.secure": "privacy",
    "fedpriv.deploy": "deployment",
    "fedpriv.tracking": "tracking",
}
"""Module or package that raises an error of no such class -> family. The longest name that fits counts."""


def family_of(error: FedprivError) -> str | None:
    """The family of an error that was raised; ``None``: it has none. Invalid input of no other family is one of usage."""
    for kind in type(error).__mro__:
        if kind.__name__ in CLASSES:
            return CLASSES[kind.__name__]
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = modules[-1] if modules else ""
    fits = [name for name in MODULES if f"{module}.".startswith(f"{name}.")]
    usage = MODULES["fedpriv.cli"] if isinstance(error, UsageError) else None
    return usage if not fits or module.startswith("fedpriv.cli") else MODULES[max(fits, key=len)]
