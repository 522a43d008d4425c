"""The table of attackers beside published figures: rows run and are stored, and the report is made of what is stored."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

FILE = Path(__file__).parents[2] / "experiments" / "attacks" / "table.py"


def loaded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, which finds those beside it."""
    monkeypatch.syspath_prepend(FILE.parent)
    spec = importlib.util.spec_from_file_location("attacks_table", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "attacks_table", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with two rows at a tiny budget."""
    module, rows = loaded(monkeypatch), importlib.import_module("table_rows")
    tiny = {"spear-64": rows.spear_row(64, (2, 70)), "dlg": rows.image_row("dlg", {"steps": 2, "restarts": 0}, images=1)}
    for each in (module, importlib.import_module("report")):
        monkeypatch.setattr(each, "ROWS", tiny)
    return module


def run(table: ModuleType, folder: Path, *options: str) -> str:
    done = CliRunner().invoke(table.main, ["--folder", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_rows_run_once_and_the_report_has_what_they_found(table: ModuleType, tmp_path: Path) -> None:
    assert "spear-64" in run(table, tmp_path)
    small, large = json.loads((tmp_path / "results/digits/spear-64.json").read_text())["cells"]
    assert small["recovered"] == small["n"] == 4
    assert large["recovered"] == 0 and large["n"] == 140 and len(large["refused"]) == 2
    row = json.loads((tmp_path / "results/photographs/dlg.json").read_text())
    assert row["config"]["options"] == {"steps": 2, "restarts": 0} and row["cells"][0]["recovered"] == 0
    assert row["batch_norm"] == "none" and row["cpu_seconds"] > 0
    report = (tmp_path / "REPORT.md").read_text()
    assert "4 of 4 (51–100 %)" in report and "0 of 1 (0–79 %)" in report and "arXiv:2405.15586" in report
    assert run(table, tmp_path) == ""
    table.ROWS["dlg"] = importlib.import_module("table_rows").image_row("dlg", {"steps": 3, "restarts": 0}, images=1)
    assert run(table, tmp_path).startswith("dlg: 0 of 1")


@pytest.mark.slow
def test_clients_are_attacked_by_honest_and_malicious_servers(table: ModuleType, tmp_path: Path) -> None:
    summed = {"attack": "imprint", "options": {"noise": 5.0}, "together": True}
    table.ROWS.clear()
    rows = importlib.import_module("table_rows")
    table.ROWS["fedavg"] = rows.clients_row({"method": "fedavg", "train.local_epochs": 1, "seed": 0}, summed, draws=2)
    run(table, tmp_path)
    honest, altered, noisy = json.loads((tmp_path / "results/digits/fedavg.json").read_text())["cells"]
    assert len(honest["attacks"]) == 3 and len(altered["attacks"]) == 6 and len(noisy["attacks"]) == 2
    assert noisy["n"] == 2 * honest["n"] and altered["recovered"] / altered["n"] > 2 * honest["recovered"] / honest["n"]
    assert {attack["refused"] for attack in altered["attacks"]} == {"rows"} and {
        attack["refused"] for attack in noisy["attacks"]
    } == {None}
    assert noisy["recovered"] < altered["recovered"] / 4
    report = (tmp_path / "REPORT.md").read_text()
    assert "| fedavg | 1 epoch | imprint, noise 5, on the mean |" in report and "| refuses: rows |" in report


def test_the_report_has_the_results_of_the_present_config(table: ModuleType, tmp_path: Path) -> None:
    path, cell = tmp_path / "results/photographs/dlg.json", {"net": "reference", "size": 32, "batch": 1, "steps": 1}
    stored = {"row": "dlg", "group": "honest", "images": "photographs", "config": table.ROWS["dlg"].config, "batch_norm": "none"}
    stored |= {"cells": [cell | {"n": 8, "recovered": 5, "mse": [1e-3, 1e-16], "refused": [], "cpu_seconds": 1.0}]}
    stored |= {"cpu_seconds": 1.0, "git_commit": "abc"}
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(stored))
    run(table, tmp_path, "--report")
    report = (tmp_path / "REPORT.md").read_text()
    assert "5 of 8 (31–86 %)" in report and "best over 100" in report and "Commits: abc" in report
    path.write_text(json.dumps(stored | {"config": {}}))
    run(table, tmp_path, "--report")
    assert "5 of 8" not in (tmp_path / "REPORT.md").read_text()


def test_the_committed_report_is_that_of_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch).write_report(FILE.parent / "results", tmp_path / "REPORT.md")
    assert (tmp_path / "REPORT.md").read_text() == (FILE.parent / "REPORT.md").read_text()


def test_an_unknown_row_is_refused(table: ModuleType) -> None:
    done = CliRunner().invoke(table.main, ["--only", "nothing"])
    assert done.exit_code == 2 and "'nothing' is not one of" in done.output


def test_running_statistics_that_are_in_no_message_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FILE.parent))
    section = importlib.import_module("running_statistics")
    about = {"samples": 20, "candidates": 500, "messages": 4, "cpu_seconds": 7.7}
    figures = {"refused": [], "auc": 0.9994, "named": 0.9875, "colour_error": 0.0062, "colour_baseline": 0.0213}
    rows = [
        {"setting": "one step", **about, **figures},
        {"setting": "FedBN", **about, "refused": ["no running statistics of BatchNorm were sent"]},
    ]
    text = section.render(rows)
    assert text.startswith("## Running statistics of BatchNorm\n")
    assert "| one step | 500 | not attacked | 99% | 0.999 | 0.006 | 0.021 | 7.7 |" in text
    assert "| FedBN | 500 | not attacked | none: no running statistics of BatchNorm were sent | – | – | – | 7.7 |" in text
