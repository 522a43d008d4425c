"""``fedpriv frontier`` on small runs: trained, searched, decided, confirmed, and continued."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version as version_of
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedpriv.audit.results.stored import from_json, to_json
from fedpriv.audit.run_audit import Audited, AuditOptions
from fedpriv.cli import main
from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError, UsageError
from fedpriv.experiments.runner import Outcome
from fedpriv.experiments.runner import run as run_all
from fedpriv.experiments.spec import Experiment
from fedpriv.frontier.grid import Defence, Point, point
from fedpriv.frontier.plan import Plan
from fedpriv.frontier.result import Frontier
from fedpriv.frontier.run import _check_earlier, _Trials
from fedpriv.frontier.search import Search
from fedpriv.simulation.run import start
from fedpriv.storage.run_folder import RunFolder
from tests.audit.conftest import controls_once, hardly_any_steps, one_iteration
from tests.audit.sample_findings import findings
from tests.frontier.made_trades import make_trade, read_target
from tests.simulation.small import FEW_STEPS, SILENT, play

__all__ = ["controls_once", "hardly_any_steps", "one_iteration"]

SMALL = {"data.limit": 40, "data.clients": 2, "train.rounds": 1, "train.local_epochs": 1, "data.partition.name": "iid"}
RECOVERED = ("--target", "recovered<=0.05")
VERSION = version_of("fedpriv")
QUICK = ("--messages", "1", "--label-shadows", "0", "--membership-shadows", "4", "--singles", "1", "--jobs", "1")


def fedpriv(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assigned(**more: Any) -> list[str]:
    values = {**SMALL, **more}
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def trials_of(folder: Path, *defences: str, target: str = "", jobs: int = 1) -> _Trials:
    """What tries FedAvg with these defences."""
    asked = [Defence.read(text) for text in defences]
    plan = Plan({}, "test", ["fedavg"], asked, read_target(target), AuditOptions(), jobs, "test")
    return _Trials(plan, folder, lambda text: None)


@pytest.mark.slow
@pytest.mark.usefixtures("hardly_any_steps")
def test_a_frontier_is_searched_confirmed_and_read_again(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dir = tmp_path / "out" / "runs"
    runs_dir.mkdir(parents=True)
    shutil.copy(empty_store, runs_dir / "mlflow.db")
    monkeypatch.setattr("fedpriv.frontier.search.STEPS", 1)
    monkeypatch.setattr("fedpriv.frontier.run.MOST_CONFIRMED", 1)
    trained = list[str]()

    def trained_here(runs: Experiment, runs_dir: Path, workers: int, **options: Any) -> list[Outcome]:
        """The runner's processes take seconds to import torch; it collects what was trained in this one."""
        for label, seed in runs.select((), ()):
            if not (run_dir := runs.run_dir(runs_dir, label, seed)).exists():
                trained.append(run_dir.name)
                start(runs.config(label, seed).model_copy(update={"run_dir": run_dir}), runs_dir, *SILENT)
        return run_all(runs, runs_dir, workers, **options)

    monkeypatch.setattr("fedpriv.frontier.run.run_all", trained_here)
    asked = ("frontier", *assigned(), "--methods", "fedavg", "--defenses", "gaussian:variance=1e-12..1e-3", *QUICK)
    asked += ("--target", "recovered<=0.5", "--output", tmp_path / "out", "--json")
    result = fedpriv(*asked)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout.splitlines()[-1])
    frontier = from_json(Frontier, data)
    (searched,) = frontier.searches
    assert 1e-12 < min(searched.search.held) <= 1e-3, "analytic recovers images at the least noise, and none at the greatest"
    assert len(searched.search.tried) == 3
    undefended = frontier.trade("fedavg-none")
    assert undefended is not None and not undefended.holds
    assert undefended.recovered is not None and undefended.recovered.share == 1
    assert frontier.chosen is None or frontier.chosen in {confirmation.label for confirmation in frontier.confirmations}
    assert not frontier.not_run
    for name in ("frontier.json", "frontier.md", "frontier.png", "report/audit.html", "parent.json"):
        assert (tmp_path / "out" / name).exists()
    assert len(trained) >= 2
    trained.clear()
    again = fedpriv(*asked)
    assert not trained and "shadow models" not in again.stderr, "all of it is done"
    assert json.loads(again.stdout.splitlines()[-1]) | {"seconds": 0} == data | {"seconds": 0}
    _hang_below_one_run(tmp_path / "out")


@pytest.mark.parametrize(
    ("holds", "chosen", "tried"),
    [
        (lambda strength, seed: strength >= 1e-4, 1e-4, [(1e-4, 1000)]),
        (lambda strength, seed: strength >= (1e-4 if seed == 0 else 1e-3), 1e-3, [(1e-4, 1000), (1e-3, 1001)]),
        (lambda strength, seed: seed == 0, None, [(1e-5, 1000), (1e-4, 1001), (1e-3, 1002)]),
        (lambda strength, seed: False, None, []),
    ],
)
def test_a_strength_that_fails_in_a_run_gives_way_to_the_next(
    holds: Callable[[float, int], bool],
    chosen: float | None,
    tried: list[tuple[float, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = trials_of(tmp_path, "gaussian:variance=1e-5..1e-2", target="recovered<=0.05,membership_auc<=0.6")

    def played(points: Sequence[Point], seed: int) -> None:
        trials._points |= {each.label: each for each in points}
        for each in points:
            strength = float(each.defence.rpartition("=")[2])
            unmet = "" if holds(strength, seed) else "membership_auc<=0.6"
            trials.trades[each.label, seed] = make_trade(each.label, 0.9 - strength, unmet=unmet, seed=seed)

    monkeypatch.setattr(trials, "play", played)
    monkeypatch.setattr(trials, "_search", lambda method, defence, bounds: Search((1e-5, 1e-4, 1e-3, 1e-2), ()))
    trials.searches()
    best, confirmations = trials.decide()
    expected = [(f"fedavg-gaussian-variance={strength:.3g}", seed) for strength, seed in tried]
    assert [(confirmation.label, confirmation.seed) for confirmation in confirmations] == expected
    assert (best and best.label) == (chosen and f"fedavg-gaussian-variance={chosen:.3g}")


def test_a_search_ends_at_a_model_that_is_at_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, played = trials_of(tmp_path, "gaussian:variance=1e-5..1e-2", target="recovered<=0.05"), list[str]()

    def play(points: Sequence[Point], seed: int) -> None:
        for each in points:
            played.append(each.label)
            trials.trades[each.label, seed] = make_trade(each.label, 0.1, at_chance=True)

    monkeypatch.setattr(trials, "play", play)
    monkeypatch.setattr(trials, "_search", lambda method, defence, bounds: Search((1e-5, 1e-4, 1e-3, 1e-2), ()))
    trials.searches()
    assert played == ["fedavg-gaussian-variance=1e-05"]


def test_a_range_of_a_defence_that_cannot_be_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not said that no strength of it holds the target."""

    def refused(run_dir: Path, config: RunConfig) -> None:
        raise UsageError("privacy.level sample: BatchNorm mixes the samples of a batch")

    monkeypatch.setattr("fedpriv.frontier.run.Replayed", refused)
    stored = SimpleNamespace(config=RunConfig)
    monkeypatch.setattr("fedpriv.frontier.run.RunFolder", SimpleNamespace(open=lambda run_dir: stored))
    trials = trials_of(tmp_path, "dp-sample:target_epsilon=1..8", target="recovered<=0.05")
    trials.trades["fedavg-none", 0] = make_trade("fedavg-none", recovered=1.0)
    assert trials.searches() == []
    assert trials.failed == {
        "fedavg, dp-sample:target_epsilon=1..8": "privacy.level sample: BatchNorm mixes the samples of a batch"
    }


def test_a_run_whose_folder_is_gone_is_trained_again(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text("{}")
    _check_earlier(point({}, "fedavg", Defence("none"), "test"), RunFolder(tmp_path / "run"), result)
    assert not result.exists()


def test_a_run_that_kept_other_messages_is_refused(tmp_path: Path) -> None:
    folder, result = RunFolder(tmp_path / "run"), tmp_path / "result.json"
    folder.path.mkdir()
    before, asked = (point({"wire": {"keep_payloads": kept}}, "fedavg", Defence("none"), "test") for kept in ("default", "all"))
    folder.config_file.write_text(before.config.to_yaml())
    result.write_text("{}")
    _check_earlier(before, folder, result)
    with pytest.raises(UsageError, match=r"was trained with wire\.keep_payloads default, not all"):
        _check_earlier(asked, folder, result)
    assert result.exists()


@pytest.mark.parametrize(("version", "run_id", "counts"), [(VERSION, "a", True), ("0.0.1", "a", False), (VERSION, "b", False)])
def test_an_audit_counts_if_this_version_made_it_of_that_run(version: str, run_id: str, counts: bool, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.path / "audit").mkdir(parents=True)
    folder.config_file.write_text("")
    (folder.path / "run.json").write_text('{"run_id": "a"}')
    run = replace(findings().runs[0], run_id=run_id)
    audit = replace(findings(), options=asdict(AuditOptions()), fedpriv=version, runs=(run,))
    (folder.path / "audit" / "audit.json").write_text(json.dumps(to_json(audit)))
    assert (trials_of(tmp_path)._kept(folder.path) is not None) == counts


def test_a_run_with_an_audit_of_an_older_form_is_audited_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trials_of(tmp_path)
    run_dir = play(trials.run_dir("fedavg-none", 0), "fedavg", **FEW_STEPS, **{"train.rounds": 1}).folder.path
    older = to_json(findings()) | {"format": 1}
    (run_dir / "audit").mkdir()
    (run_dir / "audit" / "audit.json").write_text(json.dumps(older))
    undefended = point({}, "fedavg", Defence("none"), "test")
    stored = replace(undefended, config=RunFolder.open(run_dir).config_as_data())
    monkeypatch.setattr("fedpriv.frontier.run.sync", lambda run_dir: None)

    def audit(run_dirs: Sequence[Path], *options: Any) -> Audited:
        run = replace(findings().runs[2], run_id=RunFolder.open(run_dirs[0]).facts["run_id"])
        return Audited(replace(findings(), options=asdict(AuditOptions()), fedpriv=VERSION, runs=(run,)), {})

    monkeypatch.setattr("fedpriv.frontier.run.report.audit", audit)
    trials.play([stored], 0)
    assert not trials.failed and trials.trades.keys() == {("fedavg-none", 0)}


def test_runs_of_other_data_are_not_compared(tmp_path: Path) -> None:
    trials, folders = trials_of(tmp_path), [tmp_path / name for name in "abc"]
    for folder, data in zip(folders, "xxy", strict=True):
        folder.mkdir()
        (folder / "config.yaml").write_text("")
        (folder / "run.json").write_text(json.dumps({"data_hash": data}))
    trials._check_data(folders[0])
    trials._check_data(folders[1])
    with pytest.raises(FedprivError, match="other data"):
        trials._check_data(folders[2])


def test_as_many_runs_are_audited_at_a_time_as_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audited, written = list[tuple[list[str], int]](), list[Path]()

    def audit(some: Sequence[Path], options: AuditOptions, command: str, workers: int, say: Callable[[str], object]) -> Audited:
        audited.append(([run_dir.name for run_dir in some], workers))
        return Audited(replace(findings(), runs=findings().runs[: len(some)]), {})

    monkeypatch.setattr("fedpriv.frontier.run.report.audit", audit)
    monkeypatch.setattr("fedpriv.frontier.run.report.write", lambda audited, folder: written.append(folder))
    monkeypatch.setattr("fedpriv.frontier.run.sync", lambda run_dir: None)
    runs = [tmp_path / name for name in "abc"]
    trials_of(tmp_path, jobs=2)._audit(runs)
    assert audited == [(["a", "b"], 2), (["c"], 2)]
    assert written == [run / "audit" for run in runs], "each has its own, should this be broken off"


def _hang_below_one_run(out: Path) -> None:
    from mlflow import MlflowClient

    parent = json.loads((out / "parent.json").read_text())
    client = MlflowClient(tracking_uri=parent["uri"])
    runs = client.search_runs([client.get_experiment_by_name("fedpriv").experiment_id])
    below = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent["run"]]
    assert len(below) == len(runs) - 1 >= 2
    assert {file.path for file in client.list_artifacts(parent["run"])} >= {"frontier.md", "frontier.png"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--defenses", "gaussian:variance=1e-7..1e-3"), "needs a --target"),
        (("--defenses", "gaussian:variance=1e-7..1e-3", "--target", "epsilon<=8"), "needs a --target"),
        (("--target", "recoverd<=0"), "unknown measure"),
        (("--target", "recovered>=0.05"), "--target recovered>=0.05: a target bounds what may leak from above, such as"),
        (("--defenses", "no-such-defence"), "no-such-defence"),
        (("--methods", "no-such-method"), "no-such-method"),
        (("--set", "wire.keep_payloads=none"), "nothing to attack"),
        (("--membership-shadows", "3"), "even number of at least 4"),
        (("--membership-shadows", "0", "--target", "membership_auc<=0.6"), "needs --membership-shadows"),
        (("--defenses", "gausian:variance=1e-7..1e-3", *RECOVERED), "gausian"),
        (("--defenses", "gaussian:varience=1e-7..1e-3", *RECOVERED), "varience"),
        (("--defenses", "prune:fraction=0.5..1.5", *RECOVERED), "fraction"),
        (("--defenses", "dp-sample:clip=0.1..1", *RECOVERED), "needs a noise multiplier"),
        (
            ("--defenses", "secure-aggregation+gaussian:variance=1e-7..1e-3", *RECOVERED),
            "list the values, such as secure-aggregation+gaussian:variance=1e-07",
        ),
        (("--set", "wire.secure_aggregation=true", "--defenses", "mask:last=1+gaussian:variance=1e-7..1e-3", *RECOVERED), "sum"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = fedpriv("frontier", *assigned(), *arguments, "--output", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert words in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "methods"),
    [
        ((), ["mpfedcon"]),
        (("--set", "method.mu=5"), ["mpfedcon"]),
        (("--set", "method=fedper"), ["fedper"]),
        (("--set", "aggregation=fedopt"), ["fedavg"]),
        (("--set", "privacy.target_epsilon=8"), ["mpfedcon"]),  # whose level comes with the defences
        (("--set", "method=fedper", "--methods", "fedavg,fedrep"), ["fedavg", "fedrep"]),
    ],
)
def test_the_method_is_the_config_s(arguments: Sequence[str], methods: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def searched(plan: Plan, output: Path, say: Callable[[str], None]) -> None:
        asked.append(list(plan.methods))
        raise UsageError("the test ends here")

    monkeypatch.setattr("fedpriv.frontier.run.frontier", searched)
    assert "the test ends here" in fedpriv("frontier", "--output", "out", *arguments).output
    assert asked == [methods]
