"""``fedpriv sweep``: which values of options to choose, by validation data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, loading
from fedpriv.cli.options import config_options
from fedpriv.cli.terminal import FilePath, SeedsParam, say
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from fedpriv.api.comparison.groups import Group


@command(main, "sweep")
@config_options(
    help_set="A config key with values to try, such as --set train.lr=0.01,0.1, or with the value of all runs; repeatable."
)
@click.option("--seeds", type=SeedsParam(), default="3", show_default=True, help="How many seeds, from 0 on, or which: 0,1,5.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at a time.")
@click.option(
    "--runs-dir", type=FilePath(), default=Path("runs"), show_default=True, help="Its folder `sweeps` gets the sweep's folder."
)
def sweep(
    config_file: Path | None, assignments: tuple[str, ...], seeds: tuple[int, ...], jobs: int, runs_dir: Path, **flags: Any
) -> dict[str, Any]:
    """Choose values of options on validation data.

    Trains every combination of the values with every seed, and ranks them by their mean score (eval.metric) on the clients'
    validation data: 20 % of their training data, unless data.validation_fraction says otherwise. With train.patience, the score
    of a run is that of its best round. The test data are not scored.
    The same command goes on after an interruption; values and seeds can be added.

    \b
    Example: fedpriv sweep --method fedprox --set train.lr=0.003,0.01,0.03 --set method.mu=0.1,1 --seeds 3 --jobs 2
    """
    from fedpriv.api.grid import grid_of, values_of
    from fedpriv.api.keys import parsed

    fixed, swept = {name: value for name, value in flags.items() if value is not None and value != ()}, dict[str, list[Any]]()
    given = set[str]()
    for key, values in map(values_of, assignments):
        if key in given:
            raise UsageError(f"--set {key} is given twice; give its values together, such as --set {key}=A,B")
        given.add(key)
        if len(values) > 1:
            swept[key] = values
        else:
            fixed[key] = values[0]
    if plugins := click.get_current_context().meta.get("fedpriv.plugins", ()):
        fixed["plugins"] = [str(file) for file in dict.fromkeys((*parsed(config_file, {})[0].plugins, *plugins))]
    grid = grid_of(config_file, fixed, swept, seeds)
    loading()
    from fedpriv.api.comparison.groups import as_row
    from fedpriv.api.sweeping import chosen_on, play

    out = console(width=160)
    try:
        result = play(grid, runs_dir, jobs, lambda text: out.print(text, soft_wrap=True))
    except KeyboardInterrupt:
        say("fedpriv: the same command goes on", err=True)
        raise
    out.print(table(result.groups))
    for name, why in result.left_out.items():
        out.print(f"{name} has no result, so its values are not ranked: {why}", soft_wrap=True)
    out.print(f"\n{chosen_on(result)}\n\ntable: {result.folder / 'sweep.csv'}, {result.folder / 'sweep.md'}", soft_wrap=True)
    ranked = [{"values": dict(cell.values), **as_row(group)} for cell, group in zip(result.cells, result.groups, strict=True)]
    return {
        "best": result.best,
        "command": result.command,
        "ranked": ranked,
        "left_out": dict(result.left_out),
        "folder": str(result.folder),
    }


def table(groups: tuple[Group, ...]) -> Table:
    """The groups as a table, in their order."""
    from rich.table import Table

    from fedpriv.api.comparison.tables import cells, head

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(head(groups)):
        shown.add_column(column, overflow="fold", justify="right" if number else "left")
    for group in groups:
        shown.add_row(*cells(group))
    return shown
