"""The file of fingerprints, and the comparison with a fresh one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fingerprints.taking import HASHES, Fingerprint, machine

FILE = Path(__file__).with_name("fingerprints.json")


def load() -> dict[str, Any]:
    """The stored fingerprints: ``machine``, where they were taken, and ``runs`` by name."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def write(runs: dict[str, Fingerprint]) -> None:
    """Store fingerprints, one line per run, so that a diff shows which runs changed."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(fingerprint)}" for name, fingerprint in runs.items())
    FILE.write_text(f'{{\n  "machine": {json.dumps(machine())},\n  "runs": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")


def rounded(fingerprint: Fingerprint) -> Fingerprint:
    """The part of a fingerprint that holds on any machine: numbers up to rounding that training multiplied, and exact bytes.

    An accuracy may change by a few test samples next to a decision boundary.
    """
    numbers = {name: value for name, value in fingerprint.items() if name not in HASHES}
    accuracy = [value if value is None else pytest.approx(value, abs=0.02) for value in numbers["accuracy"]]
    return {**numbers, "accuracy": accuracy, **{name: pytest.approx(numbers[name], rel=1e-3) for name in ("loss", "norms")}}
