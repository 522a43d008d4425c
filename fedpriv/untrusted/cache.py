"""The user's cache: what can be computed again, in ``$XDG_CACHE_HOME/fedpriv`` or ``~/.cache/fedpriv``."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Its folder, which may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpriv"
