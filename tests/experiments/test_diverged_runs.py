"""A run that a client's divergence ended is no missing run: it is stored, not tried again, and named in report and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_results import BASE, play, write_result, write_yaml

from fedpriv.cli import main
from fedpriv.errors import ClientDiverged, FedprivError
from fedpriv.experiments import plan, read, run, runner
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page import tables
from fedpriv.experiments.results import Divergence
from fedpriv.storage.run_folder import RunFolder

TINY = {
    **BASE,
    "train": {"rounds": 3, "participation": 0.5, "local_epochs": 2, "batch_size": 50},
    "eval": {"every": 1, "last": 2},
}
RUNS = {"calm": {"method": {"name": "fedavg"}}, "wild": {"method": {"name": "fedavg"}, "train": {"lr": 1e30}}}
CLAIM = {"id": "rate", "statement": "Ours: the lower rate is better.", "compare": ["calm", "wild"]}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of which one run has diverged, and is stored."""
    folder = tmp_path_factory.mktemp("diverged")
    file = write_yaml(folder / "paper", base=TINY, runs=RUNS, seeds=[0], claims=[CLAIM])
    with pytest.raises(ClientDiverged):
        play(read(file), folder / "runs", "wild")
    write_result(file, "calm", 0, {2: 0.5, 3: 0.5})
    assert [outcome.state for outcome in run(read(file), folder / "runs", workers=0)] == ["done", "diverged"]
    return file


def test_what_is_stored_says_who_when_and_by_what(played: Path) -> None:
    experiment = read(played)
    facts = RunFolder(experiment.run_dir(played.parent.parent / "runs", "wild", 0)).facts
    file = experiment.divergence_file("wild", 0)
    stored = Divergence.load(file)
    assert file.name == "wild-s0.diverged.json" and str(played.parent.parent) not in file.read_text()
    assert facts["status"] == "failed" and facts["diverged"] == {"client": stored.client, "round": stored.diverged_in}
    assert (stored.diverged_in, stored.config["train"]["lr"], stored.label, stored.seed) == (1, 1e30, "wild", 0)
    assert (stored.git_commit, stored.processor) == (facts["git_commit"], facts["processor"])


def test_it_is_not_tried_again_and_not_left(played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FEDPRIV", "raise SystemExit('fedpriv: it did start')")
    outcomes = run(read(played), tmp_path)
    assert [outcome.state for outcome in outcomes] == ["done", "diverged"] and "diverged in round 1" in (outcomes[1].error or "")
    assert plan.plan(read(played), tmp_path) == []
    done = CliRunner().invoke(main, ["experiment", "run", str(played), "--runs-dir", str(tmp_path)])
    assert done.exit_code == 0 and "2 runs: 1 done before, 1 diverged" in done.stdout
    assert "wild-s0: has no result: client" in done.stdout

    changed = write_yaml(
        tmp_path / "paper", base=TINY, runs={**RUNS, "wild": {"method": {"name": "fedavg"}, "train": {"lr": 1e29}}}
    )
    for file in (read(played).result_file("calm", 0), read(played).divergence_file("wild", 0)):
        (changed.parent / "results" / "tiny").mkdir(parents=True, exist_ok=True)
        (changed.parent / "results" / "tiny" / file.name).write_bytes(file.read_bytes())
    assert [outcome.state for outcome in run(read(changed), tmp_path, labels=["wild"])] == ["failed"], (
        "another config is another run"
    )


def test_the_same_run_in_another_experiment_counts(played: Path, tmp_path: Path) -> None:
    other = write_yaml(played.parent, "other", base=TINY, runs={"faster": RUNS["wild"]})
    (outcome,) = run(read(other), tmp_path, workers=0)
    assert (outcome.name, outcome.state) == ("faster-s0", "diverged")
    other.unlink()


def test_report_and_verdict_name_it(played: Path) -> None:
    comparison = Comparison.of(read(played))
    assert comparison.missing == [] and comparison.as_data()["diverged"]["wild-s0"]["round"] == 1
    assert comparison.judgements[0].verdict.remark == "0 seeds; diverged: wild on seed 0"
    CliRunner().invoke(main, ["experiment", "report", str(played)], catch_exceptions=False)
    text = (played.parent / "results" / "tiny.md").read_text()
    assert "**Without a result**, as a client's loss or weights became infinite or NaN: wild-s0 (client" in text
    assert "Unfinished" not in text and json.dumps(comparison.as_data())


def test_a_seed_that_diverged_is_named_in_its_column(played: Path, tmp_path: Path) -> None:
    file = write_yaml(tmp_path / "paper", base=TINY, runs=RUNS, seeds=[0, 1])
    experiment = read(file)
    for seed in (0, 1):
        write_result(file, "calm", seed, {2: 0.5, 3: 0.5})
    write_result(file, "wild", 1, {2: 0.25, 3: 0.25})
    experiment.divergence_file("wild", 0).write_bytes(read(played).divergence_file("wild", 0).read_bytes())
    table = tables.accuracy(Comparison.of(experiment))[1]
    assert "| wild | 25.00 | – | diverged, 25.00 |" in table


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    experiment = read(write_yaml(tmp_path / "paper", base=TINY, runs=RUNS))
    path = experiment.divergence_file("wild", 0)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(FedprivError, match=r"wild-s0\.diverged\.json does not say how a run diverged \(no 'client'\)"):
        Comparison.of(experiment)
