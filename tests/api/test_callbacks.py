"""Callbacks: what they see and when, how they end a run, and what happens when one of them fails."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fedpriv
from fedpriv import Callback, LiveRun, UsageError
from tests.marks import quick_first
from tests.simulation.small import FEW_STEPS, computed, settings

SMALL: dict[str, Any] = {**FEW_STEPS, "train.rounds": 3, "train.participation": 1.0}


def train(folder: Path, *callbacks: Any, method: str = "fedavg", **overrides: Any) -> fedpriv.Run:
    keys = settings(method, **{**SMALL, **overrides, "run_dir": str(folder)})
    return fedpriv.train(callbacks=callbacks, **keys)


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_start(self, training: LiveRun) -> None:
        self.lines.append(("start", training.round, training.rounds, training.run.status))

    def on_round_start(self, training: LiveRun, round: int, participants: Sequence[int]) -> None:
        self.lines.append(("round", training.round, round, list(participants)))

    def on_evaluation(
        self, training: LiveRun, round: int, metrics: Mapping[str, float], per_client: Mapping[str, Sequence[float | None]]
    ) -> None:
        assert metrics["accuracy"] == pytest.approx(sum(filter(None, per_client["accuracy"])) / len(per_client["accuracy"]))
        self.lines.append(("evaluation", training.round, round))

    def on_round_end(self, training: LiveRun, record: dict[str, Any]) -> None:
        assert training.run.records[-1] == record
        self.weights.append(training.weights())
        self.lines.append(("end of round", training.round, record["round"]))

    def on_end(self, training: LiveRun) -> None:
        self.lines.append(("end", training.round, training.run.status))


def test_the_five_moments(tmp_path: Path) -> None:
    diary = Diary()
    run = train(tmp_path / "run", diary, **{"eval.every": 2, "eval.last": 1})
    everyone = list(range(6))
    assert diary.lines == [
        ("start", 0, 3, "running"),
        *[("round", 0, 1, everyone), ("end of round", 1, 1)],
        *[("round", 1, 2, everyone), ("evaluation", 2, 2), ("end of round", 2, 2)],
        *[("round", 2, 3, everyone), ("evaluation", 3, 3), ("end of round", 3, 3)],
        ("end", 3, "finished"),
    ]
    final = run.weights()
    assert all(torch.equal(diary.weights[-1][name], final[name]) for name in final)
    assert any(not torch.equal(diary.weights[0][name], final[name]) for name in final)


def test_a_callback_changes_nothing(tmp_path: Path) -> None:
    class Meddling(Callback):
        def on_round_start(self, training: LiveRun, round: int, participants: Sequence[int]) -> None:
            torch.manual_seed(1)
            torch.rand(3)
            for tensor in training.weights().values():
                tensor.zero_()

    train(tmp_path / "plain")
    train(tmp_path / "watched", Meddling(), Diary())
    assert computed(tmp_path / "watched") == computed(tmp_path / "plain")


@pytest.mark.parametrize(
    ("moment", "every", "rounds"),
    quick_first(
        [("on_round_end", 3, 2), ("on_start", 1, 1), ("on_round_start", 1, 1), ("on_evaluation", 1, 1), ("on_round_end", 1, 1)]
    ),
)
def test_a_callback_ends_the_run_with_its_results(tmp_path: Path, moment: str, every: int, rounds: int) -> None:
    """After the present round if that is evaluated, else after the next."""
    stopping = type("Stopping", (Callback,), {moment: lambda self, training, *of: training.stop()})
    run = train(tmp_path / "run", stopping(), **{"eval.every": every, "eval.last": 1})
    assert (run.status, run.rounds) == ("finished", rounds)
    assert run.accuracy is not None
    assert run.summary is not None
    assert run.summary["ended_by"] == "callback"
    train(tmp_path / "short", **{"train.rounds": rounds})
    whole = fedpriv.load(tmp_path / "short").weights()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in run.weights().items())


@pytest.mark.parametrize("moment", quick_first(["on_round_start", "on_start", "on_evaluation", "on_round_end"]))
def test_an_exception_fails_the_run_which_can_be_resumed(tmp_path: Path, moment: str) -> None:
    class Mistake(Exception):
        pass

    def fail(self: Any, training: LiveRun, *of: object) -> None:
        if moment == "on_start" or training.round == 1:
            raise Mistake("of the user")

    with pytest.raises(Mistake) as caught:
        train(tmp_path / "run", type("Wrong", (Callback,), {moment: fail})())
    told = "".join(traceback.format_exception(caught.value))
    assert 'raise Mistake("of the user")' in told
    assert f"raised by the callback Wrong after {int(moment != 'on_start')} rounds, which are saved" in told
    assert f"fedpriv.resume('{tmp_path / 'run'}')" in told
    assert fedpriv.load(tmp_path / "run").status == "failed"
    diary = Diary()
    assert fedpriv.resume(tmp_path / "run", callbacks=[diary]).status == "finished"
    assert diary.lines[0][:2] == ("start", int(moment != "on_start"))
    train(tmp_path / "whole")
    assert computed(tmp_path / "run") == computed(tmp_path / "whole")


@pytest.mark.parametrize(
    ("callback", "reason"),
    [(Diary, r"Diary is a class; give an object, such as Diary\(\)"), (print, "is no fedpriv.Callback; inherit from that class")],
)
def test_what_is_no_callback(tmp_path: Path, callback: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        train(tmp_path / "run", callback)
    assert not (tmp_path / "run").exists()
