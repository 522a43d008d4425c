"""The file of fingerprints, and how a fresh one is held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fingerprints.taking import HASHES, Fingerprint, machine

FILE = Path(__file__).with_name("fingerprints.json")


def load() -> dict[str, Any]:
    """``machine``: where they were taken; ``runs``: name -> fingerprint."""
    return dict(json.loads(FILE.read_text()))


def write(runs: dict[str, Fingerprint]) -> None:
    """A line a run, so that a diff names the runs that changed."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(fingerprint)}" for name, fingerprint in runs.items())
    FILE.write_text(f'{{\n  "machine": {json.dumps(machine())},\n  "runs": {{\n{lines}\n  }}\n}}\n')


def rounded(fingerprint: Fingerprint) -> Fingerprint:
    """What holds of it on any machine: the numbers, up to rounding that training has multiplied; bytes exactly.

    An accuracy may move by a few of the test samples that lie next to a border.
    """
    numbers = {name: value for name, value in fingerprint.items() if name not in HASHES}
    accuracy = [value if value is None else pytest.approx(value, abs=0.02) for value in numbers["accuracy"]]
    return {**numbers, "accuracy": accuracy, **{name: pytest.approx(numbers[name], rel=1e-3) for name in ("loss", "norms")}}
