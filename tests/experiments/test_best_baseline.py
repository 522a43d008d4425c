"""Claims against the best of several methods: who these are, and what a verdict on all of them needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_results import FIVE, first_claim, judged, write_result, write_yaml

from fedpriv.errors import UsageError
from fedpriv.experiments import read
from fedpriv.experiments.claims.rule import decide_against_each
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page import verdicts

THREE = {"a": {"method": "mpfedcon"}, "b1": {"method": "fedavg"}, "b2": {"method": "fedrep"}}
AGAINST_BEST = {"compare": ["a", "best_baseline"]}


def test_the_best_baseline_is_the_one_with_the_best_mean(tmp_path: Path) -> None:
    accuracies = {
        "local": [0.6, 0.65, 0.6],
        "fedavg": [0.2] * 3,
        "fedavg-ft": [0.1] * 3,
        "fedrep": [0.7] * 3,
        "mpfedcon": [0.8, 0.81, 0.82],
    }
    judgement = judged(tmp_path, {"compare": ["mpfedcon", "best_baseline"], "margin": 0.0165}, accuracies)
    assert judgement.opponent == "fedrep"
    assert judgement.values == pytest.approx({0: 0.1, 1: 0.11, 2: 0.12})
    assert judgement.mean == pytest.approx(0.11)
    assert judgement.verdict.word == "reproduced"


@pytest.mark.slow
def test_the_best_baseline_waits_for_all_methods(tmp_path: Path) -> None:
    accuracies = {"local": [0.5] * 3, "fedavg": [0.2] * 3, "fedavg-ft": [0.1] * 3, "fedrep": [0.7], "mpfedcon": [0.8] * 3}
    judgement = judged(tmp_path, {"compare": ["mpfedcon", "best_baseline"]}, accuracies)
    assert list(judgement.values) == [0]
    assert str(judgement.verdict) == "inconclusive (1 seed)"
    accuracies.pop("fedrep")
    empty = judged(tmp_path / "other", {"compare": ["mpfedcon", "best_baseline"]}, accuracies)
    assert (empty.mean, empty.opponent, str(empty.verdict)) == (None, None, "inconclusive (0 seeds)")


def test_the_best_baseline_is_a_run_that_has_the_metric(tmp_path: Path) -> None:
    """``local`` has no global model; where no other run has one, there is no baseline."""
    claim = {"id": "C", "statement": "s", "compare": ["fedrep", "best_baseline"], "metric": "global_accuracy"}
    runs = {name: FIVE[name] for name in ("local", "fedavg", "fedrep", "mpfedcon")}
    path = write_yaml(tmp_path, runs=runs, seeds=[0, 1, 2], claims=[claim])
    of_global = {"fedavg": 0.5, "fedrep": 0.6, "mpfedcon": 0.3}
    for seed in (0, 1, 2):
        write_result(path, "local", seed, {20: 0.9})
        for label, value in of_global.items():
            write_result(path, label, seed, {20: 0.9}, protocols={"global_test": value})
    judgement = first_claim(path)
    assert (judgement.opponent, judgement.baselines) == ("fedavg", ["fedavg", "mpfedcon"])
    assert judgement.values == pytest.approx(dict.fromkeys((0, 1, 2), 0.1)) and judgement.verdict.word == "reproduced"
    assert "fedrep − fedavg, the best other of 2" in verdicts.claims(Comparison.of(read(path)))[1]

    write_result(path, "fedavg", 1, {20: 0.9})
    judgement = first_claim(path)
    assert list(judgement.values) == [0, 2] and str(judgement.verdict).endswith("2 seeds; no global_accuracy on seed 1)")

    for seed in (0, 1, 2):
        for label in ("fedavg", "mpfedcon"):
            write_result(path, label, seed, {20: 0.9})
    judgement = first_claim(path)
    verdict = "inconclusive (0 seeds; no other method has global_accuracy)"
    assert (judgement.opponent, judgement.mean, str(judgement.verdict)) == (None, None, verdict)


def test_a_claim_against_the_best_holds_against_each(tmp_path: Path) -> None:
    """B1 has the highest mean and A beats it; against B2, whose seeds differ widely, nothing is shown."""
    accuracies = {"a": [0.9] * 3, "b1": [0.89, 0.885, 0.89], "b2": [0.95, 0.8, 0.905]}
    judgement = judged(tmp_path, AGAINST_BEST, accuracies, runs=THREE)
    assert judgement.opponent == "b1" and judgement.values == pytest.approx({0: 0.01, 1: 0.015, 2: 0.01})
    assert str(judgement.verdict) == "inconclusive (3 seeds; not shown against b2)"
    ahead = judged(tmp_path / "ahead", AGAINST_BEST, {**accuracies, "b2": [0.85, 0.84, 0.85]}, runs=THREE)
    assert str(ahead.verdict) == "reproduced (3 seeds)"


def test_to_fail_against_one_of_several_takes_more_evidence() -> None:
    """Mean -0.0507, sd 0.0190, three seeds: t is -4.62, which is enough for one other (4.30), not for two (6.21)."""
    behind = [-0.07, -0.05, -0.032]
    assert decide_against_each({"b": behind}, "b").word == "not reproduced"
    others = {"b": behind, "c": [0.1, 0.2, 0.3]}
    assert str(decide_against_each(others, "b")) == "inconclusive (3 seeds, wrong sign on every seed)"
    far = {"b": [-0.051, -0.05, -0.049], "c": [0.1, 0.2, 0.3]}
    assert str(decide_against_each(far, "b")) == "not reproduced (3 seeds, wrong sign on every seed)"
    assert str(decide_against_each(far, "c")) == "not reproduced (3 seeds; short of it against b)"
    same = {"b": [0.0, 0.0, 0.0], "c": [0.1, 0.2, 0.3]}
    assert str(decide_against_each(same, "b")) == "not reproduced (3 seeds, a difference of 0 on every seed)"


def test_two_seeds_against_the_best_decide_nothing() -> None:
    assert decide_against_each({"b": [-0.10, -0.12], "c": [0.1, 0.1]}, "b").word == "inconclusive"


def test_bytes_of_an_upload_are_compared_with_each(tmp_path: Path) -> None:
    claim = {"id": "C", "statement": "s", "metric": "upload_bytes", **AGAINST_BEST}
    path = write_yaml(tmp_path, runs=THREE, seeds=[0, 1], claims=[claim])
    for label, (first, second) in {"a": (800, 800), "b1": (400, 700), "b2": (900, 40)}.items():
        write_result(path, label, 0, {20: 0.5}, round_bytes=first)
        write_result(path, label, 1, {20: 0.5}, round_bytes=second)
    assert first_claim(path).opponent == "b1" and str(first_claim(path).verdict) == "not reproduced (counted)"


def test_an_ablation_is_no_opponent(tmp_path: Path) -> None:
    """The same method with other options or halves, though it has the highest mean; unless the claim names it."""
    more, half = {"method": {"name": "mpfedcon", "mu": 1}}, {"method": "mpfedcon", "aggregation": "simprox"}
    runs = {**THREE, "a-more": more, "a-half": half}
    accuracies = {"a": [0.9, 0.9, 0.91], "b1": [0.5] * 3, "b2": [0.6] * 3, "a-more": [0.99] * 3, "a-half": [0.99] * 3}
    judgement = judged(tmp_path, AGAINST_BEST, accuracies, runs=runs)
    assert (judgement.opponent, judgement.baselines) == ("b2", ["b1", "b2"]) and judgement.verdict.word == "reproduced"
    (tmp_path / "results" / "tiny" / "a-half-s0.json").unlink()
    assert len(first_claim(tmp_path / "tiny.yaml").values) == 3, "nor is it waited for"
    named = judged(tmp_path / "named", {**AGAINST_BEST, "baselines": ["b1", "a-more"]}, accuracies, runs=runs)
    assert (named.opponent, named.baselines) == ("a-more", ["b1", "a-more"])


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({**AGAINST_BEST, "baselines": ["b3"]}, "unknown baseline in claim C of .* 'b3'"),
        ({**AGAINST_BEST, "baselines": ["a", "b1"]}, "baselines are the runs that the first side is compared with"),
        ({**AGAINST_BEST, "baselines": []}, "baselines"),
        ({"compare": ["a", "b1"], "baselines": ["b2"]}, "baselines are the runs that the first side is compared with"),
    ],
)
def test_baselines_that_cannot_be(tmp_path: Path, claim: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(write_yaml(tmp_path, runs=THREE, claims=[{"id": "C", "statement": "s", **claim}]))


def test_the_interval_is_said_to_be_uncorrected(tmp_path: Path) -> None:
    judged(tmp_path, AGAINST_BEST, {"a": [0.9, 0.8, 0.9], "b1": [0.7] * 3, "b2": [0.6] * 3}, runs=THREE)
    (row,) = [line for line in verdicts.claims(Comparison.of(read(tmp_path / "tiny.yaml")))[1].splitlines() if "| C |" in line]
    assert "], not corrected for choosing the best of 2 |" in row
    judged(tmp_path / "one", {"compare": ["a", "b1"]}, {"a": [0.9, 0.8, 0.9], "b1": [0.7] * 3}, runs=THREE)
    assert "not corrected" not in verdicts.claims(Comparison.of(read(tmp_path / "one" / "tiny.yaml")))[1]


def test_several_that_are_ahead_show_what_none_shows_alone() -> None:
    """Against 12 others: six by t = 5.2 (one-sided p = 0.018) are not enough, nor one by 11.3 (0.0039); all of them are."""
    tie, ahead, far = [0.01, -0.01, 0.0], [-0.0188, -0.0351, -0.0302], [-0.054, -0.062, -0.047]
    others = {str(number): tie for number in range(12)}
    assert decide_against_each(others | {"0": far}, "0").word == "inconclusive"
    assert decide_against_each(others | {str(number): ahead for number in range(6)}, "0").word == "inconclusive"
    verdict = decide_against_each({str(number): far for number in range(12)}, "0")
    assert str(verdict) == "not reproduced (3 seeds, wrong sign on every seed)"
    verdict = decide_against_each(others | {str(number): far for number in range(5)}, "0")
    assert verdict.word == "not reproduced"
