"""Runs are kept, collected, resumed, started; failures, interrupts and locks."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_results import BASE, play, write_result, write_yaml

from fedpriv.cli import main
from fedpriv.data.sources import suggestions, usual_model
from fedpriv.experiments import Result, read, run, runner
from fedpriv.experiments.results import rounded
from fedpriv.experiments.validity import difference
from fedpriv.methods.build import with_options
from fedpriv.simulation import run as simulation
from fedpriv.simulation.open_keys import resolve
from fedpriv.storage import provenance
from fedpriv.storage.run_folder import RunFolder
from tests.marks import quick_first

RUNS = {"fedavg": {"method": {"name": "fedavg"}}, "fedrep": {"method": {"name": "fedrep", "head_epochs": 1}}}
TINY = {
    **BASE,
    "train": {"rounds": 2, "participation": 0.5, "local_epochs": 1, "batch_size": 50},
    "eval": {"every": 1, "last": 2},
}


def stop_after_round_1(record: dict[str, Any]) -> None:
    if record["round"] == 1:
        raise KeyboardInterrupt


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the processes of the runner by a line of Python that is told what ``fedpriv`` would be told."""

    def replace(code: str) -> None:
        monkeypatch.setattr(runner, "_FEDPRIV", f"exec({code!r})")

    return replace


@pytest.mark.parametrize(("jobs", "share"), [(1, 8), (2, 4), (20, 4)])
def test_each_process_has_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Callable[[str], None], jobs: int, share: int
) -> None:
    monkeypatch.setattr(runner, "usable_cores", lambda: 8)
    in_process("import os, sys; sys.exit(f'fedpriv: may use {os.environ[\"FEDPRIV_CORES\"]} cores')")
    experiment = read(write_yaml(tmp_path / "paper", base=TINY, runs=RUNS))
    outcomes = run(experiment, tmp_path / "runs", jobs, allow_dirty=True, runs=[("fedavg", 0), ("fedrep", 0)])
    assert all(str(outcome.error).startswith(f"may use {share} cores (log ") for outcome in outcomes) and len(outcomes) == 2


@pytest.mark.slow
def test_collects_resumes_and_reports(tmp_path: Path) -> None:
    path, runs_dir = write_yaml(tmp_path / "paper", base=TINY, runs=RUNS), tmp_path / "runs"
    experiment = read(path)
    play(experiment, runs_dir, "fedavg", 0)
    with pytest.raises(KeyboardInterrupt):
        play(experiment, runs_dir, "fedrep", 0, stop_after_round_1)

    lines: list[str] = []
    first = run(experiment, runs_dir, workers=0, say=lines.append)
    assert [outcome.state for outcome in first] == ["collected", "left"]
    second = run(experiment, runs_dir, workers=2, say=lines.append)  # a real process, which takes its seconds to import torch
    assert [outcome.state for outcome in second] == ["done", "finished"]
    assert any(line.startswith("fedrep-s0: resumed after round 1, log ") for line in lines)

    folder = RunFolder(experiment.run_dir(runs_dir, "fedrep", 0))
    result, summary, records = Result.load(experiment.result_file("fedrep", 0)), folder.summary(), folder.records()
    assert summary is not None
    assert [record["round"] for record in records] == [0, 1, 2]
    assert result.summary["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-6)
    assert result.summary["accuracy"] == pytest.approx(sum(r["metrics"]["accuracy"] for r in records[1:]) / 2, abs=1e-6)
    assert result.summary["accuracy_per_client"] == pytest.approx(summary["accuracy_per_client"], abs=1e-6)
    assert result.summary["bytes_round_zero"] == records[0]["metrics"]["bytes_down"] > 0
    assert result.summary["bytes_per_upload"] == records[1]["metrics"]["bytes_up"] // 2  # two clients a round
    assert result.curve["round"] == [1, 2]
    assert result.curve["bytes_down"] == [record["metrics"]["total_bytes_down"] for record in records[1:]]
    assert result.config["method"]["head_epochs"] == 1 and result.config["train"]["rounds"] == 2
    assert result.partition_hash == folder.facts["partition_hash"] and result.processor == folder.facts["processor"]

    stored = experiment.result_file("fedrep", 0).read_text()
    assert str(tmp_path) not in stored and "run_dir" not in stored and len(stored) < 30_000
    assert all(len(str(number)) <= 9 for number in result.summary["accuracy_per_client"])  # 0. and 6 digits

    done = CliRunner().invoke(main, ["experiment", "run", str(path), "--runs-dir", str(runs_dir), "--json"])
    assert done.exit_code == 0, done.output
    assert {entry["state"] for entry in json.loads(done.stdout.splitlines()[-1])["runs"]} == {"done"}
    done = CliRunner().invoke(main, ["experiment", "report", str(path.parent)])
    assert done.exit_code == 0 and "Unfinished" not in (path.parent / "REPORT.md").read_text()


@pytest.mark.slow
def test_starts_what_is_new(tmp_path: Path, in_process: Callable[[str], None]) -> None:
    path = write_yaml(tmp_path, base=TINY, runs=RUNS, seeds=[0, 1])
    experiment = read(path)
    for seed in (0, 1):
        play(experiment, tmp_path / "played before", "fedavg", seed)
    in_process(
        "import sys, shutil, pathlib, yaml\n"
        "command, _, config, _, folder = sys.argv[1:]\n"
        "seed = yaml.safe_load(open(config))['seed']\n"
        f"played = pathlib.Path({str(tmp_path / 'played before')!r}) / 'experiments' / {tmp_path.name!r} / 'tiny'\n"
        "assert command == 'train'; shutil.copytree(played / f'fedavg-s{seed}', folder, dirs_exist_ok=True)\n"
    )
    outcomes = run(experiment, tmp_path / "runs", workers=2, labels=["fedavg"])
    assert sorted((outcome.name, outcome.state) for outcome in outcomes) == [("fedavg-s0", "finished"), ("fedavg-s1", "finished")]
    accuracies = {outcome.seed: outcome.accuracy for outcome in outcomes}
    assert accuracies == {seed: Result.load(experiment.result_file("fedavg", seed)).summary["accuracy"] for seed in (0, 1)}
    in_process("raise SystemExit('fedpriv: nothing was to be started')")
    assert [outcome.state for outcome in run(experiment, tmp_path / "runs", labels=["fedavg"])] == ["done", "done"]


def test_small_numbers_of_a_result_are_kept() -> None:
    shares, small = [0.123456789, 0.1 + 1e-9, 71.123456789, -1.23456789], [1e-7, 2.834567891e-7, 0.012345678, -3e-12, 0.0]
    assert rounded({"a": shares, "b": (1, "x", math.nan, -math.inf)}) == {
        "a": [0.123457, 0.1, 71.123457, -1.234568],
        "b": [1, "x", None, None],
    }
    assert rounded(small) == [1e-7, 2.83457e-7, 0.0123457, -3e-12, 0.0]
    assert rounded({"a": small}, small=False) == {"a": [0.0, 0.0, 0.012346, 0.0, 0.0]}, "as before"


@pytest.mark.slow
def test_small_numbers_of_a_config_are_kept(tmp_path: Path) -> None:
    runs = {"noisy": {"method": {"name": "fedavg"}, "wire": {"transforms": [{"name": "gaussian", "variance": 8.4e-7}]}}}
    experiment = read(write_yaml(tmp_path, base=TINY, runs=runs))
    play(experiment, tmp_path / "runs", "noisy", 0)
    assert [outcome.state for outcome in run(experiment, tmp_path / "runs", workers=0)] == ["collected"]
    assert [outcome.state for outcome in run(experiment, tmp_path / "elsewhere", workers=0)] == ["done"]


def test_a_failing_run_is_named_and_the_others_go_on(tmp_path: Path, in_process: Callable[[str], None]) -> None:
    path = write_yaml(tmp_path, runs=RUNS, seeds=[0, 1])
    write_result(path, "fedavg", 1, {19: 0.5, 20: 0.5})
    in_process("import sys; print('round 1'); sys.exit('fedpriv: client 3 diverged')")
    done = CliRunner().invoke(main, ["experiment", "run", str(path), "--runs-dir", str(tmp_path / "runs"), "--only", "fedavg"])
    assert done.exit_code == 1
    assert "fedavg-s0: FAILED: client 3 diverged (log " in done.stdout
    assert "2 runs: 1 done before, 1 failed" in done.stdout
    assert "1 of 2 runs failed: fedavg-s0" in done.stderr


def test_of_a_damaged_result_it_is_said_what_to_do(tmp_path: Path) -> None:
    experiment = read(write_yaml(tmp_path, runs=RUNS))
    stored = experiment.result_file("fedavg", 0)
    stored.parent.mkdir(parents=True)
    stored.write_text("{")
    (outcome,) = run(experiment, tmp_path / "runs", labels=["fedavg"], workers=0)
    assert outcome.error is not None and f"{stored} is damaged" in outcome.error
    assert outcome.error.endswith("; remove the file, and the result is stored again")


@pytest.mark.slow
def test_a_folder_with_another_config_is_refused(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, base=TINY, runs=RUNS)
    play(read(path), tmp_path / "runs", "fedavg", 0)
    experiment = read(write_yaml(tmp_path, base={**TINY, "train": {**TINY["train"], "lr": 0.5}}, runs=RUNS))
    (outcome,) = run(experiment, tmp_path / "runs", labels=["fedavg"])
    assert outcome.state == "failed" and outcome.error is not None
    assert "holds another run (train.lr is 0.01 there, 0.5 in the YAML)" in outcome.error
    assert not experiment.result_file("fedavg", 0).exists()


def test_a_result_of_another_net_is_not_that_of_the_usual_one(tmp_path: Path) -> None:
    stored = write_result(
        write_yaml(tmp_path, base={**BASE, "model": {"name": "lenet5"}}, runs=RUNS), "fedavg", 0, {19: 0.5, 20: 0.5}
    )
    config = Result.load(stored).config
    for base, other in (({**BASE, "model": {"name": "lenet5"}}, None), ({**BASE, "model": {}}, "model.name is lenet5 there, ")):
        change = difference(read(write_yaml(tmp_path, base=base, runs=RUNS)).config("fedavg", 0), config)
        assert change == other if other is None else (change or "").startswith(other)


@pytest.mark.slow
def test_what_a_run_reads_off_its_data_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the config that a process is given, and where its result is compared with the YAML; the table is beside the user."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 5},{'abc'[i % 3]},{i % 2}" for i in range(90)]
    Path("rows.csv").write_text("\n".join(["x,y,hospital,label", *rows]))
    base = {**TINY, "data": {"name": "rows.csv", "partition": {"name": "by_column", "column": "hospital"}}, "model": {}}
    base["train"] = {"rounds": 2, "local_epochs": 1}
    experiment = read(write_yaml(tmp_path, base=base, runs={"fedavg": RUNS["fedavg"]}))
    (outcome,) = run(experiment, tmp_path / "runs")
    assert outcome.state == "finished", outcome.error
    stored = RunFolder.open(experiment.run_dir(tmp_path / "runs", "fedavg", 0)).config()
    assert stored.data.clients == 3 and stored.data.name == str(tmp_path / "rows.csv")
    assert [outcome.state for outcome in run(experiment, tmp_path / "runs")] == ["done"]
    moved = stored.model_copy(update={"data": stored.data.model_copy(update={"name": "/of/another/machine/rows.csv"})})
    assert difference(experiment.config("fedavg", 0), moved) is None
    other = stored.model_copy(update={"data": stored.data.model_copy(update={"name": "/of/another/machine/lines.csv"})})
    assert (difference(experiment.config("fedavg", 0), other) or "").startswith("data.name is /of/another/machine/lines.csv")


def test_options_that_a_net_decides_are_no_difference(tmp_path: Path) -> None:
    own = read(write_yaml(tmp_path, base={**BASE, "model": {"name": "my_nets:Net"}}, runs=RUNS)).config("fedavg", 0)
    stored = own.model_copy(update={"model": own.model.model_copy(update={"projection": None})})
    assert difference(own, stored) is None
    texts = {**BASE, "data": {"name": "banking77"}, "model": {"encoder": "minilm"}}
    for method, read_off in (("fedavg", {"projection": None}), ("fedrep", {"adapter": 384})):
        asked = read(write_yaml(tmp_path, base=texts, runs=RUNS)).config(method, 0)
        for lr in (0.05, 0.01):
            model = asked.model.model_copy(update={"tune": "head", "name": "transformer", **read_off})
            stored = asked.model_copy(update={"model": model, "train": asked.train.model_copy(update={"lr": lr})})
            stored = resolve(stored, None, suggestions("banking77"))
            assert difference(asked, stored) == (None if lr == 0.05 else "train.lr is 0.01 there, 0.05 in the YAML")


@pytest.mark.parametrize(
    ("data", "method", "stored", "same"),
    [
        ({"clients": 100}, {"name": "fedavg"}, 0.1, True),
        ({"clients": 100}, {"name": "fedavg"}, 0.5, False),
        ({"clients": 100, "partition": {"name": "dirichlet", "alpha": 0.01}}, {"name": "fedavg"}, 10 / 43, True),
        ({"clients": 100, "partition": {"name": "dirichlet", "alpha": 0.01}}, {"name": "fedavg"}, 0.3, False),
        ({"clients": 100, "partition": {"name": "dirichlet", "min_samples": 1}}, {"name": "fedavg"}, 10 / 43, False),
        ({"clients": 20}, {"name": "fedavg-euc"}, 0.5, True),
        ({"name": "disaster_synthetic", "clients": 20}, {"name": "fedavg"}, 0.3, True),
        ({"name": "disaster_synthetic", "clients": 20}, {"name": "fedavg"}, 0.5, False),
    ],
)
def test_a_share_that_was_left_open_is_the_usual_one(
    tmp_path: Path, data: dict[str, Any], method: dict[str, Any], stored: float, same: bool
) -> None:
    """Of ten clients, among those that hold data; or the one that the data set suggests."""
    halves = {"aggregation": {"name": "euc"}} if method["name"].endswith("-euc") else {}
    base = {"data": {"name": "digits", **data}, "method": {"name": "fedavg"}, **halves}
    asked = read(write_yaml(tmp_path, base=base, runs={"one": {}})).config("one", 0)
    config = resolve(with_options(asked), usual_model(asked.data.name), suggestions(asked.data.name))
    older = config.model_copy(update={"train": config.train.model_copy(update={"participation": stored})})
    assert (difference(asked, older) is None) == same


@pytest.mark.slow
def test_an_audit_of_another_run_is_not_stored_with_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = read(write_yaml(tmp_path, base=TINY, runs=RUNS))
    play(experiment, tmp_path / "runs", "fedavg", 0)
    file, lines = experiment.result_file("fedavg", 0), list[str]()
    run(experiment, tmp_path / "runs", workers=0)
    monkeypatch.setattr(runner, "leakage", lambda folder: {"answer": "Nothing was found"})
    whole = Result.load(file)
    replace(whole, summary=whole.summary | {"accuracy_per_client": [1.0] * 4}).write(file)
    before = file.read_bytes()
    assert run(experiment, tmp_path / "runs", workers=0, labels=["fedavg"], say=lines.append)[0].state == "done"
    assert file.read_bytes() == before and any("is of another run than the stored result; left out" in line for line in lines)
    whole.write(file)
    assert run(experiment, tmp_path / "runs", workers=0, labels=["fedavg"])[0].state == "collected"
    assert Result.load(file).leakage == {"answer": "Nothing was found"}


@pytest.mark.slow
def test_a_run_that_another_commit_continued_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = read(write_yaml(tmp_path, base=TINY, runs=RUNS))
    first, second = "a" * 40, "b" * 40 + "-dirty"
    monkeypatch.setattr(provenance, "git_commit", lambda: first)
    with pytest.raises(KeyboardInterrupt):
        play(experiment, tmp_path / "runs", "fedavg", 0, stop_after_round_1)
    monkeypatch.setattr(provenance, "git_commit", lambda: second)
    path = experiment.run_dir(tmp_path / "runs", "fedavg", 0)
    simulation.resume(path, lambda federation, folder: None, lambda record: None, lambda text: None)
    facts = RunFolder.open(path).facts
    assert facts["git_commit"] == first and facts["continued"] == [{"after_round": 1, "git_commit": second}]
    run(experiment, tmp_path / "runs", workers=0, labels=["fedavg"])
    assert Result.load(experiment.result_file("fedavg", 0)).continued == facts["continued"]


@pytest.mark.slow
def test_a_result_has_the_other_models_that_were_tested(tmp_path: Path) -> None:
    experiment = read(write_yaml(tmp_path, base=TINY, runs={"feddyn": {"method": {"name": "feddyn", "test_mean": True}}}))
    play(experiment, tmp_path / "runs", "feddyn", 0)
    run(experiment, tmp_path / "runs", workers=0)
    records = RunFolder.open(experiment.run_dir(tmp_path / "runs", "feddyn", 0)).records()
    curve = Result.load(experiment.result_file("feddyn", 0)).curve["global_accuracy_mean"]
    assert curve == pytest.approx([record["metrics"]["global_accuracy_mean"] for record in records[1:]], abs=1e-6)


@pytest.mark.parametrize("check", [True, False])
def test_a_result_counts_with_and_without_checked_downloads(
    tmp_path: Path, in_process: Callable[[str], None], check: bool
) -> None:
    """Results that were stored when the check was on by default in simulations need not be made again."""
    stored = write_result(write_yaml(tmp_path, runs=RUNS), "fedavg", 0, {19: 0.5, 20: 0.5})
    assert "check_downloads" not in stored.read_text()
    values = json.loads(stored.read_text())
    values["config"]["wire"]["check_downloads"] = check
    stored.write_text(json.dumps(values))
    in_process("raise SystemExit('fedpriv: it did start')")
    outcomes = run(read(write_yaml(tmp_path, runs=RUNS)), tmp_path / "runs", labels=["fedavg"])
    assert [outcome.state for outcome in outcomes] == ["done"]


@pytest.mark.slow
def test_what_a_run_keeps_of_its_payloads_decides_nothing(tmp_path: Path, in_process: Callable[[str], None]) -> None:
    """Nor do results that were stored before runs kept any have to be made again."""
    stored = write_result(write_yaml(tmp_path, runs=RUNS), "fedavg", 0, {19: 0.5, 20: 0.5})
    assert "keep_payloads" not in stored.read_text()
    in_process("raise SystemExit('fedpriv: it did start')")
    for kept in ({}, {"wire": {"keep_payloads": "all"}}):
        experiment = read(write_yaml(tmp_path, base={**BASE, **kept}, runs=RUNS))
        assert [outcome.state for outcome in run(experiment, tmp_path / "runs", labels=["fedavg"])] == ["done"]
    base = {**TINY, "wire": {"keep_payloads": "none"}}
    play(read(write_yaml(tmp_path / "new", base=base, runs=RUNS)), tmp_path / "runs", "fedavg", 0)
    experiment = read(write_yaml(tmp_path / "new", base=TINY, runs=RUNS))
    assert [outcome.state for outcome in run(experiment, tmp_path / "runs", labels=["fedavg"])] == ["collected"]
    assert "payloads" not in experiment.result_file("fedavg", 0).read_text()


def test_a_result_of_another_config_is_not_done(tmp_path: Path, in_process: Callable[[str], None]) -> None:
    write_result(write_yaml(tmp_path, runs=RUNS), "fedavg", 0, {19: 0.5, 20: 0.5})
    experiment = read(write_yaml(tmp_path, base={**TINY, "train": {**TINY["train"], "rounds": 30}}, runs=RUNS))
    in_process("raise SystemExit('fedpriv: it did start')")
    (outcome,) = run(experiment, tmp_path / "runs", labels=["fedavg"])
    assert outcome.error is not None and outcome.error.startswith("it did start")


@pytest.mark.parametrize(("when", "last", "points"), quick_first([("final", 1, [4]), ("final", 2, [4]), ("last", 2, [3, 4])]))
def test_only_the_rounds_with_fine_tuning_show_the_method(tmp_path: Path, when: str, last: int, points: list[int]) -> None:
    base = {**TINY, "train": {**TINY["train"], "rounds": 4}, "eval": {"every": 1, "last": last}}
    method = {"name": "fedavg-ft", "ft_when": when, "ft_epochs": 1}
    experiment = read(write_yaml(tmp_path, base=base, runs={"ft": {"method": method}}))
    play(experiment, tmp_path / "runs", "ft", 0)
    run(experiment, tmp_path / "runs", workers=0)
    result = Result.load(experiment.result_file("ft", 0))
    assert [number for number, _ in result.tested()] == points and result.tested_at_end


def test_what_another_process_runs_is_left_alone(tmp_path: Path, in_process: Callable[[str], None]) -> None:
    in_process("raise SystemExit('fedpriv: it did start')")
    experiment = read(write_yaml(tmp_path, runs=RUNS))
    config = experiment.config("fedavg", 0)
    folder = RunFolder.create(config.model_copy(update={"run_dir": experiment.run_dir(tmp_path / "runs", "fedavg", 0)}), tmp_path)
    with folder.alone():
        (outcome,) = run(experiment, tmp_path / "runs", labels=["fedavg"])
    assert outcome.state == "failed" and outcome.error is not None and "is running the run in" in outcome.error


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_reaches_the_process_as_often_as_it_comes(
    tmp_path: Path, in_process: Callable[[str], None], times: int
) -> None:
    experiment = read(write_yaml(tmp_path, runs=RUNS))
    in_process(
        "import signal, sys, time\n"
        "count = 0\n"
        "def stop(*_):\n"
        "    global count; count += 1; print('interrupt', count, flush=True)\n"
        f"    if count == {times}: sys.exit(130)\n"
        "signal.signal(signal.SIGINT, stop); print('ready', flush=True)\n"
        "for _ in range(600): time.sleep(0.1)\n"
    )
    log = experiment.run_dir(tmp_path / "runs", "fedavg", 0) / "log.txt"

    def interrupt() -> None:
        for expected in ["ready", "interrupt 1"][:times]:
            for _ in range(300):
                if log.exists() and expected in log.read_text():
                    break
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # a suite started in the background by a shell ignores it
    thread = threading.Thread(target=interrupt)
    thread.start()
    outcomes = run(experiment, tmp_path / "runs")
    thread.join()
    assert [(outcome.label, outcome.state) for outcome in outcomes] == [("fedrep", "left"), ("fedavg", "interrupted")]
    assert log.read_text().count("interrupt") == times
    assert signal.getsignal(signal.SIGINT) is before


def test_the_data_folder_goes_by_environment(tmp_path: Path, in_process: Callable[[str], None]) -> None:
    experiment = read(write_yaml(tmp_path, base={**TINY, "data": {**TINY["data"], "dir": "elsewhere"}}, runs=RUNS))
    in_process(
        "import os, sys; sys.exit('fedpriv: ' + os.environ['FEDPRIV_DATA'] + ' ' + open(sys.argv[3]).read().replace('\\n', ' '))"
    )
    (outcome,) = run(experiment, tmp_path / "runs", labels=["fedavg"], data_dir=tmp_path / "here")
    assert outcome.error is not None
    assert outcome.error.startswith(str(tmp_path / "here")) and "dir: null" in outcome.error
