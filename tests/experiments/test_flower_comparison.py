"""The comparison of records in other frameworks with fedpriv's own runs: the page is that of the stored results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "flower"


def test_the_report_is_that_of_the_stored_results() -> None:
    spec = importlib.util.spec_from_file_location("flower_comparison", FOLDER / "compare.py")
    assert spec is not None and spec.loader is not None
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    stored = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert compare.report(stored) == (FOLDER / "REPORT.md").read_text(encoding="utf-8")
    for name, result in stored.items():
        own, other = result["fedpriv"], result[result["framework"]]
        assert own["answer"] == other["answer"], name
