"""The user's cache folder: ``$XDG_CACHE_HOME/fedpriv`` or ``~/.cache/fedpriv``."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The cache folder, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpriv"
