"""``fedpriv sweep``, ``train --seeds`` and groups of runs: the grid, the choice, the tables."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mlflow import MlflowClient
from scipy import stats

import fedpriv
from fedpriv.api.comparison.groups import groups_between
from fedpriv.api.comparison.side_by_side import Comparison
from fedpriv.api.comparison.tables import as_latex, as_markdown
from fedpriv.api.grid import VALIDATION, Grid, check_cells, grid_of, seeds_of, values_of
from fedpriv.api.sweeping import _ranked, chosen_on
from fedpriv.cli import main
from fedpriv.errors import FedprivError, UsageError
from fedpriv.experiments import runner
from fedpriv.experiments.runner import Outcome
from fedpriv.experiments.spec import Experiment
from fedpriv.simulation.run import start
from fedpriv.tracking import read_records
from tests.api.test_gains import folder as made_run
from tests.simulation.small import SILENT, settings
from tests.tracking.fake_runs import make_run

ACCURACIES = {"fedavg": [[0.6, 0.7], [0.5, 0.7], [0.7, 0.8]], "fedprox": [[0.7, 0.7], [0.6, 0.9], [0.7, 0.9]]}
"""Of two clients, with seeds 0 to 2."""


def grid(**swept: list[Any]) -> Grid:
    return grid_of(None, {"method": "fedprox", "rounds": 3}, {key.replace("__", "."): of for key, of in swept.items()}, (0, 1))


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def ranked_by_brier(run: Path) -> Path:
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"eval": {"metric": "brier"}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_every_combination_is_a_cell_and_is_scored_on_validation_data() -> None:
    cells = grid(lr=[0.01, 0.1], method__mu=[0, 1]).cells
    assert [(cell.config.train.lr, cell.config.method.params["mu"]) for cell in cells] == [
        (0.01, 0),
        (0.01, 1),
        (0.1, 0),
        (0.1, 1),
    ]
    assert [cell.label for cell in cells][:2] == ["lr=0.01+mu=0", "lr=0.01+mu=1"]
    assert {(cell.config.eval.split, cell.config.data.validation_fraction) for cell in cells} == {("validation", VALIDATION)}
    given = grid_of({"data": {"validation_fraction": 0.3}, "eval": {"split": "test"}}, {}, {"lr": [1, 2]}, 1).cells[0].config
    assert (given.data.validation_fraction, given.eval.split) == (0.3, "validation"), "a run's own config.yaml says test"


def test_values_and_seeds_can_be_added_to_a_sweep_but_not_other_configs() -> None:
    name = grid(lr=[0.01, 0.1]).name
    assert grid(lr=[0.5, 0.1, 0.01]).name == name
    others = (grid(train__momentum=[0, 0.5]), grid_of(None, {"method": "fedprox", "rounds": 4}, {"lr": [0.01, 0.1]}, 2))
    assert name not in {other.name for other in others}


def test_names_of_files_are_safe_and_differ() -> None:
    cells = grid(model__name=["../a:b", "..\\a:b", "a:" + "b" * 300]).cells
    labels = [cell.label for cell in cells]
    assert len(set(labels)) == 3 and all(len(label) < 100 and not set("/\\ ") & set(label) for label in labels)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=0.01, 0.1,1e-3", [0.01, 0.1, 0.001]),
        ("data.features=[a,b],[c]", [["a", "b"], ["c"]]),
        ("data.label='a,b'", ["a,b"]),
        ("model.projection=null,64", [None, 64]),
    ],
)
def test_values_are_read_as_yaml_with_commas_between_them(text: str, values: list[Any]) -> None:
    assert values_of(text) == (text.partition("=")[0], values)


def test_seeds_are_a_number_or_a_list() -> None:
    assert seeds_of(3) == (0, 1, 2) and seeds_of([4, 0]) == (4, 0)
    for seeds in (0, [], [1, 1], [-1]):
        with pytest.raises(UsageError):
            seeds_of(seeds)


BAD = {
    "--set train.lr=": "a value is missing",
    "--set train.lr=0.1,": "a value is missing",
    "--set train.lr=0.1": "no key has several values",
    "--set train.lrr=0.1,1": "did you mean 'train.lr'",
    "--set train.lr=0.1,-1": "train.lr = -1: input should be greater than 0",
    "--set train.lr=1,1": "the value 1 is there twice",
    "--set train.lr=1,2 --set train.lr=3": "given twice",
    "--set lr=1,2 --lr 3": "given twice",
    "--set lr=1,2 --jobs 0": "'--jobs': 0",
    "--set lr=1,2 --seeds 1,1": "1 is there twice",
    "--set lr=1,2 --seeds x": "neither a number of seeds",
    "--set lr=1,2 --seed 1": "no single seed",
    "--set seed=1,2": "seeds are no choice",
    "--set lr=1,2 --set eval.split=test": "never on the test set",
    "--set lr=1,2 --set data.validation_fraction=0": "never on the test set",
    "--set data.clients=5,10": "cannot be swept",
    "--set lr=1,2 --set eval.metric=f2": "'f2' is no score",
    "--set lr=1,2 --method fedavgg": "did you mean 'fedavg'",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_refused_in_a_line(arguments: str, tmp_path: Path) -> None:
    result = call("sweep", *arguments.split(), "--runs-dir", tmp_path / "runs")
    assert result.exit_code == 2 and BAD[arguments] in result.stderr and len(result.stderr.splitlines()) <= 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_bad_input_is_refused_before_torch_is_loaded() -> None:
    code = f"""
import sys
from fedpriv.cli import main
for arguments in {[f"sweep {arguments}".split() for arguments in BAD]!r} + [["train", "--seeds", "2", "--seed", "1"]]:
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 2, arguments
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_groups_have_mean_deviation_and_the_paired_interval(tmp_path: Path) -> None:
    runs = [made_run(tmp_path, method, of[seed], seed) for method, of in ACCURACIES.items() for seed in range(3)]
    table = fedpriv.groups(runs).set_index("label")
    of_runs = {method: [sum(clients) / 2 for clients in seeds] for method, seeds in ACCURACIES.items()}
    expected = stats.ttest_rel(of_runs["fedavg"], of_runs["fedprox"]).confidence_interval(0.95)
    row = table.loc["fedavg"]
    assert (row.from_best, row.low, row.high) == pytest.approx((-0.25 / 3, expected.low, expected.high))
    assert row["mean"] == pytest.approx(4 / 6) and row["std"] == pytest.approx(stats.tstd(of_runs["fedavg"]))
    assert (row.over, row["count"], row.seeds) == ("runs", 3, 3) and table.from_best.isna().fedprox
    files = {kind: tmp_path / f"table.{kind}" for kind in ("csv", "latex", "markdown")}
    options = [part for kind, file in files.items() for part in (f"--{kind}", file)]
    result = call("compare", *runs, "--output", tmp_path / "out.png", *options)
    assert "fedavg against the best, fedprox: -8.3 points (95 %: " in result.stdout, result.output
    with files["csv"].open(encoding="utf-8") as file:
        (first, _) = csv.DictReader(file)
    assert (first["label"], first["seeds"]) == ("fedavg", "3") and float(first["low"]) == pytest.approx(expected.low)
    assert "| fedavg | 3 | 66.7 ± 7.6 | -8.3 (-22.7 to +6.0, over 3 runs) |" in files["markdown"].read_text(encoding="utf-8")
    assert r"fedavg & 3 & 66.7 $\pm$ 7.6 & $-$8.3 ($-$" in files["latex"].read_text(encoding="utf-8")


def ended_early(run: Path, rounds: int, by: str = "patience") -> Path:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    (run / "summary.json").write_text(json.dumps(summary | {"rounds": rounds, "ended_by": by}), encoding="utf-8")
    return run


def test_seeds_that_patience_ended_after_different_rounds_are_all_paired(tmp_path: Path) -> None:
    lengths = {"fedavg": (9, 14, 20), "fedprox": (9, 12, 7)}
    runs = [
        ended_early(made_run(tmp_path, method, of[seed], seed), lengths[method][seed])
        for method, of in ACCURACIES.items()
        for seed in range(3)
    ]
    row = fedpriv.groups(runs).set_index("label").loc["fedavg"]
    # Of the seeds' means: 0.65 - 0.7, 0.6 - 0.75, 0.75 - 0.8; deviation 0.0577, t(2) 4.303, so 0.0833 +- 0.1434.
    assert (row.from_best, row.low, row.high) == pytest.approx((-0.08333, -0.22676, 0.06009), abs=1e-4)
    assert (row.over, row["count"], row.pairs) == ("runs", 3, 3)
    shown = call("compare", *runs, "--output", tmp_path / "out.png")
    assert "different lengths" not in shown.stderr and "over 3 runs" in shown.stdout
    local = [ended_early(made_run(tmp_path, "local", [0.5, 0.6], seed), 5 + seed) for seed in range(3)]
    gain = fedpriv.gains([*runs, *local]).set_index("label").loc["fedavg"]
    assert (gain.difference, gain["count"], gain.unpaired) == (pytest.approx(0.7 - 0.55 - 0.1 / 3), 3, 0)


@pytest.mark.parametrize("lost", ["fedavg", "fedprox"])
def test_without_a_partner_of_each_run_there_is_no_difference(lost: str, tmp_path: Path) -> None:
    runs = [made_run(tmp_path, method, of[seed], seed) for method, of in ACCURACIES.items() for seed in range(3)]
    shutil.rmtree(next(run for run in runs if run.name == f"{lost}-0"))
    runs = [run for run in runs if run.exists()]
    avg, prox = groups_between(Comparison(runs))
    assert (prox.pairs, avg.pairs, avg.difference) == (None, 2, None) and {avg.counted, prox.counted} == {2, 3}
    counts = f"{avg.counted} and {prox.counted} runs"
    assert f"| – (2 of {avg.counted} paired) |" in as_markdown([avg, prox])
    shown = call("compare", *runs, "--output", tmp_path / "out.png").stdout
    assert f"fedavg against the best, fedprox: no difference, as only 2 of {counts} have the same seed and clients" in shown
    stopped = [ended_early(made_run(tmp_path / "code", "fedavg", [0.5, 0.5], 1), 3, by="callback"), runs[-2]]
    assert groups_between(Comparison(stopped))[0].difference is None, "where code ends a run, it chose the length"


def test_of_an_error_the_best_is_the_least_and_single_runs_have_an_interval_over_clients(tmp_path: Path) -> None:
    runs = [ranked_by_brier(made_run(tmp_path, method, of[0])) for method, of in ACCURACIES.items()]
    avg, prox = groups_between(Comparison(runs, ["a_b & c|d", "best"]))
    assert prox.difference is None and avg.difference is not None
    assert avg.difference.mean == pytest.approx(0.05) and (avg.difference.over, avg.value.std) == ("clients", None)
    assert ", over 2 clients) |" in as_markdown([avg, prox])
    assert r"a\_b \& c|d & 1 & 0.350 & +0.050" in as_latex([avg, prox]) and "Brier score, less is better" in as_latex([avg])
    assert r"| a_b & c\|d | 1 |" in as_markdown([avg])


@pytest.mark.parametrize(
    ("rounds", "last", "header", "short"),
    [(5, 10, "mean of the last 10 rounds", True), (20, 10, "mean of the last 10 rounds", False), (1, 1, "last round", False)],
)
def test_it_says_of_which_rounds_a_score_is_the_mean(rounds: int, last: int, header: str, short: bool, tmp_path: Path) -> None:
    """A mean from round 1 on is not what a run ends at."""
    run = made_run(tmp_path, "fedavg", [0.4, 0.5])
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8")) | {"rounds": rounds, "averaged_rounds": last}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert list(fedpriv.groups([run]).averaged_rounds) == [last] and list(fedpriv.compare([run]).averaged_rounds) == [last]
    latex, markdown = tmp_path / "table.tex", tmp_path / "table.md"
    shown = call("compare", run, "--output", tmp_path / "out.png", "--latex", latex, "--markdown", markdown)
    written = [shown.stdout, latex.read_text(encoding="utf-8"), markdown.read_text(encoding="utf-8")]
    assert all(header in text for text in written), written
    assert [text.count("means from round 1 on") for text in written] == [short] * 3


def test_the_best_mean_is_chosen_and_a_combination_without_all_seeds_is_not_ranked(tmp_path: Path) -> None:
    tried = grid(lr=[0.01, 0.1, 1])
    for cell, level in zip(tried.cells, (0.5, 0.8, 0.9), strict=True):
        for seed in tried.seeds:
            run = made_run(tmp_path / f"{cell.label}-{seed}", "fedprox", [level + 0.01 * seed, level - 0.1], seed)
            (tmp_path / "runs").mkdir(exist_ok=True)
            run.rename(tmp_path / "runs" / f"{cell.label}-s{seed}")
    result = _ranked(tried, tmp_path, {"lr=1-s1": "client 3 diverged in round 1"})
    assert [group.label for group in result.groups] == ["train.lr=0.1", "train.lr=0.01"] and result.best == {"train.lr": 0.1}
    assert list(result.table["train.lr"]) == [0.1, 0.01] and result.table["mean"][0] == pytest.approx(0.7525)
    assert result.command == "fedpriv train --method fedprox --rounds 3 --lr 0.1 --seeds 0,1"
    assert "not clear" not in chosen_on(result), "the difference is the same with each seed"
    for run in (tmp_path / "runs").iterdir():
        ranked_by_brier(run)
    assert _ranked(tried, tmp_path, {}).best == {"train.lr": 1}, "the least Brier score"
    with pytest.raises(FedprivError, match="no values could be trained with all seeds: diverged"):
        _ranked(tried, tmp_path, {f"{cell.label}-s0": "diverged" for cell in tried.cells})


def with_curve(run: Path, curve: Sequence[float]) -> Path:
    """The run with these mean scores of two clients by round, of which it kept the best."""
    records = [
        {
            "round": round,
            "time_ms": round,
            "metrics": {"accuracy": mean},
            "per_client": {"accuracy": [mean - 0.1, mean + 0.1]},
        }
        for round, mean in enumerate(curve)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    best = {"round": curve.index(max(curve)), "metric": "accuracy", "score": max(curve), "last_update_per_client": []}
    guessed = {"chance": 0.5, "constant": {"accuracy": 0.5}, "at_chance": True}
    further = guessed | {"best": best, "rounds": 3, "averaged_rounds": 10}
    (run / "summary.json").write_text(json.dumps(summary | further), encoding="utf-8")
    return run


def on_validation_data(run: Path, patience: int | None = None) -> Path:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["train"]["patience"] = patience
    config["data"]["validation_fraction"] = 0.2
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"eval": {"split": "validation"}}))
    return run


def test_with_patience_the_best_round_of_each_run_ranks(tmp_path: Path) -> None:
    tried = grid_of(None, {"method": "fedprox", "rounds": 3, "train.patience": 2}, {"lr": [0.01, 0.1]}, (0, 1))
    # The clients' mean scores by round; the best rounds have 0.7 and 0.8 (lr 0.01), and 0.6 and 0.65.
    curves = {("lr=0.01", 0): [0.5, 0.7, 0.2, 0.1], ("lr=0.01", 1): [0.5, 0.6, 0.8, 0.1],
              ("lr=0.1", 0): [0.5, 0.6, 0.6, 0.6], ("lr=0.1", 1): [0.5, 0.65, 0.6, 0.6]}  # fmt: skip
    for (label, seed), curve in curves.items():
        run = with_curve(made_run(tmp_path / f"{label}-{seed}", "fedprox", [curve[-1]] * 2, seed), curve)
        (tmp_path / "runs").mkdir(exist_ok=True)
        run.rename(tmp_path / "runs" / f"{label}-s{seed}")
    result = _ranked(tried, tmp_path, {})
    assert result.best == {"train.lr": 0.01}, "by the last rounds, it is the other one"
    first, second = result.groups
    assert (first.value.mean, second.value.mean) == pytest.approx((0.75, 0.625)) and first.worst_tenth == pytest.approx(0.65)
    assert second.difference is not None and second.difference.mean == pytest.approx(-0.125), "of -0.1 and -0.15"
    assert result.best_rounds == (1, 2) and "best round: 1, 2 of the runs" in chosen_on(result)
    assert not result.at_chance, "0.7 and 0.8, with errors of 0.1 over the clients; the last rounds are at chance"
    table = as_markdown(result.groups)
    assert "accuracy in % (best round) |" in table and "from round 1 on" not in table and "last rounds" not in table
    without = grid_of(None, {"method": "fedprox", "rounds": 3}, {"lr": [0.01, 0.1]}, (0, 1))
    last = _ranked(without, tmp_path, {})
    assert last.best == {"train.lr": 0.1} and not last.best_rounds and "best round" not in as_markdown(last.groups)


def test_with_patience_runs_are_compared_in_their_best_rounds(tmp_path: Path) -> None:
    curves = {"fedavg": [0.5, 0.6, 0.6, 0.6], "fedprox": [0.5, 0.7, 0.2, 0.1]}
    runs = [with_curve(made_run(tmp_path, method, [curve[-1]] * 2), curve) for method, curve in curves.items()]
    avg, prox = map(on_validation_data, runs)
    assert list(fedpriv.groups([avg, prox])["mean"]) == pytest.approx([0.6, 0.1]), "none has patience: the last rounds"
    on_validation_data(prox, patience=2)
    table, rows = fedpriv.groups([avg, prox]), fedpriv.compare([avg, prox])
    assert list(table["mean"]) == list(rows.accuracy) == pytest.approx([0.6, 0.7]) and table.from_best[0] == pytest.approx(-0.1)
    assert list(rows.best_round) == [1, 1] and all(table.at_best) and not rows.at_chance["fedprox-0"]
    shown = call("compare", avg, prox, "--output", tmp_path / "out.png", "--markdown", tmp_path / "table.md")
    assert "scores of a finished run: best round on validation data (train.patience)" in shown.stdout, shown.output
    assert "from round 1 on" not in shown.stdout and "(best round) |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    local = on_validation_data(with_curve(made_run(tmp_path, "local", [0.1, 0.1]), [0.5, 0.55, 0.1, 0.1]))
    assert list(fedpriv.gains([avg, prox, local]).difference) == pytest.approx([0.05, 0.15])
    tested = made_run(tmp_path, "scaffold", [0.4, 0.4])
    rows = fedpriv.compare([prox, tested])
    assert list(rows.accuracy) == pytest.approx([0.1, 0.4]) and rows.best_round.isna().all(), "one has no validation data"


def test_differences_are_from_the_group_that_against_names(tmp_path: Path) -> None:
    runs = [made_run(tmp_path, method, of[seed], seed) for method, of in ACCURACIES.items() for seed in range(3)]
    output = ["--output", tmp_path / "out.png", "--markdown", tmp_path / "table.md", "--csv", tmp_path / "table.csv"]
    shown = call("compare", *runs, *output, "--against", "fedavg", "--json")
    assert "fedprox against fedavg: +8.3 points (95 %: -6.0 to +22.7, over 3 runs)" in shown.stderr
    assert "the best" not in shown.stderr
    assert "| difference from fedavg (95 %) |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    avg, prox = json.loads(shown.stdout.splitlines()[-1])["groups"]
    assert (avg["difference"], prox["against"]) == (None, "fedavg") and prox["difference"]["mean"] == pytest.approx(0.25 / 3)
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        assert [row["against"] for row in csv.DictReader(file)] == ["fedavg", "fedavg"]
    singles = call("compare", runs[0], runs[3], *output, "--against", "fedp")
    assert "fedavg against fedprox: -5.0 points" in singles.stdout and "over 2 clients" in singles.stdout, singles.output


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("fed", "--against fed: 2 labels begin so; choose one of 'fedavg, lr 0.01', 'fedavg, lr 0.1'"),
        ("fedprox", "--against fedprox: there is no such label; choose one of 'fedavg, lr 0.01', 'fedavg, lr 0.1', local"),
        ("local", "--against local: its runs have no mean score to compare with"),
    ],
)
def test_a_label_that_is_no_single_group_is_refused(against: str, message: str, tmp_path: Path) -> None:
    runs = [made_run(tmp_path / str(lr), "fedavg", [0.5, 0.6]) for lr in (0.01, 0.1)]
    config = yaml.safe_load((runs[1] / "config.yaml").read_text())
    config["train"]["lr"] = 0.1
    (runs[1] / "config.yaml").write_text(yaml.safe_dump(config))
    runs.append(make_run(tmp_path, "unfinished", method="local", status="interrupted"))
    result = call("compare", *runs, "--output", tmp_path / "out.png", "--against", against)
    assert result.exit_code == 2 and message in result.stderr, result.output


def test_the_command_of_the_best_trains_on_all_data_and_is_tested() -> None:
    base = {"eval": {"split": "validation"}, "data": {"validation_fraction": 0.3, "name": "digits"}, "seed": 3}
    tried = grid_of(base, {"defense": ["clip:norm=1", "quantize:bits=8"], "secure_aggregation": False}, {"lr": [0.1, 1]}, [7])
    assert tried.train_command(tried.cells[0]) == (
        "fedpriv train --dataset digits --defense clip:norm=1 --defense quantize:bits=8 --set wire.secure_aggregation=false "
        "--lr 0.1 --set eval.split=test --set data.validation_fraction=0 --seed 7"
    )


@pytest.mark.slow
def test_a_sweep_is_trained_ranked_and_goes_on(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs_dir, trained, run_all = tmp_path / "runs", list[str](), runner.run
    runs_dir.mkdir()
    shutil.copy(empty_store, runs_dir / "mlflow.db")

    def trained_here(runs: Experiment, where: Path, workers: int, **options: Any) -> list[Outcome]:
        """The runner's processes take seconds to import torch; it collects what was trained in this one."""
        for label, seed in runs.select():
            if not (run_dir := runs.run_dir(where, label, seed)).exists():
                trained.append(run_dir.name)
                start(runs.config(label, seed).model_copy(update={"run_dir": run_dir}), where, *SILENT)
        return run_all(runs, where, workers, **options)

    monkeypatch.setattr(runner, "run", trained_here)
    values = {**settings("fedprox"), "train.rounds": 1, "train.lr": "0.05,0.1"}
    del values["tracking.uri"]
    asked = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    result = call("sweep", *asked, "--seeds", 2, "--runs-dir", runs_dir, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout.splitlines()[-1])
    assert [row["seeds"] for row in data["ranked"]] == [2, 2] and data["ranked"][0]["mean"] >= data["ranked"][1]["mean"]
    assert "the test set was not looked at" in result.stderr and "--seeds 0,1" in data["command"]
    runs = sorted((Path(data["folder"]) / "runs").iterdir())
    assert trained == ["lr=0.05-s0", "lr=0.1-s0", "lr=0.05-s1", "lr=0.1-s1"] and [run.name for run in runs] == sorted(trained)
    for record in (record for run in runs for record in read_records(run)):
        assert not [name for name in record["metrics"] if name.startswith("global_") or name == "test_loss"], "of the test set"
    client = MlflowClient(f"sqlite:///{runs_dir / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedpriv")
    assert experiment is not None
    tags = [run.data.tags for run in client.search_runs([experiment.experiment_id])]
    parents = [of["mlflow.parentRunId"] for of in tags if "mlflow.parentRunId" in of]
    assert len(tags) == 5 and len(parents) == 4 and len(set(parents)) == 1
    trained.clear()
    asked = ["train.lr=0.1,0.2" if part.startswith("train.lr=") else part for part in asked]
    more = call("sweep", *asked, "--seeds", 2, "--runs-dir", runs_dir)
    assert more.exit_code == 0, more.output
    assert trained == ["lr=0.2-s0", "lr=0.2-s1"], "the others are kept"


@pytest.mark.slow
def test_train_with_seeds_makes_a_run_for_each_and_their_mean(tmp_path: Path) -> None:
    values = settings("fedavg", **{"train.rounds": 1})
    asked = [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    result = call("train", *asked, "--seeds", "0,2", "--runs-dir", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout.splitlines()[-1])
    assert [summary["seed"] for summary in data["runs"]] == [0, 2]
    accuracies = [summary["accuracy"] for summary in data["runs"]]
    assert data["group"]["mean"] == pytest.approx(sum(accuracies) / 2) and "over 2 seeds" in result.stderr
    alone = call("train", *asked, "--seed", 2, "--runs-dir", tmp_path / "alone", "--json")
    assert json.loads(alone.stdout.splitlines()[-1])["accuracy_per_client"] == data["runs"][1]["accuracy_per_client"]


@pytest.mark.parametrize("swept", [{"train__patience": [2]}, {"lr": [0.1]}], ids=["swept", "in the config"])
def test_the_final_command_has_no_patience(tmp_path: Path, swept: dict[str, list[Any]]) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("train: {patience: 3}\neval: {split: validation}\n", encoding="utf-8")
    tried = grid_of(base, {"method": "fedavg"}, {key.replace("__", "."): of for key, of in swept.items()}, (0,))
    command = tried.train_command(tried.cells[0])
    assert "train.patience=null" in command
    result = call(*shlex.split(command)[1:], "--dump-config")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("where", ["option", "values", "file"])
def test_patience_needs_no_split_as_a_sweep_scores_validation_data(tmp_path: Path, where: str) -> None:
    base, fixed, swept = None, {"method": "fedprox", "train.patience": 6}, {"lr": [0.1, 1]}
    if where == "values":
        del fixed["train.patience"]
        swept = {"train.patience": [6, 7]}
    elif where == "file":  # which `fedpriv train` would refuse
        del fixed["train.patience"]
        base = tmp_path / "base.yaml"
        base.write_text("train: {patience: 6}\n", encoding="utf-8")
    tried = grid_of(base, fixed, swept, (0,))
    check_cells(tried)
    assert {(cell.config.eval.split, cell.config.data.validation_fraction) for cell in tried.cells} == {
        ("validation", VALIDATION)
    }
    assert tried.cells[0].config.train.patience == 6
    result = call(*shlex.split(tried.train_command(tried.cells[0]))[1:], "--dump-config")
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.stdout).get("train", {}).get("patience") is None
