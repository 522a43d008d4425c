"""The numbers of the report against sums done by hand, and what it says of results that do not count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_results import write_result, write_yaml

from fedpriv.cli import main
from fedpriv.errors import UsageError
from fedpriv.experiments import Result, read, report, results, run
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.paired import reach

RUNS = {name: {"method": {"name": name}} for name in ("fedavg", "fedavg-ft", "fedrep")}
AVG = {5: 0.1, 10: 0.2, 19: 0.3, 20: 0.5}  # smoothed: 0.1, 0.2, 0.3, 0.4
AT_END = {"fresh_head": 0.8, "before_merge": 0.7, "global_before_merge": 0.2}
REP = {5: 0.3, 10: 0.5, 19: 0.6, 20: 0.8}


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    """Two seeds of three methods; the target is fedavg's final accuracy, 0.4 and 0.3."""
    path = write_yaml(
        tmp_path / "paper",
        runs=RUNS,
        seeds=[0, 1],
        claims=[{"id": "C3", "statement": "More than 1.65 points.", "compare": ["fedrep", "best_baseline"], "margin": 0.0165}],
        notes=["Fewer rounds."],
    )
    write_result(path, "fedavg", 0, AVG, worst_tenth=0.1)
    write_result(path, "fedavg", 1, {number: value - 0.1 for number, value in AVG.items()}, worst_tenth=0.3)
    for seed in (0, 1):
        write_result(path, "fedavg-ft", seed, {**AVG, 20: 0.9})
    write_result(path, "fedrep", 0, REP, round_bytes=800, round_zero=1600, protocols=AT_END)
    write_result(path, "fedrep", 1, {number: value - 0.1 for number, value in REP.items()}, round_bytes=800, round_zero=1600)
    return path


def test_methods(yaml_file: Path) -> None:
    rows = {row.label: row for row in Comparison.of(read(yaml_file)).methods}
    assert rows["fedavg"].accuracy == pytest.approx({0: 0.4, 1: 0.3})
    assert rows["fedavg"].mean == pytest.approx(0.35)
    assert rows["fedavg"].sd == pytest.approx(0.1 / 2**0.5)
    assert rows["fedavg"].worst_tenth == pytest.approx(0.2)
    assert rows["fedavg"].global_accuracy is None
    for name, value in AT_END.items():
        assert (getattr(rows["fedavg"], name), getattr(rows["fedrep"], name)) == (None, value)
    assert rows["fedavg-ft"].mean == pytest.approx(0.9)  # its last round alone
    assert (rows["fedrep"].bytes_up, rows["fedrep"].bytes_down, rows["fedrep"].bytes_per_round) == (8000, 9600, 800)


def test_rounds_and_bytes_to_target(yaml_file: Path) -> None:
    rows = {row.label: row for row in Comparison.of(read(yaml_file)).to_target}
    # fedavg reaches its own 0.4 (0.3) in the mean of rounds 19 and 20; fedrep's 0.5 (0.4) of round 10 is enough.
    assert rows["fedavg"].rounds == {0: 20, 1: 20} and rows["fedavg"].bytes == {0: 20_000, 1: 20_000}
    assert rows["fedrep"].rounds == {0: 10, 1: 10} and rows["fedrep"].bytes == {0: 9600, 1: 9600}
    assert rows["fedrep"].speed_up == pytest.approx(2.0)
    assert rows["fedrep"].bytes_saved == pytest.approx(1 - 9600 / 20_000)
    assert rows["fedavg-ft"].rounds == {0: None, 1: None} and rows["fedavg-ft"].tested_at_end


def test_rounds_saved_are_averaged_as_bytes_saved_are(tmp_path: Path) -> None:
    """Speed-ups of 1 and 4 save 0 and 75 % of the rounds: 37.5 % on average, and not 1 - 1/2.5."""
    path = write_yaml(tmp_path, runs=RUNS, seeds=[0, 1])
    for seed in (0, 1):
        write_result(path, "fedavg", seed, {5: 0.1, 10: 0.1, 15: 0.1, 20: 0.5})
    write_result(path, "fedrep", 0, {5: 0.1, 10: 0.1, 15: 0.1, 20: 0.6})
    write_result(path, "fedrep", 1, {5: 0.6, 10: 0.6, 15: 0.6, 20: 0.6})
    rows = {row.label: row for row in Comparison.of(read(path)).to_target}
    assert rows["fedrep"].rounds == {0: 20, 1: 5}
    assert (rows["fedrep"].speed_up, rows["fedrep"].rounds_saved) == (pytest.approx(2.5), pytest.approx(0.375))


def test_smoothing_is_over_rounds(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, runs=RUNS)
    result = Result.load(write_result(path, "fedrep", 0, {14: 0.9, 15: 0.2, 16: 0.2, 17: 0.2, 18: 0.5, 19: 0.5, 20: 0.6}))
    assert reach(result, 0.9, 5) == (14, 14_000)
    assert reach(result, 0.91, 5) is None
    later = Result.load(write_result(path, "fedrep", 0, {15: 0.2, 16: 0.2, 17: 0.2, 18: 0.5, 19: 0.5, 20: 0.6}))
    assert reach(later, 0.32, 5) == (19, 19_000)  # (0.2 + 0.2 + 0.2 + 0.5 + 0.5) / 5, the round 15 included
    assert reach(later, 0.4, 5) == (20, 20_000)  # (0.2 + 0.2 + 0.5 + 0.5 + 0.6) / 5, the round 15 not


@pytest.mark.slow
def test_markdown(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(yaml_file.parent.parent)
    data = report(Path("paper"))
    assert data["report"] == "paper/REPORT.md"
    text = Path("paper/REPORT.md").read_text()
    assert "| fedavg | 35.00 | 7.07 | 40.00, 30.00 | 20.00 | – | – | – | – | 0, 1 |" in text
    assert "| 80.00 | – | 70.00 | 20.00 | 0, 1 |" in text, "fedrep's heads and its models were tested in all ways on one seed"
    assert "| fedavg-ft ¹ | **90.00** | 0.00 | 90.00, 90.00 | 0.00 | – | – | – | – | 0, 1 |" in text
    assert "| fedrep | 20 | 8.0 kB | 9.6 kB | 1.6 kB | 800 bytes | 200 bytes | 10 |" in text
    assert "| fedrep | 10, 10 | 2.00× | 50.0 % | 9.6 kB | 52.0 % |" in text
    # fedrep 0.7 and 0.6, fedavg-ft 0.9 and 0.9
    assert "| C3 | More than 1.65 points. | **-25.00** fedrep − fedavg-ft, the best other of 2 | -20.00, -30.00 |" in text
    assert "not corrected for choosing the best of 2 | inconclusive (2 seeds, wrong sign on every seed) |" in text
    assert "* Fewer rounds." in text and "![accuracy by round and by bytes](results/tiny.png)" in text
    assert Path("paper/results/tiny.png").stat().st_size > 10_000
    assert str(yaml_file.parent.parent) not in text  # no paths of this machine
    assert "Unfinished" not in text and "Attention" not in text


@pytest.mark.slow
def test_what_merges_reported_is_kept_by_round_and_summed_up(yaml_file: Path) -> None:
    experiment = read(yaml_file)
    for seed in (0, 1):
        file = experiment.result_file("fedrep", seed)
        traces = {"simprox/tv": [0.1 + seed, None, 0.3 + seed], "l-dawa/d/encoder.fc1.weight": [1.0, 1.0, 1.0]}
        replace(Result.load(file), traces=traces).write(file)
        assert Result.load(file).traces == traces
    assert Result.load(experiment.result_file("fedavg", 0)).traces == {}, "a result from before there were any"
    report(yaml_file)
    text = (yaml_file.parent / "results" / "tiny.md").read_text()
    assert "| reported | fedrep |" in text and "| simprox/tv | 0.7 (0.1 to 1.3) |" in text
    assert "encoder.fc1" not in text


def test_the_records_numbers_of_merges_become_traces() -> None:
    rounds = [{}, {"simprox/tv": 0.1, "accuracy": 0.5, "probe/0.1": 0.2}, {"accuracy": 0.6}]
    records = [{"round": number, "metrics": metrics} for number, metrics in enumerate(rounds)]
    assert results._traces(records) == {"simprox/tv": [0.1, None]}


def test_the_command_says_what_does_not_count(yaml_file: Path) -> None:
    damaged = yaml_file.parent / "results/tiny/fedavg-s1.json"
    damaged.write_text("{")
    done = CliRunner().invoke(main, ["experiment", "report", str(yaml_file)])
    assert done.exit_code == 0 and f"fedavg-s1 is left out: {damaged} is damaged" in done.stdout


def test_without_claims_the_command_prints_no_empty_table(yaml_file: Path) -> None:
    text = yaml_file.read_text()
    assert "\nclaims:" in text
    yaml_file.write_text(text[: text.index("\nclaims:") + 1])
    done = CliRunner().invoke(main, ["experiment", "report", str(yaml_file)])
    assert done.exit_code == 0 and "verdict" not in done.stdout


def test_what_is_missing_or_does_not_count_is_named(yaml_file: Path) -> None:
    (yaml_file.parent / "results/tiny/fedrep-s1.json").unlink()
    write_result(yaml_file, "fedavg-ft", 1, AVG, partition="another")
    stale = yaml_file.parent / "results/tiny/fedavg-s0.json"
    stale.write_text(stale.read_text().replace('"rounds": 20, "participation"', '"rounds": 30, "participation"'))
    (yaml_file.parent / "results/tiny/fedavg-s1.json").write_text("{}")
    comparison = Comparison.of(read(yaml_file))
    assert comparison.missing == ["fedavg-s0", "fedavg-s1", "fedrep-s1"]
    assert any("fedavg-s0 is left out: train.rounds is 30 there, 20 in the YAML" in line for line in comparison.complaints)
    assert any("fedavg-s1 is left out" in line and "not a result" in line for line in comparison.complaints)
    assert not any("partitions" in line for line in comparison.complaints)  # no other run is left at seed 1
    write_result(yaml_file, "fedrep", 1, REP)
    assert any(
        "seed 1: fedrep has another partition than the others" in line for line in Comparison.of(read(yaml_file)).complaints
    )


def test_before_any_result(tmp_path: Path) -> None:
    path = write_yaml(
        tmp_path / "paper", runs=RUNS, claims=[{"id": "C", "statement": "s", "compare": ["fedrep", "best_baseline"]}]
    )
    data = report(path)
    text = (tmp_path / "paper/results/tiny.md").read_text()
    assert data["experiments"][0]["plot"] is None
    assert "## Not run yet" in text and "3 runs, 1 claim" in text and "verdict" not in text
    assert data["experiments"][0]["claims"][0]["verdict"].startswith("inconclusive")


@pytest.mark.slow
def test_command(yaml_file: Path) -> None:
    done = CliRunner().invoke(main, ["experiment", "report", str(yaml_file.parent), "--json"])
    assert done.exit_code == 0, done.output
    (section,) = json.loads(done.stdout.splitlines()[-1])["experiments"]
    assert section["claims"][0]["verdict"] == "inconclusive" and section["claims"][0]["opponent"] == "fedavg-ft"
    assert [row["label"] for row in section["methods"]] == ["fedavg", "fedavg-ft", "fedrep"]


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no experiment"):
        report(tmp_path)


def glance(folder: Path) -> list[str]:
    """The rows of the tables at the head of a folder's report."""
    text = Path(report(folder)["report"]).read_text()
    head = text[text.index("## At a glance") :].partition("<a id=")[0].partition("## Not run yet")[0]
    return [line for line in head.splitlines() if line.startswith("| ") and "---" not in line]


def test_a_folders_report_begins_with_every_verdict(tmp_path: Path) -> None:
    claims = [
        {"id": "C10", "statement": "Above FedAvg.", "compare": ["fedrep", "fedavg"], "stand_in": "digits for letters"},
        {"id": "C9", "statement": "Far above FedAvg.", "compare": ["fedrep", "fedavg"], "margin": 0.5},
        {"id": "extra", "statement": "Ours: below FedRep.", "compare": ["fedavg", "fedrep"]},
    ]
    runs, folder = {name: RUNS[name] for name in ("fedavg", "fedrep")}, tmp_path / "paper"
    first = write_yaml(folder, "later", runs=runs, seeds=[0, 7], claims=claims[:1], section=2, title="First")
    second = write_yaml(folder, "early", runs=runs, seeds=[0, 1, 2], claims=claims, section=10, title="Second")
    write_yaml(folder, "never", runs=runs, seeds=[5], claims=[claims[0] | {"id": "C1"}], title="Third")
    for seed in (0, 1, 2):
        write_result(second, "fedavg", seed, AVG)
        write_result(second, "fedrep", seed, REP)
    write_result(first, "fedavg", 0, AVG)
    write_result(first, "fedrep", 0, REP)
    assert glance(folder) == [
        "| experiment | done |",
        "| [First](#later) | 2 of 4 |",
        "| [Second](#early) | 6 of 6 |",
        "| Third | 0 of 2 |",
        "| claim | the paper | experiment | verdict |",
        "| C9 | Far above FedAvg. | [early](#early) | not reproduced (3 seeds, the sign holds, the size does not) |",
        "| C10 | Above FedAvg. | [later](#later) | inconclusive (1 seed; digits for letters) |",
        "| C10 | Above FedAvg. | [early](#early) | reproduced (3 seeds; digits for letters) |",
    ]
    text = (folder / "REPORT.md").read_text()
    assert '<a id="later"></a>\n\n## First' in text and text.index("## First") < text.index("## Second")


def test_a_run_in_two_experiments_has_one_result(tmp_path: Path) -> None:
    runs = {"baseline": RUNS["fedavg"], "fedrep": RUNS["fedrep"]}
    first = write_yaml(tmp_path / "paper", "first", runs={"fedavg": RUNS["fedavg"]}, seeds=[0, 1], target=None)
    second = write_yaml(tmp_path / "paper", "second", runs=runs, seeds=[0, 1])
    longer = write_yaml(tmp_path / "paper", "longer", runs={"fedavg": {"method": {"name": "fedavg"}, "train": {"rounds": 30}}})
    write_result(first, "fedavg", 0, AVG)
    assert "## Not run yet" in Path(report(second)["report"]).read_text() and not list(tmp_path.rglob("second.png"))
    write_result(second, "fedrep", 0, REP)
    comparison = Comparison.of(read(second))
    assert comparison.others == {"baseline-s0": "first/fedavg-s0"}
    assert comparison.results["baseline"][0].label == "baseline" and comparison.methods[0].accuracy == pytest.approx({0: 0.4})
    assert comparison.missing == ["baseline-s1", "fedrep-s1"]
    assert Comparison.of(read(longer)).others == {}, "another number of rounds"
    sentence = "Taken from other experiments of this folder, whose runs have the same config: baseline-s0 (first/fedavg-s0)."
    assert sentence in Path(report(second)["report"]).read_text()
    lines: list[str] = []
    done = run(read(second), tmp_path / "runs", workers=0, say=lines.append)
    assert [outcome.state for outcome in done if outcome.label == "baseline"] == ["done", "left"]
    assert lines == ["baseline-s0: is first/fedavg-s0, whose result counts"]

    write_result(second, "baseline", 0, REP)
    assert Comparison.of(read(second)).others == {}, "its own result counts first"
    stale = replace(Result.load(write_result(second, "baseline", 0, REP)), config={"train": {"rounds": "many"}})
    stale.write(read(second).result_file("baseline", 0))
    comparison = Comparison.of(read(second))
    assert comparison.others == {"baseline-s0": "first/fedavg-s0"} and len(comparison.complaints) == 1
    read(second).result_file("baseline", 0).unlink()
    (tmp_path / "paper" / "results" / "first" / "fedavg-s0.json").write_text('{"label": "fedavg"}')
    assert Comparison.of(read(second)).others == {}, "what is no result is passed over"


def test_an_experiment_whose_runs_are_all_anothers_is_reported(tmp_path: Path) -> None:
    runs = {name: RUNS[name] for name in ("fedavg", "fedrep")}
    claims = [{"id": "C1", "statement": "Above FedAvg.", "compare": ["fedrep", "fedavg"]}]
    whole = write_yaml(tmp_path / "paper", "whole", runs=runs, title="Whole")
    write_yaml(tmp_path / "paper", "all_of_it", runs=runs, claims=claims, title="All of it")
    write_result(whole, "fedavg", 0, AVG)
    write_result(whole, "fedrep", 0, REP)
    assert glance(tmp_path / "paper")[1:] == [
        "| [All of it](#all_of_it) | 2 of 2 |",
        "| [Whole](#whole) | 2 of 2 |",
        "| claim | the paper | experiment | verdict |",
        "| C1 | Above FedAvg. | [all_of_it](#all_of_it) | inconclusive (1 seed) |",
    ]
    assert "Not run yet" not in (tmp_path / "paper" / "REPORT.md").read_text()
