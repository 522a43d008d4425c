"""What every result states about itself: processor, versions, commit. Imports nothing heavy."""

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


def facts(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, cores, load average, Python, the packages' versions (``None``: not installed), commit and date."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
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


def _processor() -> str:
    """Model, family and the widest vector unit, as Linux says them; elsewhere what Python knows."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = said.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    name = said.get("model name", platform.machine())
    return f"{name} family {said.get('cpu family')} model {said.get('model')} {vectors}".strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return None
    return done.stdout.strip() or None
