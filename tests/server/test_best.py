"""The best round on validation data, and runs that end when no better one comes."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fedpriv
from fedpriv.cli import main
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.files import load_tensors
from fedpriv.server.best import BestRound, best_of
from fedpriv.simulation import run
from tests.marks import quick_first
from tests.simulation.small import FEW_STEPS, SILENT, computed, config, play, resume

VALIDATED: dict[str, Any] = {"eval.split": "validation", "data.validation_fraction": 0.5}
IMPATIENT: dict[str, Any] = {**FEW_STEPS, **VALIDATED, "train.patience": 2, "train.rounds": 30, "train.lr": 1e-9}
"""Nothing is learnt, so that the first round stays the best one, and the third one is the last."""


def records(*values: float | None, metric: str = "accuracy") -> list[dict[str, Any]]:
    """Records of the rounds from 0 on; ``None``: no client was tested."""
    return [
        {
            "round": round,
            "metrics": {} if value is None else {metric: value},
            "per_client": {} if value is None else {metric: [value]},
        }
        for round, value in enumerate([None, *values])
    ]


@pytest.mark.parametrize(
    ("metric", "values", "best", "ends_after"),
    [
        ("accuracy", (0.1, 0.3, 0.2, 0.3, 0.4), 2, 4),
        ("accuracy", (0.1, None, 0.2, None, 0.1, None, 0.1), 3, 7),
        ("accuracy", (math.nan, 0.1, math.nan, math.nan), 2, 4),
        ("rmse", (5.0, 3.0, 4.0, 3.0, 1.0), 2, 4),
        ("accuracy", (0.1, 0.2, 0.3), 3, None),
    ],
    ids=["equal is not better", "rounds without an evaluation", "not defined", "an error", "ever better"],
)
def test_the_best_round_and_the_last(metric: str, values: tuple[float | None, ...], best: int, ends_after: int | None) -> None:
    settings = load_config(None, {"eval.metric": metric, "train.patience": 2, **VALIDATED})
    follower, ended = BestRound(settings), None
    for record in records(*values, metric=metric):
        follower.observe(record)
        if follower.is_out_of_patience:
            ended = record["round"]
            break
    assert ended == ends_after
    assert follower.round == best


def test_test_data_choose_nothing() -> None:
    assert best_of(records(0.1, 0.2), load_config(None, {})) is None
    with pytest.raises(UsageError, match=r"train\.patience would choose the last round on test data; eval\.split=validation"):
        load_config(None, {"train.patience": 2})


@pytest.mark.parametrize(
    ("method", "overrides", "reason"),
    [
        ("fedavg", {"objective.name": "simclr"}, "objective simclr has none"),
        ("fedavg-ft", {}, "tests its whole protocol from round 30 on only"),
        ("fedavg", {"eval.fresh_head": 1}, "after the last round, which train.patience leaves open"),
    ],
)
def test_what_does_not_go_with_patience(tmp_path: Path, method: str, overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        play(tmp_path / "run", method, **{**IMPATIENT, **overrides})
    assert not (tmp_path / "run").exists()


def test_a_run_ends_when_no_better_round_comes(tmp_path: Path) -> None:
    outcome = play(tmp_path / "run", "fedavg", **IMPATIENT)
    assert outcome.summary is not None
    assert (outcome.summary["rounds"], outcome.summary["ended_by"]) == (3, "patience")
    assert outcome.folder.facts["status"] == "finished"
    best = fedpriv.load(tmp_path / "run").best
    assert best is not None
    assert (best.round, best.metric) == (1, "accuracy")
    assert outcome.summary["best"]["round"] == 1
    assert outcome.summary["best"]["score"] == best.score == outcome.folder.records()[1]["metrics"]["accuracy"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("method", "stop"), quick_first(product(("fedavg", "mpfedcon"), (3, 1, 2))))
def test_a_resumed_run_has_the_same_best_round_and_the_same_last_one(tmp_path: Path, method: str, stop: int) -> None:
    play(tmp_path / "whole", method, **IMPATIENT)

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == stop:
            raise Killed

    with pytest.raises(Killed):
        run.start(config(method, **IMPATIENT, run_dir=str(tmp_path / "cut")), tmp_path, SILENT[0], kill, SILENT[2])
    resume(tmp_path / "cut")
    assert computed(tmp_path / "cut") == computed(tmp_path / "whole")


@pytest.mark.slow
def test_the_models_of_the_best_round_are_those_of_a_run_that_ends_there(tmp_path: Path) -> None:
    """The server's, and the client's with its private head; with a score that gets worse, so that the best is not the last."""
    common = {**FEW_STEPS, **VALIDATED, "train.lr": 0.5, "eval.metric": "accuracy"}
    outcome = play(tmp_path / "long", "fedper", **common, **{"train.rounds": 6})
    assert outcome.summary is not None
    best = outcome.summary["best"]["round"]
    assert best < 6, "choose a setting whose best round is not the last"
    play(tmp_path / "short", "fedper", **common, **{"train.rounds": best})
    long, short = fedpriv.load(tmp_path / "long"), fedpriv.load(tmp_path / "short")
    ended, kept = short.weights(), long.weights(best=True)
    assert kept.keys() == ended.keys()
    assert all(torch.equal(kept[name], ended[name]) for name in kept)
    assert load_tensors(tmp_path / "long/weights/best.safetensors").keys() == kept.keys()
    for client in range(6):
        there, here = (model.state_dict() for model in (long.model(client, best=True), short.model(client)))
        assert all(torch.equal(there[name], here[name]) for name in here)
    assert any(not torch.equal(long.weights()[name], kept[name]) for name in kept)


def test_without_validation_data_there_is_no_best_model(tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **FEW_STEPS, **{"train.rounds": 1})
    done = fedpriv.load(tmp_path / "run")
    assert done.best is None
    assert not (tmp_path / "run/weights/best.safetensors").exists()
    with pytest.raises(UsageError, match="no best model: its clients are scored on test data"):
        done.weights(best=True)
    result = CliRunner().invoke(main, ["export", str(tmp_path / "run"), "--best", "--output", str(tmp_path / "m.pt2")])
    assert result.exit_code == 2
    assert "has no best round: rounds are chosen on validation data alone" in result.output
