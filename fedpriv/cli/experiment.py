"""``fedpriv experiment``: run the experiment of a YAML file, and compare it with the paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import DATA_DIR, command, console, loading
from fedpriv.cli.terminal import FilePath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedpriv.experiments.leakage.runner import CellOutcome
    from fedpriv.experiments.runner import Outcome

_PATH = FilePath()
_ONLY = click.option("--only", "labels", multiple=True, metavar="LABEL", help="Only runs with this label; repeatable.")
_SEEDS = click.option(
    "--seed", "--seeds", "seeds", multiple=True, type=int, metavar="SEED", help="Only runs with this seed; repeatable."
)
_RUNS_DIR = click.option(
    "--runs-dir", type=_PATH, default=Path("runs"), show_default=True, help="Folder whose experiments/ holds the run folders."
)


@main.group("experiment")
def experiment() -> None:
    """Run a paper's experiments and compare the results with the paper.

    \b
    Example: fedpriv experiment run experiments/mpfedcon/cifar10.yaml --jobs 2
             fedpriv experiment report experiments/mpfedcon
    """


@command(experiment, "run")
@click.argument("file", type=_PATH)
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Processes at a time; 0: only collect what is finished.",
)
@_ONLY
@_SEEDS
@DATA_DIR
@_RUNS_DIR
@click.option("--allow-dirty", is_flag=True, help="Run with uncommitted changes in the git checkout.")
def run(
    file: Path,
    jobs: int,
    labels: tuple[str, ...],
    seeds: tuple[int, ...],
    data_dir: Path | None,
    runs_dir: Path,
    allow_dirty: bool,
) -> dict[str, Any]:
    """Run each label and seed of FILE that is not done; the results are stored beside FILE.

    The same command resumes interrupted runs. FILE may describe the cells of a leakage experiment instead of runs: then each
    cell that is not done is run, and --only names cells.

    Nothing is run if FILE lies in a git checkout with uncommitted changes, or in no commit of it, since a result names the commit
    that reproduces it. A run in which a client diverges has no result; that is stored, and it is not tried again.

    \b
    Example: fedpriv experiment run experiments/mpfedcon/cifar10.yaml --jobs 2
             fedpriv experiment run experiments/mpfedcon/cifar10.yaml --only fedrep --only mpfedcon --seed 0
             fedpriv experiment run experiments/mpfedcon/leakage.yaml --jobs 2
    """
    loading()
    from fedpriv.errors import FedprivError, UsageError
    from fedpriv.experiments import describes_cells, read, read_leakage, run_cells
    from fedpriv.experiments import run as run_experiment

    out = console()

    def say(text: str) -> None:
        out.print(text, soft_wrap=True)

    outcomes: Sequence[Outcome | CellOutcome]
    if describes_cells(file):
        if seeds:
            raise UsageError(f"--seed: the cells of {file} have their seeds in images, victim and attacker")
        outcomes = run_cells(read_leakage(file), jobs, labels, data_dir, say, allow_dirty)
    else:
        outcomes = run_experiment(read(file), runs_dir, jobs, labels, seeds, data_dir, say, allow_dirty)
    say(_count(outcomes))
    states = {outcome.state for outcome in outcomes}
    if "interrupted" in states or (jobs and "left" in states):
        say("The same command resumes it.")
        sys.exit(130)
    if failed := [outcome for outcome in outcomes if outcome.state == "failed"]:
        raise FedprivError(f"{len(failed)} of {len(outcomes)} runs failed: {', '.join(outcome.name for outcome in failed)}")
    say(f"Next: fedpriv experiment report {file.parent}")
    return {"file": str(file), "runs": [vars(outcome) for outcome in outcomes]}


def _count(outcomes: Sequence[Outcome | CellOutcome]) -> str:
    words = {"done": "done before", "collected": "collected", "finished": "finished now"}
    words |= {"diverged": "diverged", "interrupted": "interrupted", "failed": "failed", "left": "not done"}
    counts = {state: sum(outcome.state == state for outcome in outcomes) for state in words}
    return f"{len(outcomes)} runs: " + ", ".join(f"{count} {words[state]}" for state, count in counts.items() if count)


@command(experiment, "reproduce")
@click.argument("path", type=_PATH, metavar="FILE|FOLDER")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Only N results, picked at random.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at a time.")
@_ONLY
@_SEEDS
@DATA_DIR
@_RUNS_DIR
def reproduce(
    path: Path,
    sample: int | None,
    jobs: int,
    labels: tuple[str, ...],
    seeds: tuple[int, ...],
    data_dir: Path | None,
    runs_dir: Path,
) -> dict[str, Any]:
    """Run stored results again, and compare every number with the stored one.

    FILE is an experiment's YAML; of a FOLDER, all are meant. Accuracies, curves, bytes, what merges reported, partition and data
    must be the same to the last stored digit, the seconds need not. On another kind of processor the last digits differ, so
    --sample picks among the results from this kind, if there are any. The stored results stay as they are. The same command
    resumes interrupted runs, unless it picks others. Exit code 1: a number differs.

    \b
    Example: fedpriv experiment reproduce experiments/mpfedcon --sample 2
             fedpriv experiment reproduce experiments/simprox/banking77.yaml --only simprox --seed 0
    """
    loading()
    from fedpriv.errors import FedprivError
    from fedpriv.experiments import reproduce as run_again

    out = console()
    results = run_again(path, runs_dir, jobs, labels, seeds, sample, data_dir, lambda text: out.print(text, soft_wrap=True))
    if any(result.state in ("interrupted", "left") for result in results):
        out.print("Interrupted; with --only and --seed of the runs that were picked, it goes on.", soft_wrap=True)
        sys.exit(130)
    if wrong := [result.run for result in results if result.state != "same"]:
        raise FedprivError(f"{len(wrong)} of {len(results)} results were not reproduced: {', '.join(wrong)}")
    return {"results": [result.as_data() for result in results]}


@command(experiment, "plan")
@click.argument("path", type=_PATH, metavar="FILE|FOLDER")
@click.option("--measure", is_flag=True, help="Where no run with a label is done, train four rounds to know what one costs.")
@_ONLY
@_SEEDS
@DATA_DIR
@_RUNS_DIR
def plan(
    path: Path, measure: bool, labels: tuple[str, ...], seeds: tuple[int, ...], data_dir: Path | None, runs_dir: Path
) -> dict[str, Any]:
    """Say what is left to run, and how many hours it will take.

    FILE is an experiment's YAML; of a FOLDER, each YAML gets a line. A round's cost is that of the runs with the same label that
    are done, with their tests; of the same kind of processor, if there are such. Cells of a leakage experiment are counted only.

    \b
    Example: fedpriv experiment plan experiments/mpfedcon
             fedpriv experiment plan experiments/mpfedcon/cifar10_5.yaml --measure --data-dir data
    """
    loading()
    from fedpriv.experiments.plan import planned

    plans = planned(path, runs_dir, labels, seeds, measure, data_dir)
    _show(plans)
    return {"experiments": plans}


def _show(plans: Sequence[dict[str, Any]]) -> None:
    """Print what is left: of several experiments a line each, of one a line a label."""
    from rich.table import Table

    out, alone = console(), len(plans) == 1
    rows = plans[0]["runs"] if alone else plans
    table = Table(box=None, pad_edge=False)
    table.add_column("run" if alone else "experiment", overflow="fold")
    for column in ("runs left", "rounds left", "time"):
        table.add_column(column, justify="right")
    table.add_column("a round, measured on" if alone else "not measured", overflow="fold")
    for row in rows:
        cost = "" if not alone or row["seconds_a_round"] is None else f"{row['seconds_a_round']:.3g} s, "
        about = cost + row["source"] if alone else ", ".join(row["not_measured"])
        name = row["label"] if alone else Path(row["file"]).name
        more = "over " if row["hours"] and row.get("not_measured") else ""
        table.add_row(name, str(row["left"]), str(row["rounds"]), more + _time(row["hours"]), about)
    out.print(table)
    left, known = sum(row["left"] for row in rows), sum(row["hours"] or 0 for row in rows)
    lacking = any(row["hours"] is None or row.get("not_measured") for row in rows)
    text = f"{left} {'run' if left == 1 else 'runs'} left"
    if known or not lacking:
        text += f", about {_time(known)} of one core (or GPU)" + (" without those that were not measured" if lacking else "")
    else:
        text += "; how long they take was not measured (--measure trains four rounds of each)"
    out.print(text, soft_wrap=True)


def _time(hours: float | None) -> str:
    if hours is None:
        return "?"
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


@command(experiment, "report")
@click.argument("path", type=_PATH, metavar="FILE|FOLDER")
@click.option(
    "--output", type=_PATH, help="The Markdown to write. Default: REPORT.md in FOLDER, or results/<name>.md for a FILE."
)
def report(path: Path, output: Path | None) -> dict[str, Any]:
    """Render the stored results and the verdict on each claim of the paper.

    FILE is an experiment's YAML; FOLDER holds several, and the report has a section for each.

    \b
    Example: fedpriv experiment report experiments/mpfedcon
    """
    from rich.table import Table

    from fedpriv.experiments import report as render

    result = render(path, output)
    out = console()
    for section in result["experiments"]:
        out.print(section["title"], style="bold", markup=False, soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        for name in ("claim", "verdict"):
            table.add_column(name, overflow="fold")
        for claim in section["claims"]:
            table.add_row(claim["id"], claim["verdict"] + (f" ({claim['remark']})" if claim["remark"] else ""))
        if section["claims"]:
            out.print(table)
        for complaint in section["complaints"]:
            out.print(complaint, soft_wrap=True)
        if section["missing"]:
            hint = f"without a result: {len(section['missing'])} of its runs; fedpriv experiment run {section['file']}"
            out.print(hint, soft_wrap=True)
        out.print()
    out.print(f"report: {result['report']}", soft_wrap=True)
    return result
