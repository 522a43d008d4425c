"""Counts of a process, in a file that another process of the machine reads."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

from fedpriv.files import write_atomically

EVERY = 5.0
"""Seconds between two writes. With one each second they would take 5 % of an idle server's time."""


class Counters:
    """Numbers by name and label, since the start of the process.

    Args:
        file: where they are written; ``None``: nowhere.
    """

    def __init__(self, file: Path | None) -> None:
        self._file, self._lock, self._saved = file, threading.Lock(), 0.0
        self._counts = Counter[tuple[str, str]]()

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a number."""
        with self._lock:
            self._counts[name, label] += amount  # type: ignore[assignment]

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a number."""
        with self._lock:
            self._counts[name, label] = value  # type: ignore[assignment]

    def save(self, every: float = EVERY) -> None:
        """Write the numbers, unless they were written less than ``every`` seconds ago. A full disk changes nothing else."""
        with self._lock:
            if self._file is None or (now := time.monotonic()) < self._saved + every:
                return
            self._saved, counts = now, [[*key, value] for key, value in sorted(self._counts.items())]
        try:
            write_atomically(self._file, json.dumps(counts).encode())
        except OSError:
            return


def read_counters(file: Path) -> list[tuple[str, str, float]]:
    """(Name, label, number) of a file of :class:`Counters`; none if it is not there."""
    try:
        return [(str(name), str(label), float(value)) for name, label, value in json.loads(file.read_bytes())]
    except (OSError, ValueError, TypeError):
        return []
