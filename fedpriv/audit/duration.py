"""How long the steps of an audit took, beside the controls in the user's cache: foretells the end of the next one of its kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedpriv.attacks.lab.control import folder


def of_last(kind: str) -> dict[str, float]:
    """The moments of the last audit of a kind (:class:`fedpriv.audit.progress.Progress`); empty: none is known."""
    try:
        return {str(step): float(seconds) for step, seconds in json.loads(_path(kind).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep(kind: str, moments: Mapping[str, float]) -> None:
    """Keep the moments of an audit; not where the cache cannot be written."""
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        _path(kind).write_text(json.dumps(moments), encoding="utf-8")


def _path(kind: str) -> Path:
    return folder() / f"duration-{hashlib.sha256(kind.encode()).hexdigest()[:32]}.json"
