"""A sweep: the runs of a grid with several seeds, ranked by their score on the clients' validation data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedpriv.api.comparison.comparability import not_comparable
from fedpriv.api.comparison.groups import Group, as_row, groups_between
from fedpriv.api.comparison.side_by_side import Comparison
from fedpriv.api.comparison.stored import StoredRun
from fedpriv.api.comparison.tables import as_csv, as_markdown
from fedpriv.api.grid import Cell, Grid, check_cells, grid_of
from fedpriv.api.keys import Keys
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import check_place, write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedpriv.config import RunConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. Scores are on the clients' validation data; the test data were not scored.

    Attributes:
        folder: holds the run folders (``runs``) and the table (``sweep.csv``, ``sweep.md``).
        cells: the combinations of values that were trained with all seeds, the best first.
        groups: the runs of each.
        at_chance: whether the runs of the best are no better than a constant answer.
        left_out: why a run has no result, by name: a client diverged. Its combination is not ranked.
        best_rounds: of the runs of the best, the rounds whose scores rank them; empty: those of their last rounds do, as no
            combination has ``train.patience``.
        command: the ``fedpriv train`` command of the best, on all training data and tested on the test data.
    """

    folder: Path
    cells: tuple[Cell, ...]
    groups: tuple[Group, ...]
    at_chance: bool
    left_out: Mapping[str, str]
    best_rounds: tuple[int, ...]
    command: str

    @property
    def best(self) -> dict[str, Any]:
        """The best values, by config key."""
        return dict(self.cells[0].values)

    @property
    def table(self) -> DataFrame:
        """A row for each combination, the best first: its values, and the columns of :func:`fedpriv.groups`."""
        import pandas as pd

        rows = zip(self.cells, self.groups, strict=True)
        return pd.DataFrame([{**cell.values, **as_row(group)} for cell, group in rows])


def sweep(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int] = 3,
    jobs: int = 1,
    runs_dir: str | os.PathLike[str] = "runs",
    **keys: Unpack[Keys],
) -> Sweep:
    """Train every combination of values with every seed, and rank them by their score on validation data: the mean of the last
    rounds, or with ``train.patience`` that of the best round.

    A share of each client's training data is held out for it (``data.validation_fraction``, by default 0.2). The test data are
    not scored. Called again, it goes on: finished runs are kept, interrupted ones resumed; values and seeds can be added.

    Args:
        config, keys: as for :func:`fedpriv.train`.
        grid: the values of each key, such as ``{"lr": [0.01, 0.1], "method.mu": [0.1, 1]}``.
        seeds: how many (from 0 on), or which.
        jobs: processes at a time, each with one torch thread.
        runs_dir: the folder ``sweeps`` in it gets the sweep's folder, and its MLflow store the runs, below one parent run.

    Raises:
        UsageError: a key or a value that cannot be right, before anything is trained.
        FedprivError: a run failed. The others are kept.
    """
    from fedpriv.untrusted.notes import note

    if jobs < 1:
        raise UsageError(f"jobs {jobs}: at least 1 process")
    return play(grid_of(config, keys, grid, seeds), Path(runs_dir), jobs, note)


def play(grid: Grid, runs_dir: Path, jobs: int, say: Say) -> Sweep:
    """Train what is not done yet of a grid, and rank its cells; arguments and errors as for :func:`sweep`."""
    from fedpriv.tracking import default_uri, parent_run
    from fedpriv.tracking.folder import SWEEPS

    check_cells(grid)
    folder = runs_dir / SWEEPS / grid.name
    check_place(folder, "--runs-dir names another folder")
    cells, seeds = len(grid.cells), len(grid.seeds)
    say(f"{cells} combinations with {seeds} seed{'s' * (seeds > 1)} each: {cells * seeds} runs in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    tracking = grid.cells[0].config.tracking
    if tracking.name == "mlflow" and tracking.uri is None:  # the store of the other runs
        tracking = tracking.model_copy(update={"uri": default_uri(runs_dir)})
    configs = {cell.label: cell.config.model_copy(update={"tracking": tracking}) for cell in grid.cells}
    with parent_run(folder, tracking, f"sweep {grid.name}") as parent:
        left_out = _train(configs, grid.seeds, folder, jobs, say)
        result = _ranked(grid, folder, left_out)
        write_atomically(folder / "sweep.csv", as_csv(result.groups).encode())
        write_atomically(folder / "sweep.md", f"{as_markdown(result.groups)}\n{chosen_on(result)}\n".encode())
        runs = [StoredRun(folder / "runs" / run) for group in result.groups for run in group.runs]
        for why in not_comparable(runs, [run.figures() for run in runs]):  # the data may have changed between two calls
            say(f"warning: {why}")
        best = result.groups[0]
        parent({} if best.value.mean is None else {best.score.name: best.value.mean}, folder)
    return result


def chosen_on(result: Sweep) -> str:
    """What the choice rests on, in a few lines, and the command of the best."""
    lines = ["The values were chosen on the clients' validation data; the test set was not looked at."]
    if result.best_rounds:
        rounds = ", ".join(map(str, result.best_rounds))
        lines.append(
            f"As train.patience is set, the score of a run is that of its best round: {rounds} of the runs of the best values. "
            "The command below trains all rounds; set its rounds by these."
        )
    ties = sum(not _is_worse(group) for group in result.groups[1:])
    if ties:
        lines.append(
            f"It is not clear that the best is better than {ties} other combination{'s' * (ties > 1)}; more seeds may show it."
        )
    if result.at_chance:
        lines.append("The best is no better than a constant answer, within its interval: it needs other values, or more rounds.")
    lines.append("As the best of several looks better than it is, quote the score of new runs on the test data:")
    return "\n".join([*lines, "", f"    {result.command}"])


def _is_worse(group: Group) -> bool:
    """Whether the interval of the difference from the best is all on its worse side."""
    paired, merit = group.difference, group.score.merit
    return (
        paired is not None
        and paired.low is not None
        and paired.high is not None
        and max(merit(paired.low), merit(paired.high)) < 0
    )


def _train(configs: Mapping[str, RunConfig], seeds: tuple[int, ...], folder: Path, jobs: int, say: Say) -> dict[str, str]:
    """Train the runs that are not done; returns why a run has no result, as a client diverged."""
    from fedpriv.experiments.runner import run as run_all
    from fedpriv.experiments.spec import RunsOfACommand

    runs = RunsOfACommand(folder / "sweep.yaml", "sweep", None, configs, seeds, None, (), (), ())
    outcomes = run_all(runs, folder / "runs", jobs, say=say, allow_dirty=True)
    if any(outcome.state in ("interrupted", "left") for outcome in outcomes):
        raise KeyboardInterrupt
    if failed := [outcome for outcome in outcomes if outcome.state == "failed"]:
        raise FedprivError(
            f"{len(failed)} of {len(outcomes)} runs failed, such as {failed[0].name}: {failed[0].error}; "
            "the same sweep tries them again and keeps the others"
        )
    return {outcome.name: str(outcome.error) for outcome in outcomes if outcome.state == "diverged"}


def _ranked(grid: Grid, folder: Path, left_out: Mapping[str, str]) -> Sweep:
    names = {cell.label: [f"{cell.label}-s{seed}" for seed in grid.seeds] for cell in grid.cells}
    whole = [cell for cell in grid.cells if not left_out.keys() & set(names[cell.label])]
    if not whole:
        raise FedprivError(f"no values could be trained with all seeds: {next(iter(left_out.values()))}")
    folders = [folder / "runs" / name for cell in whole for name in names[cell.label]]
    at_best = any(cell.config.train.patience is not None for cell in grid.cells)
    groups = groups_between(Comparison(folders, [cell.name for cell in whole for _ in grid.seeds], at_best))
    scored = [(cell, group) for cell, group in zip(whole, groups, strict=True) if group.value.mean is not None]
    if not scored:
        raise FedprivError(f"no run in {folder / 'runs'} has a validation score; data.validation_fraction may be too small")
    scored.sort(key=lambda pair: -pair[1].score.merit(pair[1].value.mean or 0.0))
    cells, ranked = zip(*scored, strict=True)
    rows = [StoredRun(folder / "runs" / name).figures(at_best) for name in names[cells[0].label]]
    best_rounds = tuple(row["best_round"] for row in rows) if at_best else ()
    at_chance = all(row["at_chance"] for row in rows)
    return Sweep(folder, cells, ranked, at_chance, left_out, best_rounds, grid.train_command(cells[0]))
