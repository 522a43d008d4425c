"""``fedpriv train``, ``fedpriv resume``, ``fedpriv methods``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, described_options
from fedpriv.cli.options import config_from, config_options

_RUNS_DIR = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder that holds the run folders.",
)


@command(main, "train")
@config_options()
@click.option("--dump-config", is_flag=True, help="Print the config as YAML and stop.")
@_RUNS_DIR
def train(
    config_file: Path | None, assignments: tuple[str, ...], dump_config: bool, runs_dir: Path, **flags: Any
) -> dict[str, Any] | None:
    """Train across clients.

    Records accuracy, bytes and everything needed to resume.

    \b
    Example: fedpriv train --method mpfedcon
             fedpriv train --config run.yaml --set method.mu=5
    """
    config = config_from(config_file, assignments, flags)
    if dump_config:
        from fedpriv.methods.build import with_options

        config = with_options(config)
        click.echo(config.to_yaml(), nl=False)
        return config.model_dump(mode="json")
    from fedpriv.cli.report import Reporter
    from fedpriv.simulation import run

    with Reporter(console()) as reporter:
        outcome = run.start(config, runs_dir, reporter.on_start, reporter.on_round, reporter.warn)
    return _conclude(reporter, outcome)


@command(main, "resume")
@click.argument("run_name", metavar="RUN")
@_RUNS_DIR
def resume(run_name: str, runs_dir: Path) -> dict[str, Any] | None:
    """Go on with a killed or interrupted run.

    Its results are bit for bit those of a run that was not.

    RUN is a run folder, a run id, or a unique beginning of one.

    \b
    Example: fedpriv resume runs/20260131-120000-mpfedcon-digits-s0-1a2b
    """
    from fedpriv.cli.report import Reporter
    from fedpriv.simulation import run
    from fedpriv.tracking import find_run

    with Reporter(console()) as reporter:
        outcome = run.resume(find_run(run_name, runs_dir), reporter.on_start, reporter.on_round, reporter.warn)
    return _conclude(reporter, outcome)


def _conclude(reporter: Any, outcome: Any) -> dict[str, Any]:
    reporter.conclude(outcome)
    if outcome.summary is None:
        sys.exit(130)
    return dict(outcome.summary)


@command(main, "methods")
def methods() -> dict[str, Any]:
    """List the methods and their options.

    Also what each shares and what stays with the client.

    \b
    Example: fedpriv methods
             fedpriv methods --json
    """
    from rich.table import Table

    from fedpriv.methods import methods as all_methods

    rows: list[dict[str, Any]] = []
    for name, method in all_methods().items():
        options = described_options(method.Params)
        keeps = [] if not method.shared else sorted({"encoder", "projector", "head"} - method.shared)
        rows.append(
            {
                "name": name,
                "title": method.title,
                "paper": method.paper,
                "shares": [role for role in ("encoder", "projector", "predictor", "head") if role in method.shared],
                "keeps": keeps if method.shared else ["everything"],
                "broadcasts_initial_model": method.round_zero,
                "options": options,
            }
        )
    table = Table(title="Methods", title_justify="left")
    for column in ("name", "what it is", "shares", "options (default)"):
        table.add_column(column, overflow="fold")
    for row in rows:
        options_text = "\n".join(f"[bold]{o['name']}[/] = {o['default']}" for o in row["options"])
        table.add_row(row["name"], f"{row['title']}\n[dim]{row['paper']}[/]", ", ".join(row["shares"]) or "nothing", options_text)
    console().print(table)
    console().print("[dim]Options are set with --set method.NAME=VALUE; --json has their descriptions and sources.[/]")
    return {"methods": rows}
