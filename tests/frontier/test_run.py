"""``fedpriv frontier`` on small runs: trained, searched, decided, confirmed, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedpriv.cli import main
from tests.audit.conftest import hardly_any_steps

__all__ = ["hardly_any_steps"]

SMALL = {"data.limit": 120, "data.clients": 4, "train.rounds": 2, "train.local_epochs": 1, "data.partition.name": "iid"}
QUICK = ("--messages", "1", "--label-shadows", "0", "--membership-shadows", "4", "--singles", "1", "--jobs", "2")


def fedpriv(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assigned(**more: Any) -> list[str]:
    values = {**SMALL, **more}
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


@pytest.mark.slow
@pytest.mark.usefixtures("hardly_any_steps")
def test_a_frontier_is_searched_confirmed_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.frontier.search.STEPS", 1)
    asked = ("frontier", *assigned(), "--methods", "fedavg", "--defenses", "gaussian:variance=1e-12..1e-3", *QUICK)
    asked += ("--target", "recovered<=0.5", "--output", tmp_path / "out", "--json")
    result = fedpriv(*asked)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    (strength,) = found["strengths"]
    assert 1e-12 < strength["found"] <= 1e-3, "analytic reads images at the least noise, and none at the greatest"
    assert len(strength["tried"]) == 3
    by_defence = {(one["defence"], one["seed"]): one for one in found["trades"]}
    assert not by_defence["none", 0]["holds"] and by_defence["none", 0]["recovered"] == 1
    tried = {one["label"] for one in found["confirmed"]}
    assert found["chosen"] is None or found["chosen"] in tried
    assert not found["not_run"]
    for name in ("frontier.json", "frontier.md", "frontier.png", "report/audit.html", "parent.json"):
        assert (tmp_path / "out" / name).exists()
    again = fedpriv(*asked)
    assert "started" not in again.stderr and "shadow turns" not in again.stderr, "all of it is done"
    told = json.loads(again.stdout.splitlines()[-1])
    assert {**told, "seconds": 0} == {**found, "seconds": 0}
    _hang_below_one_run(tmp_path / "out")


def _hang_below_one_run(out: Path) -> None:
    from mlflow import MlflowClient

    parent = json.loads((out / "parent.json").read_text())
    client = MlflowClient(tracking_uri=parent["uri"])
    runs = client.search_runs([client.get_experiment_by_name("fedpriv").experiment_id])
    below = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent["run"]]
    assert len(below) == len(runs) - 1 >= 2
    assert {file.path for file in client.list_artifacts(parent["run"])} >= {"frontier.md", "frontier.png"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--defenses", "gaussian:variance=1e-7..1e-3"), "needs a --target"),
        (("--defenses", "gaussian:variance=1e-7..1e-3", "--target", "epsilon<=8"), "needs a --target"),
        (("--target", "recoverd<=0"), "unknown measure"),
        (("--defenses", "no-such-defence"), "no-such-defence"),
        (("--methods", "no-such-method"), "no-such-method"),
        (("--set", "wire.keep_payloads=none"), "nothing to attack"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = fedpriv("frontier", *assigned(), *arguments, "--output", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert words in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()
