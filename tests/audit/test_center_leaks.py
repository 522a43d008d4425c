"""Images from class centres of a run: found where the net is known, and no evidence where the client's projector is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.audit.answer import SAMPLES, WORDS, answer
from fedpriv.audit.conditions import MEASURES
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.images.center_leaks import inverted_centers
from fedpriv.tracking.names import audit_values
from tests.audit.sample_findings import findings, rate
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


def inverted(run_dir: Path, most: int = 3, **settings: Any) -> list[dict[str, Any]]:
    play(run_dir, "mpfedcon", **{**ONE_OF_A_CLASS, **settings})
    run = Evidence(run_dir)
    found = [inverted_centers(run, round, client) for round, client in run.messages()[-most:]]
    return [one[0] for one in found if one is not None]


@pytest.mark.slow
def test_the_centre_of_one_sample_gives_it_away_where_the_net_is_known(tmp_path: Path) -> None:
    made = inverted(tmp_path / "run", **{"model.projection": None})
    single = [one for one in made if set(one["samples_per_class"]) == {1}]
    assert single and all(one["to_centers"]["truth"] < 1e-9 for one in single)
    assert all(len(one["which"]) == one["classes"] for one in made), "the classes of the pictures, in their order"
    nearer = [one["to_class_mean"]["mse_median"] < one["to_class_mean"]["baseline_mse_median"] / 2 for one in single]
    assert sum(nearer) > len(nearer) / 2


@pytest.mark.slow
def test_the_running_means_that_the_client_uploaded_are_its_own(tmp_path: Path) -> None:
    """Centres are computed in evaluation mode, at the end of a turn that has moved them."""
    settings = {"data.clients": 300, "train.batch_size": 2, "train.min_batch": 2, "train.rounds": 1}
    settings["model.name"] = "resnet9_narrow"
    made = inverted(tmp_path / "run", 1, **settings, **{"model.projection": None})
    assert made and all(one["to_centers"]["truth"] < 1e-9 for one in made)


@pytest.mark.slow
def test_a_projector_that_the_client_has_not_trained_is_known(tmp_path: Path) -> None:
    made = inverted(tmp_path / "run", **{"method.head_epochs": 0, "train.rounds": 1, "method.mu": 0.0})
    assert made and all(one["to_centers"]["truth"] < 1e-9 for one in made)
    single = [one for one in made if set(one["samples_per_class"]) == {1}]
    nearer = [one["to_class_mean"]["mse_median"] < one["to_class_mean"]["baseline_mse_median"] for one in single]
    assert sum(nearer) > len(nearer) / 2


@pytest.mark.slow
def test_a_projector_that_the_attacker_does_not_know_is_told(tmp_path: Path) -> None:
    """The truth is no nearer to the centre than what was found; and the attack falls back to the mean of the class."""
    (last,) = inverted(tmp_path / "run", 1)
    assert last["to_centers"]["truth"] > 0.1
    assert last["to_class_mean"]["mse_median"] < 1.5 * last["to_class_mean"]["baseline_mse_median"]


def test_images_from_centres_are_a_finding_and_none_is_no_evidence() -> None:
    run: dict[str, Any] = findings()["runs"][0]
    for attack in run["attacks"]:
        attack["attempts"] = [one for one in attack["attempts"] if one.get("inapplicable")]
    assert MEASURES["recovered"](run) is None
    run["centers"][0]["recovered"] = rate(1, 2) | {"limit": "0.01"}
    found = answer(run)
    assert found["words"] == WORDS[SAMPLES] and MEASURES["recovered"](run) == 0.5
    assert found["finding"]["sentence"] == (
        "1 of 2 class centres in client 0's message of round 1 gave a training image away (MSE < 0.01, where guesses would count "
        "for none)."
    )
    run["centers"].append(run["centers"][0] | {"round": 3, "recovered": rate(2, 2) | {"limit": "0.01"}})
    assert answer(run)["finding"]["sentence"].startswith("2 of 2 class centres in client 0's message of round 3")
    assert audit_values(run)["audit/recovered_from_centers"] == 1.0
    nothing = [one | {"recovered": one["recovered"] | {"successes": 0, "share": 0.0}} for one in run["centers"]]
    assert "audit/recovered_from_centers" not in audit_values(run | {"centers": nothing}), "a failure is no evidence"
    run["centers"].pop()
    del run["centers"][0]["copies"]  # audits of earlier versions
    assert answer(run)["words"] != WORDS[SAMPLES]
