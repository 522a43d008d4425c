"""The verdict rule, branch by branch, and what each kind of claim computes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_results import FIVE, first_claim, judged, write_result, write_yaml

from fedpriv.config import load_config
from fedpriv.evaluation.intervals import mean_interval
from fedpriv.experiments import Result
from fedpriv.experiments.claims import decide, metric
from fedpriv.experiments.validity import difference


@pytest.mark.parametrize(
    ("differences", "margin", "word", "remark"),
    [
        # Three seeds or more: the interval decides.
        ([0.030, 0.031, 0.032], 0.0, "reproduced", "3 seeds"),
        ([0.030, 0.031, 0.032], 0.0165, "reproduced", "3 seeds"),
        ([0.001, 0.060, 0.030], 0.0, "inconclusive", "3 seeds"),  # the right sign on every seed, and 0 in the interval
        ([-0.030, -0.031, -0.032], 0.0, "not reproduced", "3 seeds, wrong sign on every seed"),
        ([-0.001, -0.060, -0.030], 0.0, "inconclusive", "3 seeds, wrong sign on every seed"),
        ([-0.010, 0.010, 0.005], 0.0, "inconclusive", "3 seeds"),
        # The sign holds; the size is another question.
        ([0.0050, 0.0051, 0.0052], 0.0165, "not reproduced", "3 seeds, the sign holds, the size does not"),
        ([0.010, 0.014, 0.018], 0.0165, "inconclusive", "3 seeds, the sign holds, the size does not"),
        ([0.012, 0.020, 0.022], 0.0165, "reproduced", "3 seeds"),  # the mean reaches it, 0 is outside [0.005, 0.031]
        ([0.010, 0.020, 0.025], 0.0165, "inconclusive", "3 seeds"),  # the mean reaches it, 0 is inside [-0.001, 0.037]
        # Two seeds never reproduce.
        ([0.030, 0.031], 0.0, "inconclusive", "2 seeds"),
        ([0.030, 0.031], 0.0165, "inconclusive", "2 seeds"),
        ([-0.10, -0.12], 0.0, "not reproduced", "2 seeds, wrong sign on every seed"),
        ([-0.001, -0.12], 0.0, "inconclusive", "2 seeds, wrong sign on every seed"),
        ([0.001, 0.0012], 0.0165, "not reproduced", "2 seeds, short of it on every seed"),
        ([0.001, 0.016], 0.0165, "inconclusive", "2 seeds, short of it on every seed"),
        ([-0.01, 0.01], 0.0, "inconclusive", "2 seeds"),
        # One seed says nothing, however large.
        ([-0.5], 0.0, "inconclusive", "1 seed"),
        ([0.5], 0.0, "inconclusive", "1 seed"),
        ([], 0.0, "inconclusive", "0 seeds"),
        # No spread at all: a tie is not a win.
        ([0.0, 0.0, 0.0], 0.0, "not reproduced", "3 seeds, a difference of 0 on every seed"),
        ([0.0, 0.0, 0.0], 0.0165, "not reproduced", "3 seeds, a difference of 0 on every seed"),
        ([0.0], 0.0, "inconclusive", "1 seed"),
        ([0.1, 0.1, 0.1], 0.0, "reproduced", "3 seeds"),
    ],
)
def test_the_rule(differences: list[float], margin: float, word: str, remark: str) -> None:
    verdict = decide(differences, margin)
    assert (verdict.word, verdict.remark) == (word, remark)


def test_the_interval_is_students() -> None:
    # mean 0.02, sd 0.01, t(0.975, 2) = 4.302653 from a printed table
    low, high = mean_interval([0.01, 0.02, 0.03])
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert (low, high) == pytest.approx((0.02 - half, 0.02 + half), abs=1e-8)


def test_share_of_clients_better_off(tmp_path: Path) -> None:
    path = write_yaml(
        tmp_path,
        runs=FIVE,
        claims=[{"id": "C10", "statement": "s", "compare": ["mpfedcon", "local"], "metric": "clients_better", "above": 0.7}],
    )
    write_result(path, "local", 0, {20: 0.5}, per_client=[0.5, 0.5, 0.5, 0.5])
    write_result(path, "mpfedcon", 0, {20: 0.5}, per_client=[0.6, 0.5, 0.4, 0.9])  # equal is not better
    judgement = first_claim(path)
    assert judgement.values == {0: 0.5}
    assert str(judgement.verdict) == "inconclusive (1 seed)"


def test_a_margin_for_which_there_is_no_room_is_not_tested(tmp_path: Path) -> None:
    claim: dict[str, object] = {"compare": ["mpfedcon", "local"], "margin": 0.05}
    full = {"local": [0.97, 0.96, 0.96], "mpfedcon": [0.9, 0.9, 0.9]}
    verdict = "cannot be tested: at most 4 % could be gained"
    assert str(judged(tmp_path / "full", claim, full).verdict) == f"inconclusive ({verdict})"
    stood_in = judged(tmp_path / "other data", {**claim, "stand_in": "X for Y"}, full)
    assert str(stood_in.verdict) == f"inconclusive ({verdict}; X for Y)"
    room = {**full, "local": [0.97, 0.96, 0.94]}
    assert judged(tmp_path / "room", claim, room).verdict.word == "not reproduced"
    best: dict[str, object] = {"compare": ["mpfedcon", "local"]}  # without a margin, any lead would do
    assert judged(tmp_path / "best", best, full).verdict.word == "not reproduced"
    top = {label: [1.0, 1.0, 1.0] for label in full}
    assert str(judged(tmp_path / "top", best, top).verdict) == "inconclusive (cannot be tested: at most 0 % could be gained)"


def test_a_number_at_its_bound_is_no_difference(tmp_path: Path) -> None:
    exact = judged(tmp_path, {"of": "mpfedcon", "above": 0.5}, {"local": [0.1] * 3, "mpfedcon": [0.5] * 3})
    assert str(exact.verdict) == "not reproduced (3 seeds, exactly the bound on every seed)"


def test_a_claim_of_few_gains_is_tested_where_no_client_can_gain(tmp_path: Path) -> None:
    claim = {"id": "C", "statement": "s", "compare": ["mpfedcon", "local"], "metric": "clients_better", "below": 0.5}
    path = write_yaml(tmp_path, runs=FIVE, claims=[claim], seeds=[0, 1, 2])
    for seed in (0, 1, 2):
        write_result(path, "local", seed, {20: 1.0}, per_client=[1.0, 1.0])
        write_result(path, "mpfedcon", seed, {20: 0.9}, per_client=[1.0, 0.8])
    assert str(first_claim(path).verdict) == "reproduced (3 seeds)"


def test_clients_at_the_top_cannot_gain(tmp_path: Path) -> None:
    claim = {"id": "C10", "statement": "s", "compare": ["mpfedcon", "local"], "metric": "clients_better", "above": 0.7}
    path = write_yaml(tmp_path, runs=FIVE, claims=[claim], seeds=[0, 1, 2])
    for seed in (0, 1, 2):
        write_result(path, "local", seed, {20: 0.9}, per_client=[1.0, 1.0, 0.5, 0.9])
        write_result(path, "mpfedcon", seed, {20: 0.9}, per_client=[1.0, 1.0, 0.6, 0.8])
    verdict = first_claim(path).verdict
    assert str(verdict) == "inconclusive (cannot be tested: at most 50 % of the clients could gain)"


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"of": "fedrep", "metric": "upload_bytes", "equals": 250, "within": 0}, "reproduced (counted)"),
        ({"of": "fedrep", "metric": "upload_bytes", "equals": 300, "within": 49}, "not reproduced (counted)"),
        ({"of": "mpfedcon", "metric": "upload_bytes", "equals": 250}, "inconclusive (0 seeds)"),
        ({"of": "fedrep", "above": 0.6}, "reproduced (3 seeds)"),
        ({"of": "fedrep", "above": 0.833}, "not reproduced (3 seeds, short of it on every seed)"),
        ({"of": "fedrep", "below": 0.8}, "reproduced (3 seeds)"),
        ({"of": "fedrep", "above": 0.6, "stand_in": "X for Y"}, "inconclusive (X for Y: the level is not comparable)"),
        ({"compare": ["fedrep", "local"]}, "reproduced (3 seeds)"),
        ({"compare": ["fedrep", "local"], "stand_in": "X for Y"}, "reproduced (3 seeds; X for Y)"),
        (  # the same beginning
            {"compare": ["fedrep", "local"], "metric": "early_accuracy"},
            "not reproduced (3 seeds, a difference of 0 on every seed)",
        ),
        (  # they have none
            {"compare": ["fedrep", "local"], "metric": "global_accuracy"},
            "inconclusive (0 seeds; no global_accuracy on seed 0, 1, 2)",
        ),
        (
            {"of": "fedrep", "metric": "upload_bytes", "equals": 250, "stand_in": "X for Y"},
            "inconclusive (X for Y: the level is not comparable)",
        ),
        ({"of": "fedrep", "below": 0.6}, "not reproduced (3 seeds, above the bound on every seed)"),
    ],
)
def test_kinds_of_claims(tmp_path: Path, claim: dict[str, object], verdict: str) -> None:
    judgement = judged(tmp_path, claim, {"local": [0.5, 0.51, 0.52], "fedrep": [0.7, 0.705, 0.71]})
    assert str(judgement.verdict) == verdict


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"of": "fedavg", "above": 200}, "reproduced (counted)"),
        ({"of": "fedavg", "above": 250}, "not reproduced (counted)"),
        ({"of": "fedavg", "below": 251}, "reproduced (counted)"),
        ({"of": "fedavg", "below": 250}, "not reproduced (counted)"),
        ({"compare": ["fedavg", "local"]}, "reproduced (counted)"),
        ({"compare": ["fedavg", "local"], "margin": 150}, "reproduced (counted)"),
        ({"compare": ["fedavg", "local"], "margin": 151}, "not reproduced (counted)"),
        ({"compare": ["fedavg", "local"], "stand_in": "X for Y"}, "reproduced (counted; X for Y)"),
        ({"compare": ["local", "fedavg"]}, "not reproduced (counted)"),
        ({"compare": ["fedavg", "fedrep"]}, "not reproduced (counted)"),  # as many
        ({"compare": ["fedavg", "mpfedcon"]}, "inconclusive (0 seeds)"),
    ],
)
def test_bytes_are_compared_as_they_stand(tmp_path: Path, claim: dict[str, object], verdict: str, seeds: int) -> None:
    """An upload of ``fedavg`` and ``fedrep`` has 250 bytes, one of ``local`` 100."""
    claims = [{"id": "C", "statement": "s", "metric": "upload_bytes", **claim}]
    path = write_yaml(tmp_path, runs=FIVE, seeds=[0, 1], claims=claims)
    for seed in range(seeds):
        for label, size in {"fedavg": 1000, "fedrep": 1000, "local": 400}.items():
            write_result(path, label, seed, {20: 0.5}, round_bytes=size)
    judgement = first_claim(path)
    assert str(judgement.verdict) == verdict and judgement.interval is None


def test_the_roughness_of_the_test_loss_by_hand(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0])
    result = Result.load(write_result(path, "fedavg", 0, {5: 0.1, 10: 0.2, 15: 0.3, 18: 0.3, 20: 0.3}))
    assert metric(result, "test_loss_roughness") is None, "a result of before has no such column"
    rough = replace(result, curve={**result.curve, "test_loss": [9.0, 7.0, 2.0, 1.0, 2.0]})
    assert metric(rough, "test_loss_roughness") == pytest.approx(2**0.5), "of the changes -1 and +1, not of those before round 10"
    steady = replace(result, curve={**result.curve, "test_loss": [9.0, 7.0, 2.0, 1.5, 1.0]})
    assert metric(steady, "test_loss_roughness") == 0
    gap = replace(result, curve={**result.curve, "test_loss": [9.0, 7.0, 2.0, None, 1.0]})
    assert metric(gap, "test_loss_roughness") is None


def test_noise_found_for_an_epsilon_is_no_difference() -> None:
    dp = {"privacy.level": "client", "privacy.clip": 1.0, "privacy.target_epsilon": 8.0}
    asked, stored = load_config(None, dp), load_config(None, {**dp, "privacy.noise": 1.7})
    assert difference(asked, stored) is None
    assert "privacy.noise is 1.7 there, 2.0 in the YAML" in str(
        difference(load_config(None, {**dp, "privacy.noise": 2.0}), stored)
    )


def test_options_of_a_text_encoder_are_no_difference() -> None:
    asked = load_config(None, {"data.name": "banking77", "model.encoder": "minilm", "model.projection": "none"})
    stored = load_config(
        None,
        {
            "data.name": "banking77",
            "data.partition.name": "class_subsets",
            "data.partition.classes_per_client": 20,
            "data.max_tokens": 64,
            "train.participation": 0.3,
            "train.lr": 0.05,
            "model.name": "transformer",
            "model.encoder": "minilm",
            "model.pooling": "mean",
            "model.tune": "head",
            "model.projection": "none",
        },
    )
    assert difference(asked, stored) is None
    other = stored.model_copy(update={"model": stored.model.model_copy(update={"encoder": "tiny"})})
    assert "model.encoder is tiny there, minilm in the YAML" in str(difference(asked, other))
