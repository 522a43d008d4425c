"""What every result states about itself: processor, versions, commit. Does not import torch."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedpriv.storage.provenance import processor


def facts(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, cores, load average, Python, the packages' versions (``None``: not installed), commit and date."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
    }


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Least, middle and greatest."""
    found = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent, encoding="utf-8")
    except OSError:
        return None
    return done.stdout.strip() or None
