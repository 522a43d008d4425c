"""``fedpriv attack`` on rows of a table: what it says as JSON, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

Fedpriv = Callable[..., Result]


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """A CSV with two numbers, of which one is missing now and then, and two categories."""
    random = np.random.default_rng(0)
    lines = ["age,dose,sex,ward,readmitted"]
    for _ in range(120):
        dose = "" if random.random() < 0.2 else f"{random.normal(3, 1):.2f}"
        ward = random.choice(["a", "b", "c", "d", "e", "f"])
        lines.append(f"{random.integers(20, 90)},{dose},{random.choice(['f', 'm'])},{ward},{random.choice(['no', 'yes'])}")
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def attacked(fedpriv: Fedpriv, *arguments: Any) -> dict[str, Any]:
    result = fedpriv("attack", "closed-form", *arguments, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.slow
def test_rows_of_a_csv_are_recovered(fedpriv: Fedpriv, patients: Path) -> None:
    answer = attacked(fedpriv, "--dataset", patients, "--set", "data.label=readmitted", "--n", 4)
    assert (answer["rows"], answer["columns"]) == (4, 4) and "patients.csv, one step each" in answer["target"]
    assert answer["cells"]["share"] == 1 and answer["whole_rows"]["successes"] == 4 and answer["labels"]["share"] == 1
    assert list(answer["by_column"]) == ["age", "dose", "sex", "ward"] and answer["no_evidence"] is None
    (guess,) = answer["baselines"].values()
    assert guess["cells"]["share"] < 0.8 and guess["labels"] is None
    assert [control["passed"] for control in answer["controls"]] == [True, True]


def test_a_batch_of_made_up_rows_is_shown_cell_by_cell(fedpriv: Fedpriv) -> None:
    result = fedpriv("attack", "closed-form", "--n", 1, "--batch-size", 4)
    assert result.exit_code == 0, result.output
    assert "36 of 36 (100%)" in result.stdout and "means and most frequent levels" in result.stdout
    assert "diagnosis" in result.stdout and "4 behind one message (at least 90% needed)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mask-layers", 1), "--mask-layers is for attacks on images and texts; closed-form is an attack on rows"),
        (("--images", "."), "--images is for attacks on images"),
        (("--output", "rows.png"), "--output is for attacks on images"),
        (("--set", "steps=3"), "has no option 'steps'"),
        (("--dataset", "digits"), "digits holds images"),
        (("--run", "nothing"), "nothing"),
    ],
)
def test_what_does_not_fit_is_refused(fedpriv: Fedpriv, arguments: tuple[Any, ...], words: str) -> None:
    result = fedpriv("attack", "closed-form", *arguments)
    assert result.exit_code == 2 and words in result.stderr, result.output
    assert len(result.stderr.splitlines()) <= 4
