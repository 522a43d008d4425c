"""Which runs ``fedpriv compare`` averages, and on which data they were evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import make_run

from fedpriv.api.comparison.comparing import compare
from tests.notes import noted
from tests.tracking.test_tracking_cli import call, configured


def drawn(tmp_path: Path, name: str, seed: int, partition: int, accuracy: float, **changes: Any) -> Path:
    """A run whose clients got their samples by a seed of their own."""
    folder = configured(make_run(tmp_path, name, seed=seed, **changes), **{"data.partition": {"name": "iid", "seed": partition}})
    for file, more in (("run.json", {"partition_hash": f"of seed {partition}"}), ("summary.json", {"accuracy": accuracy})):
        if (folder / file).exists():
            (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | more))
    return folder


def shown(tmp_path: Path, *runs: Path) -> str:
    result = call("compare", *runs, "--output", tmp_path / "out.png")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_another_partition_is_another_draw(tmp_path: Path) -> None:
    runs = [drawn(tmp_path, *of) for of in (("a", 0, 1, 1.0), ("b", 0, 2, 0.997), ("c", 1, 3, 0.997))]
    assert "mpfedcon: 99.8% ± 0.2% over 3 runs of 2 seeds and 3 partitions\n" in shown(tmp_path, *runs)
    table = compare(runs)
    assert not table.repeated.any() and set(table.label) == {"mpfedcon"}


def test_runs_that_repeat_another_are_left_out_and_counted(tmp_path: Path) -> None:
    runs = [drawn(tmp_path, *of) for of in (("a", 0, 1, 0.9), ("again", 0, 1, 0.9), ("b", 1, 2, 0.8))]
    runs.append(drawn(tmp_path, "part", 2, 3, 0.0, status="interrupted"))
    assert "mpfedcon: 85.0% ± 7.1% over 2 seeds (1 repeated run, 1 unfinished run left out)\n" in shown(tmp_path, *runs)
    assert "mpfedcon: no spread over seeds (1 repeated run left out)\n" in shown(tmp_path, *runs[:2])
    output = call("compare", *runs, "--output", tmp_path / "out.png", "--json").stdout.splitlines()[-1]
    assert json.loads(output)["groups"][0]["repeated"] == ["again"]
    table = compare(runs)
    kept = table[(table.status == "finished") & ~table.repeated]
    assert kept.groupby("label").accuracy.mean()["mpfedcon"] == pytest.approx(0.85)


def test_accuracies_on_validation_data_are_said_to_be(tmp_path: Path) -> None:
    first, other = (
        configured(make_run(tmp_path, name, seed=seed), **{"eval.split": "validation"}) for name, seed in (("a", 0), ("b", 1))
    )
    assert "scores are on the clients' validation data (eval.split)" in shown(tmp_path, first, other)
    tested = make_run(tmp_path, "c", seed=2)
    assert "validation data" not in shown(tmp_path, tested)
    mixed = call("compare", first, tested, "--output", tmp_path / "out.png")
    assert "scores on validation data (a) and on test data are not comparable" in mixed.stderr


def made_by(folder: Path, **facts: Any) -> Path:
    """The run with these facts."""
    (folder / "run.json").write_text(json.dumps(json.loads((folder / "run.json").read_text()) | facts))
    return folder


def test_runs_of_another_plug_in_have_another_label(tmp_path: Path) -> None:
    old = [made_by(drawn(tmp_path, f"old-{s}", s, 1, 0.1), plugins={"mine": "old"}, data_hash="d") for s in (0, 1)]
    new = [made_by(drawn(tmp_path, f"new-{s}", s, 1, 0.4), plugins={"mine": "new"}, data_hash="d") for s in (0, 1, 2)]
    table = compare([*old, *new])
    (first, second) = table.groupby("label").accuracy.mean().sort_values()
    assert (first, second) == (pytest.approx(0.1), pytest.approx(0.4)) and not table.repeated.any()
    assert all(label.startswith("mpfedcon, code ") for label in table.label)
    text = shown(tmp_path, *old, *new)
    assert "10.0% ± 0.0% over 2 seeds" in text and "40.0% ± 0.0% over 3 seeds" in text
    went_on = made_by(drawn(tmp_path, "both", 2, 1, 0.2), plugins={"mine": "old"}, continued=[{"plugins": {"mine": "new"}}])
    assert len(set(compare([old[0], went_on]).label)) == 2, "a run that another version of the plug-in continued"


def test_runs_on_samples_that_were_corrected_have_another_label(tmp_path: Path) -> None:
    runs = [made_by(drawn(tmp_path, name, seed, 1, 0.5), data_hash=name * 9) for name, seed in (("a", 0), ("b", 1))]
    assert list(compare(runs).label) == ["mpfedcon, data hash aaaaaaaa", "mpfedcon, data hash bbbbbbbb"]


def test_contradictory_runs_have_no_mean(tmp_path: Path) -> None:
    runs = [drawn(tmp_path, *of) for of in (("a", 0, 1, 0.9), ("later", 0, 1, 0.7), ("b", 1, 2, 0.8))]
    assert "mpfedcon: no mean, as" in (text := shown(tmp_path, *runs)) and "±" not in text
    result = call("compare", *runs, "--output", tmp_path / "out.png", "--json")
    assert "a and later have the same config and seed, and other results" in result.stderr
    (group,) = json.loads(result.stdout.splitlines()[-1])["groups"]
    assert group["accuracy_mean"] is None and group["accuracy_std"] is None
    with noted("a and later have the same config"):
        compare(runs)
