"""A run says where its model is no better than a constant answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy.stats import binomtest

from fedpriv.evaluation.chance import at_chance
from fedpriv.files import load_json
from tests.simulation.small import play

ALIKE = {"data.clients": 2, "data.partition.name": "iid", "train.participation": 1.0}


@pytest.mark.parametrize("samples", [10, 360, 5000])
def test_it_is_the_interval_of_scipy(samples: int) -> None:
    for right in range(0, samples + 1, max(1, samples // 97)):
        low = binomtest(right, samples).proportion_ci(method="wilson").low
        for guessed in (0.1, 0.35, 0.5):
            assert at_chance(right / samples, guessed, samples) == (low <= guessed), (right, guessed)


def test_a_model_that_has_not_learnt_says_so_and_one_that_has_does_not(tmp_path: Path) -> None:
    at_chance = {}
    for name, options in {"still": {"train.lr": 1e-9, "train.rounds": 1}, "learnt": {"train.rounds": 4, "train.lr": 0.3}}.items():
        run = play(tmp_path / name, "fedavg", **ALIKE, **{"train.local_epochs": 4, **options})
        at_chance[name] = load_json(run.folder.path / "summary.json")
    assert at_chance["still"]["at_chance"] and not at_chance["learnt"]["at_chance"] and at_chance["learnt"]["accuracy"] > 0.25
    assert "only_answer" not in at_chance["learnt"] and 0 < at_chance["learnt"]["chance"] < 0.2


def test_one_that_answers_the_same_names_the_class(tmp_path: Path) -> None:
    """A far too large step ends in one class for every sample."""
    run = play(tmp_path / "run", "fedavg", **{"train.lr": 50.0, "train.participation": 1.0, "train.clip_grad_norm": 1.0})
    confusion = load_json(run.folder.confusion_file)["confusion"]
    predicted = [sum(column) for column in zip(*confusion, strict=True)]
    summary = load_json(run.folder.path / "summary.json")
    answers = [number for number, count in enumerate(predicted) if count]
    assert len(answers) == 1 and summary["only_answer"] == str(answers[0]) and summary["at_chance"]
