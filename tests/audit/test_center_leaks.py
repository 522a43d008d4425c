"""Images from class centres of a run: found where the net is known, and no evidence where the client's projector is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.answer import SAMPLES, WORDS, answer
from fedpriv.audit.images.center_leaks import inverted_centers
from fedpriv.audit.judge.measures import MEASURES, metrics
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.images import CenterOutcome, RecoveryRate
from tests.audit.sample_findings import findings
from tests.simulation.small import play

ONE_OF_A_CLASS: dict[str, Any] = {
    "data.limit": None,
    "data.clients": 600,
    "data.partition.name": "classes",
    "train.participation": 0.02,
    "train.rounds": 2,
    "model.name": None,
    "model.projection": 128,
    "method.head_epochs": 10,
}


def inverted(run_dir: Path, most: int = 3, **settings: Any) -> list[CenterOutcome]:
    play(run_dir, "mpfedcon", **{**ONE_OF_A_CLASS, **settings})
    run = RunRecord(run_dir)
    found = [inverted_centers(run, round, client) for round, client in run.messages()[-most:]]
    assert all(one is None or [len(rows) for rows in one[1].values()] == [len(one[0].classes)] * 3 for one in found)
    return [one[0] for one in found if one is not None]


def explains(one: CenterOutcome) -> bool:
    """Whether the client's own images have the centres that it sent."""
    return one.distance_of_truth is not None and one.distance_of_truth < 1e-9


@pytest.mark.slow
def test_the_centre_of_one_sample_gives_it_away_where_the_net_is_known(tmp_path: Path) -> None:
    made = inverted(tmp_path / "run", **{"model.projection": None})
    single = [one for one in made if set(one.samples_per_class) == {1}]
    assert single and all(explains(one) for one in single)
    nearer = [one.mse_median < one.baseline_mse_median / 2 for one in single]
    assert sum(nearer) > len(nearer) / 2


@pytest.mark.slow
def test_the_running_means_that_the_client_uploaded_are_its_own(tmp_path: Path) -> None:
    """Centres are computed in evaluation mode, at the end of a local update that has moved them."""
    settings = {"data.clients": 300, "train.batch_size": 2, "train.min_batch": 2, "train.rounds": 1}
    settings["model.name"] = "resnet9_narrow"
    made = inverted(tmp_path / "run", 1, **settings, **{"model.projection": None})
    assert made and all(map(explains, made))


@pytest.mark.slow
def test_a_projector_that_the_client_has_not_trained_is_known(tmp_path: Path) -> None:
    made = inverted(tmp_path / "run", **{"method.head_epochs": 0, "train.rounds": 1, "method.mu": 0.0})
    assert made and all(map(explains, made))
    single = [one for one in made if set(one.samples_per_class) == {1}]
    nearer = [one.mse_median < one.baseline_mse_median for one in single]
    assert sum(nearer) > len(nearer) / 2


@pytest.mark.slow
def test_a_projector_that_the_attacker_does_not_know_is_told(tmp_path: Path) -> None:
    """The truth is no nearer to the centre than what was found; and the attack falls back to the mean of the class."""
    (last,) = inverted(tmp_path / "run", 1)
    assert last.distance_of_truth is not None and last.distance_of_truth > 0.1
    assert last.mse_median < 1.5 * last.baseline_mse_median


def test_images_from_centres_are_a_finding_and_none_is_no_evidence() -> None:
    whole = findings().runs[0]
    (center,) = whole.centers
    not_run = [one.only([outcome for outcome in one.outcomes if not outcome.status.was_run]) for one in whole.images]
    run = replace(whole, images=tuple(not_run), centers=())
    assert MEASURES["recovered"].value(run) is None
    one = replace(center, recovered=RecoveryRate(wilson(1, 2), "0.01"))
    two = replace(center, round=3, recovered=RecoveryRate(wilson(2, 2), "0.01"))
    found = answer(run := replace(run, centers=(one,)))
    assert found.words == WORDS[SAMPLES] and MEASURES["recovered"].value(run) == 0.5
    assert found.sentence == (
        "1 of 2 class centres in client 0's message of round 1 gave a training image away (MSE < 0.01, where guesses "
        "would recover none)."
    )
    both = replace(run, centers=(one, two))
    assert answer(both).sentence.startswith("2 of 2 class centres in client 0's message of round 3")
    assert metrics(both)["recovered_from_centers"] == 1.0
    nothing = replace(run, centers=(replace(one, recovered=RecoveryRate(wilson(0, 2), "0.01")),))
    assert "recovered_from_centers" not in metrics(nothing), "a failure is no evidence"
