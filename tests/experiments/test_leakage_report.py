"""The report of a leakage experiment: rates and verdicts against sums done by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_cells import write_cell, write_cells
from made_results import write_result, write_yaml

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.cli import main
from fedpriv.experiments import report
from fedpriv.experiments.leakage import CellResult, read_leakage
from fedpriv.experiments.leakage.comparison import LeakageComparison

KINDS = ("naive", "strong", "deep", "noisy", "labels")
CLAIMS = [
    {"id": "weak", "statement": "The naive attacker fails.", "cells": ["naive"], "below": 0.7},
    {"id": "all", "statement": "Every attacker fails.", "cells": ["naive", "strong"], "below": 0.2},
    {"id": "works", "statement": "It works.", "cells": ["naive", "strong"], "above": 0.3},
    {"id": "few", "statement": "It works nearly always.", "cells": ["strong"], "above": 0.9},
    {"id": "more", "statement": "Deeper masks, more error.", "compare": ["deep", "strong"]},
    {"id": "less", "statement": "The other way round.", "compare": ["strong", "deep"]},
    {"id": "equal", "statement": "Both worse than grey.", "compare": ["naive", "noisy"]},
]


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    """Four images; a naive attacker that drifts off, one that recovers all, one that is a little worse, noise, a label rule."""
    folder = tmp_path / "paper"
    cells = {kind: {"attacker": {"name": "head-free"}} for kind in KINDS}
    cells["naive"] = {"attacker": {"name": "random-head", "options": {"assumed": 1}}}
    cells["labels"] = {"attacker": {"name": "idlg-label"}}
    path = write_cells(
        folder,
        cells=cells | {"absent": {"attacker": {"name": "dlg"}}},
        tables=[{"title": "Grid", "rows": {"one": {"naive": "naive", "ours": "strong"}, "two": {"ours": "absent"}}}],
        costs={"file": "cost.yaml", "undefended": "fedavg"},
        protections={
            "a mask": {"cells": ["naive", "strong"], "run": "fedper"},
            "noise": {"cells": ["noisy", "labels"]},
            "nothing": {"cells": ["strong"], "run": "fedavg"},
        },
        claims=CLAIMS,
        recommendation=["Do not rely on a mask."],
        notes=["One picture in the paper."],
    )
    write_yaml(folder, "cost", runs={name: {"method": {"name": name}} for name in ("fedavg", "fedper")}, seeds=[0, 1])
    for seed, worse in ((0, 0.02), (1, 0.04)):
        write_result(folder / "cost.yaml", "fedavg", seed, {19: 0.6, 20: 0.8})
        write_result(folder / "cost.yaml", "fedper", seed, {19: 0.7 - worse, 20: 0.7 - worse})
    write_cell(path, "naive", [5.0, 60.0, 0.2, 0.3])
    write_cell(path, "strong", [1e-4, 2e-4, 3e-4, 4e-4])
    write_cell(path, "deep", [1e-3, 2.1e-3, 3e-3, 4.1e-3])
    write_cell(path, "noisy", [0.06, 0.07, 0.08, 0.09])
    write_cell(path, "labels", [], labels_right=3)
    return path


def test_verdicts_on_cells(yaml_file: Path) -> None:
    answers = {answer.claim.id: answer for answer in LeakageComparison.of(read_leakage(yaml_file)).answers}
    # Wilson, 95 %: 0 of 4 is [0, 0.490], 4 of 4 is [0.510, 1].
    words = {name: answer.verdict.word for name, answer in answers.items()}
    assert words == {
        "weak": "reproduced",
        "all": "not reproduced",
        "works": "reproduced",
        "few": "inconclusive",
        "more": "reproduced",
        "less": "not reproduced",
        "equal": "inconclusive",
    }
    assert answers["all"].best == "strong" and answers["weak"].rate == wilson(0, 4)
    assert answers["more"].difference == pytest.approx((0.9e-3 + 1.9e-3 + 2.7e-3 + 3.7e-3) / 4)
    # All of both are worse than a grey image, which scores 0.05: capped, they could not differ.
    assert str(answers["equal"].verdict) == "inconclusive (on all 4 images both are no better than grey)"


def test_a_claim_of_a_cell_that_was_not_run_is_inconclusive(yaml_file: Path) -> None:
    read_leakage(yaml_file).result_file("strong").unlink()
    answers = {answer.claim.id: str(answer.verdict) for answer in LeakageComparison.of(read_leakage(yaml_file)).answers}
    assert answers["all"] == answers["works"] == "inconclusive (strong not run)"


def test_attacks_that_could_not_be_mounted_are_named(yaml_file: Path) -> None:
    write_cell(yaml_file, "strong", [], inapplicable="it needs the head")
    answers = {answer.claim.id: str(answer.verdict) for answer in LeakageComparison.of(read_leakage(yaml_file)).answers}
    assert answers["all"] == "inconclusive (strong could not be mounted)", "0 of 4, so up to 49 %"
    assert answers["works"] == "inconclusive (strong could not be mounted)" and answers["weak"] == "reproduced"
    assert answers["few"] == "inconclusive (no attack could be mounted)"
    assert answers["more"] == answers["less"] == "inconclusive (strong could not be mounted)"
    assert "strong could not be mounted" in Path(report(yaml_file)["report"]).read_text()


def test_what_a_grey_image_scores_is_not_recovered(yaml_file: Path) -> None:
    write_cell(yaml_file, "noisy", [0.006, 0.004, 0.05, 0.0005], grey=[0.005, 0.005, 0.05, 0.05])
    result = CellResult.load(read_leakage(yaml_file).result_file("noisy"))
    assert result.recovered() == wilson(2, 4) and result.recovered(1e-3) == wilson(1, 4)


def test_costs_are_paired(yaml_file: Path) -> None:
    rows = {row.name: row for row in LeakageComparison.of(read_leakage(yaml_file)).protections}
    mask, nothing = rows["a mask"], rows["nothing"]
    assert mask.best is not None and mask.best[0] == "strong" and mask.cost is not None
    assert mask.cost.accuracy == pytest.approx(0.67) and mask.cost.change == pytest.approx(-0.03)
    # t with 1 degree of freedom, 12.706, times the standard error 0.01
    assert mask.cost.interval == pytest.approx((-0.03 - 0.12706, -0.03 + 0.12706), abs=1e-4)
    assert nothing.cost is not None and nothing.cost.change is None and rows["noise"].cost is None


@pytest.mark.slow
def test_the_section_of_a_leakage_experiment(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(yaml_file.parent.parent)
    data = report(Path("paper"))
    text = Path(data["report"]).read_text()
    assert text.index("## Tiny") < text.index("## Leaks")  # the cost runs and the cells, one report
    assert "| one | **0 of 4** [0%, 49%], MSE 2.6 | **4 of 4** [51%, 100%], MSE 0.00025 |\n| two |  | not run |" in text
    assert "| a mask | **4 of 4** [51%, 100%] by head-free | fedper | 67.0 % (2 seeds) | -3.0 [-15.7, +9.7] |" in text
    assert "| noise | **0 of 4** [0%, 49%] by head-free | – | not measured | – |" in text
    assert "| nothing | **4 of 4** [51%, 100%] by head-free | fedavg | 70.0 % (2 seeds) | (undefended) |" in text
    sentence = "* noise: not reconstructed by head-free within 7 steps and 1.5 CPU s an image (0 of 4, up to 49% not excluded)."
    assert sentence in text and text.count("not reconstructed by") == 1
    assert "5 of 6 cells are done. Missing: absent." in text
    assert "| labels | 1 of 1 linear masked | – | idlg-label | 4 | – | – | – | 3 | – | – | – | 12 to 12 | 1.50 |" in text
    assert "* Do not rely on a mask." in text and "* One picture in the paper." in text
    for name in ("leak.png", "leak-losses.png"):
        assert f"](results/{name})" in text and Path("paper/results", name).stat().st_size > 10_000
    assert str(yaml_file.parent.parent) not in text


def test_a_cell_of_another_experiment_does_not_count(yaml_file: Path) -> None:
    stale = read_leakage(yaml_file).result_file("strong")
    stale.write_text(stale.read_text().replace('"masked": 1', '"masked": 0'))
    comparison = LeakageComparison.of(read_leakage(yaml_file))
    assert comparison.missing == ["strong", "absent"]
    assert comparison.complaints == ["strong is left out: victim.masked is 0 there, 1 in the YAML"]


def test_a_report_before_any_cell_is_run(tmp_path: Path) -> None:
    path = write_cells(tmp_path, cells={"a": {"attacker": {"name": "dlg"}}}, claims=[{**CLAIMS[0], "cells": ["a"]}])
    data = report(path)
    assert data["experiments"][0]["plot"] == [] and "0 of 1 cells" in (tmp_path / "results/leak.md").read_text()
    assert data["experiments"][0]["claims"][0]["verdict"] == "inconclusive"


@pytest.mark.slow
def test_the_report_as_json(yaml_file: Path) -> None:
    done = CliRunner().invoke(main, ["experiment", "report", str(yaml_file), "--json"])
    assert done.exit_code == 0, done.output
    (section,) = json.loads(done.stdout.splitlines()[-1])["experiments"]
    assert [claim["verdict"] for claim in section["claims"]][:2] == ["reproduced", "not reproduced"]
    assert section["cells"]["strong"]["recovered"]["successes"] == 4
    assert "without a result: 1 of its runs; fedpriv experiment run" in done.stderr
