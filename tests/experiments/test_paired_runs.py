"""What one run saves until it has the final accuracy of another: who reaches it when, and claims about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_results import FIVE, first_claim, write_result, write_yaml

from fedpriv.experiments import Result, read, report
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.paired import bytes_saved, clients_better, reach, speed_up, until_as_good

RISING = {number: round(0.1 + number / 30, 6) for number in range(1, 21)}


def saving(folder: Path, claim: Mapping[str, Any], seeds: int = 3) -> Path:
    """An experiment with one claim about FedRep beside FedAvg."""
    claims = [{"id": "C7", "statement": "s", "compare": ["fedrep", "fedavg"], **claim}]
    return write_yaml(folder, runs=FIVE, claims=claims, seeds=list(range(seeds)))


def test_a_run_that_rises_to_its_end_reaches_its_own_accuracy(tmp_path: Path) -> None:
    """Tested every round, final accuracy over the last two: the mean of five never gets so far."""
    path = write_yaml(tmp_path, runs=FIVE)
    run = Result.load(write_result(path, "fedavg", 0, RISING))
    assert run.summary["averaged_rounds"] == 2
    assert reach(run, run.summary["accuracy"]) == (20, 20_000)
    longer = Result.load(write_result(path, "fedavg", 0, RISING))
    longer.summary.update(averaged_rounds=10, accuracy=sum(list(RISING.values())[-10:]) / 10)
    assert reach(longer, longer.summary["accuracy"]) == (18, 18_000), "of ten rounds, five are enough"
    assert "the last 2 rounds" in " ".join(Path(report(path)["report"]).read_text().split())


def test_rounding_keeps_no_run_from_its_own_accuracy(tmp_path: Path) -> None:
    """The mean of 0.333333 and 0.333334 is 0.3333335, stored as 0.333334."""
    run = Result.load(write_result(write_yaml(tmp_path, runs=FIVE), "fedavg", 0, {18: 0.1, 19: 0.333333, 20: 0.333334}))
    assert reach(run, 0.333334) == (20, 20_000) and reach(run, 0.333336) is None


def test_both_runs_are_smoothed_alike(tmp_path: Path) -> None:
    """A run whose own accuracy is that of one round does not reach another's by a single good round."""
    path = write_yaml(tmp_path, runs=FIVE)
    theirs = Result.load(write_result(path, "fedavg", 0, dict.fromkeys(range(1, 21), 0.5)))
    ours = Result.load(write_result(path, "fedrep", 0, {number: 0.9 if number == 3 else 0.2 for number in range(1, 21)}))
    theirs.summary["averaged_rounds"], ours.summary["averaged_rounds"] = 10, 1
    assert reach(ours, 0.5) == (3, 3000) and until_as_good(ours, theirs) is None


def test_ratios_are_averaged_by_their_logarithms(tmp_path: Path) -> None:
    """Twice, four times and eight times as fast: four times, and an interval that no ratio falls out of."""
    claim = {"id": "C6", "statement": "s", "compare": ["fedrep", "fedavg"], "metric": "speed_up", "above": 3.7}
    path = write_yaml(tmp_path, runs=FIVE, claims=[claim], seeds=[0, 1, 2])
    for seed, reached in ((0, 20), (1, 10), (2, 5)):
        write_result(path, "fedavg", seed, {5: 0.1, 10: 0.1, 20: 0.1, 40: 0.4})
        write_result(path, "fedrep", seed, {at: 0.5 if at >= reached else 0.1 for at in (5, 10, 20, 40)})
    judgement = first_claim(path)
    half = math.exp(4.302653 * math.log(2) / math.sqrt(3))
    assert judgement.values == {0: 2.0, 1: 4.0, 2: 8.0} and judgement.mean == pytest.approx(4.0)
    assert judgement.interval == pytest.approx((4 / half, 4 * half)) and judgement.verdict.word == "inconclusive"


@pytest.mark.parametrize(("metric", "values"), [("speed_up", {0: 2.0, 1: 0.5}), ("bytes_saved", {0: 0.4, 1: -1.4})])
def test_what_is_saved_until_the_other_s_final_accuracy(tmp_path: Path, metric: str, values: dict[int, float]) -> None:
    """FedAvg has its own 0.4 in round 10, after 10,000 bytes; round 0 costs FedRep 1,000 (seed 0) or 4,000."""
    claim = {"id": "C6", "statement": "s", "compare": ["fedrep", "fedavg"], "metric": metric, "above": 0.3}
    path = write_yaml(tmp_path, runs=FIVE, claims=[claim], seeds=[0, 1])
    for seed in (0, 1):
        write_result(path, "fedavg", seed, {5: 0.1, 10: 0.4, 15: 0.4, 20: 0.4})
    write_result(path, "fedrep", 0, {5: 0.5, 10: 0.5}, round_zero=1000)
    write_result(path, "fedrep", 1, {5: 0.1, 10: 0.2, 15: 0.3, 20: 0.3}, round_zero=4000)  # never: all that it took counts
    judgement = first_claim(path)
    assert judgement.values == pytest.approx(values) and judgement.verdict.word == "inconclusive"


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        ({"above": 0.3}, "inconclusive"),
        ({"above": 0.95}, "not reproduced"),
        ({"below": 0.3}, "inconclusive"),
        ({"below": 0.95}, "reproduced"),
    ],
)
def test_who_never_gets_there_saves_nothing(tmp_path: Path, claim: dict[str, float], word: str) -> None:
    """What FedRep sent in all its rounds is a tenth of FedAvg's, but it never reaches FedAvg's accuracy: that is only a bound."""
    path = saving(tmp_path, {"metric": "bytes_saved", **claim})
    for seed in (0, 1, 2):
        write_result(path, "fedavg", seed, {10: 0.5, 20: 0.8}, round_bytes=1000)
        write_result(path, "fedrep", seed, {10: 0.5, 20: 0.5}, round_bytes=100)
    judgement = first_claim(path)
    assert judgement.mean == pytest.approx(0.9) and judgement.verdict.word == word
    assert judgement.verdict.remark.endswith("on 3 seeds fedrep never reaches it; its saving is at most the value shown")


def test_a_speed_up_below_a_value_is_not_refuted_by_a_bound(tmp_path: Path) -> None:
    """FedAvg is there in round 15 of 20, FedRep never: its speed-up is at most 0.75, and may be below 0.5."""
    path = saving(tmp_path, {"metric": "speed_up", "below": 0.5})
    for seed in (0, 1, 2):
        write_result(path, "fedavg", seed, {10: 0.3, 15: 0.5, 20: 0.5})
        write_result(path, "fedrep", seed, {10: 0.3, 15: 0.3, 20: 0.3})
    judgement = first_claim(path)
    assert judgement.mean == pytest.approx(0.75)
    remark = "3 seeds, above the bound on every seed; on 3 seeds fedrep never reaches it; its speed-up is at most the value shown"
    assert str(judgement.verdict) == f"inconclusive ({remark})"


def test_a_run_tested_at_its_end_has_no_speed_up(tmp_path: Path) -> None:
    claim = {"metric": "speed_up", "above": 2, "compare": ["fedavg-ft", "fedavg"]}
    path = saving(tmp_path, claim)
    for seed in (0, 1, 2):
        write_result(path, "fedavg", seed, {10: 0.3, 15: 0.5, 20: 0.5})
        write_result(path, "fedavg-ft", seed, {10: 0.3, 15: 0.3, 20: 0.9})
    judgement = first_claim(path)
    remark = "no speed_up on seed 0, 1, 2: fedavg-ft is tested after its last rounds only"
    assert (judgement.mean, str(judgement.verdict)) == (None, f"inconclusive (0 seeds; {remark})")


def test_nothing_is_saved_where_nothing_is_sent(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs=FIVE)
    alone = Result.load(write_result(path, "local", 0, {10: 0.5, 20: 0.5}, round_bytes=0))
    ours = Result.load(write_result(path, "fedrep", 0, {10: 0.6, 20: 0.6}))
    assert bytes_saved(ours, alone) is None and speed_up(ours, alone) == 1


def test_clients_with_other_data_are_other_clients(tmp_path: Path) -> None:
    claim = {"id": "C10", "statement": "s", "compare": ["mpfedcon", "local"], "metric": "clients_better", "above": 0.7}
    path = write_yaml(tmp_path, runs=FIVE, seeds=[0, 1, 2], claims=[claim])
    for seed in (0, 1, 2):
        write_result(path, "local", seed, {20: 0.5}, per_client=[0.5] * 4)
        write_result(path, "mpfedcon", seed, {20: 0.6}, per_client=[0.6] * 4, partition="another")
    runs = [Result.load(read(path).result_file(label, 0)) for label in ("mpfedcon", "local")]
    assert clients_better(*runs) is None
    remark = "no clients_better on seed 0, 1, 2: the clients of mpfedcon and local have other data"
    assert str(first_claim(path).verdict) == f"inconclusive (0 seeds; {remark})"
    assert "gains over training alone" not in Path(report(path)["report"]).read_text()


def test_means_to_target_are_of_runs_that_reach_it_on_every_seed(tmp_path: Path) -> None:
    """FedRep is there in round 10 of one seed, and never on the other: the one ratio is not the mean."""
    path = write_yaml(tmp_path, runs={name: FIVE[name] for name in ("fedavg", "fedrep", "local")}, seeds=[0, 1])
    for seed in (0, 1):
        write_result(path, "fedavg", seed, {10: 0.3, 15: 0.5, 20: 0.5})
        write_result(path, "fedrep", seed, {10: 0.5 * (1 - seed), 15: 0.3, 20: 0.3})
    write_result(path, "local", 1, {10: 0.6, 20: 0.6}, round_bytes=0)
    rows = {row.label: row for row in Comparison.of(read(path)).to_target}
    assert rows["fedrep"].rounds == {0: 10, 1: None} and rows["fedrep"].bytes == {0: 10_000, 1: None}
    assert {getattr(rows["fedrep"], name) for name in ("mean_bytes", "speed_up", "rounds_saved", "bytes_saved")} == {None}
    assert rows["local"].speed_up == pytest.approx(1.5) and rows["local"].bytes_saved == 1
    text = Path(report(path)["report"]).read_text()
    assert "| method | rounds, seeds 0, 1 | speed-up in rounds |" in text
    assert "| fedrep | 10, not reached | – | – | – | – |" in text and "| local | –, 10 | 1.50× | 33.3 % | 0 | 100.0 % |" in text
