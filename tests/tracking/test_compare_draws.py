"""Over which runs ``fedpriv compare`` averages, and on which data they were scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import make_run

from fedpriv.api.comparing import compare
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
    found = call("compare", *runs, "--output", tmp_path / "out.png", "--json").stdout.splitlines()[-1]
    assert json.loads(found)["groups"][0]["repeated"] == ["again"]
    table = compare(runs)
    kept = table[(table.status == "finished") & ~table.repeated]
    assert kept.groupby("label").accuracy.mean()["mpfedcon"] == pytest.approx(0.85)


def test_accuracies_on_validation_data_are_said_to_be(tmp_path: Path) -> None:
    one, other = (
        configured(make_run(tmp_path, name, seed=seed), **{"eval.split": "validation"}) for name, seed in (("a", 0), ("b", 1))
    )
    assert "accuracies are on the clients' validation data (eval.split)" in shown(tmp_path, one, other)
    tested = make_run(tmp_path, "c", seed=2)
    assert "validation data" not in shown(tmp_path, tested)
    mixed = call("compare", one, tested, "--output", tmp_path / "out.png")
    assert "accuracies on validation data (a) and on test data are not comparable" in mixed.stderr
