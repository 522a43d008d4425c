"""Common parts of all benchmarks: options, the machine's description, and the report. Does not import torch."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedpriv.storage.provenance import processor


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option ``--json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser


def report(results: Mapping[str, Any], file: Path | None, failures: Sequence[str] = ()) -> None:
    """Print the machine, write the results, and exit with an error if there are failures."""
    print(f"on {results['processor']}, load {results['load_average']}, Python {results['python']}, {results['versions']}")
    write(results, file)
    if failures:
        sys.exit("limits missed: " + "; ".join(failures))


def write(results: Mapping[str, Any], file: Path | None) -> None:
    """Write the results as JSON."""
    if file:
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def peak_bytes() -> int:
    """The largest memory of this process so far; Linux counts ``ru_maxrss`` in KiB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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
    """Minimum, median and maximum."""
    numbers = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, digits) for name, value in numbers.items()}


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
