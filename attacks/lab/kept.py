"""Results of controls, kept in the user's cache: they depend on the attack, its setting and the code alone."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Control:
    """The result of a control.

    Attributes:
        cpu_seconds: what it took when it was run, perhaps by an earlier process; ``None``: it has no cost of its own.
    """

    name: str
    passed: bool
    sentence: str
    cpu_seconds: float | None


def folder() -> Path:
    """Where the results are: ``$FEDPRIV_CONTROLS``, else ``fedpriv/controls`` in the user's cache."""
    if own := os.environ.get("FEDPRIV_CONTROLS"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpriv" / "controls"


def kept(attack: object, *facts: object, compute: Callable[[], Sequence[Control]]) -> tuple[Control, ...]:
    """Controls from the cache, or computed and put there; without a cache that can be written, computed.

    Args:
        attack: its class, options and source belong to the key, like the source of this package, Python and PyTorch.
        facts: whatever else the controls depend on; what their ``repr`` says.
    """
    kind = type(attack)
    named = repr((kind.__module__, kind.__qualname__, attack, facts, _source(inspect.getfile(kind)), code()))
    path = folder() / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.json"
    try:
        return tuple(Control(**one) for one in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    found = tuple(compute())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8") as draft:
            json.dump([asdict(one) for one in found], draft)
        Path(draft.name).replace(path)
    except OSError:
        pass  # a full disk, or a home that cannot be written
    return found


@cache
def code(root: Path = Path(__file__).parents[1]) -> str:
    """A hash of all Python files of a package, by default this one, and of what they run on."""
    found = hashlib.sha256(f"{sys.version} {version('torch')}".encode())
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    return found.hexdigest()


@cache
def _source(file: str) -> str:
    """Of an attack's file, which may be another package's."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
