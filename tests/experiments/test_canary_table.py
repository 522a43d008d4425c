"""The table of canaries: rows run and are stored, and missing noise shows in them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

FILE = Path(__file__).parents[2] / "experiments" / "canaries" / "table.py"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with a row of ideal canaries and one of a single run."""
    spec = importlib.util.spec_from_file_location("canaries_table", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RUNS", 1)
    row = module.runs_row("sample, all samples, 2 steps", 2, 500)
    monkeypatch.setattr(module, "ROWS", {"ideal": module.ideal_row(4, 1000, 5), "run": row})
    return module


def run(table: ModuleType, folder: Path, *options: str) -> str:
    done = CliRunner().invoke(table.main, ["--folder", str(folder), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_rows_run_once_and_the_report_has_what_they_found(table: ModuleType, tmp_path: Path) -> None:
    assert "1 of 1" in run(table, tmp_path)
    assert run(table, tmp_path) == ""
    row = json.loads((tmp_path / "results" / "run.json").read_text())
    assert row["right"][0]["bounds"]["one run"] < row["right"][0]["claim"] < row["tenth"][0]["bounds"]["one run"]
    shown = json.loads((tmp_path / "results" / "ideal.json").read_text())["right"]
    assert 2.5 < sorted(run["bounds"]["Gaussian fit"] for run in shown)[2] < 4
    report = (tmp_path / "REPORT.md").read_text()
    assert "| sample, all samples, 2 steps | 2 | 500 |" in report and "| 1 of 1 |" in report
    table.ROWS["ideal"] = table.ideal_row(4, 1000, 6)
    assert "Rows without a result: ideal." in (run(table, tmp_path, "--report"), (tmp_path / "REPORT.md").read_text())[1]
