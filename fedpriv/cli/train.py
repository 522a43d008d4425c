"""``fedpriv train``, ``fedpriv resume``."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import RUNS_DIR, command, console, loading
from fedpriv.cli.options import config_from, config_options
from fedpriv.cli.terminal import SeedsParam, WorkersParam, say
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.audit.results.epsilon import Canaries

_PROFILE = click.option(
    "--profile",
    is_flag=True,
    help="Profile the run: print the time by part, and write profile/ (a table, and a trace for a browser).",
)


@command(main, "train")
@config_options()
@click.option(
    "--seeds",
    type=SeedsParam(),
    help="How many seeds, from 0 on, or which (0,1,5): a run for each, one after another, and their mean.",
)
@click.option(
    "--dump-config", is_flag=True, help="Print the keys that are set, and all options of the method, as YAML; then stop."
)
@_PROFILE
@RUNS_DIR
def train(
    config_file: Path | None,
    assignments: tuple[str, ...],
    seeds: tuple[int, ...] | None,
    dump_config: bool,
    profile: bool,
    runs_dir: Path,
    **flags: Any,
) -> dict[str, Any] | None:
    """Train a method on a federation of clients.

    The run folder gets accuracy, bytes, and everything needed to resume.

    \b
    Example: fedpriv train --method mpfedcon
             fedpriv train --method mpfedcon --seeds 3
             fedpriv train --config run.yaml --set method.mu=5
    """
    if seeds is not None:
        _check_seeds(assignments, dump_config, flags)
    config = config_from(config_file, assignments, flags, here=not dump_config)
    if dump_config:
        from fedpriv.methods.build import with_options
        from fedpriv.untrusted import plain_yaml

        chosen = with_options(config).chosen()
        click.echo(plain_yaml.dump(chosen), nl=False)
        return chosen
    if seeds is not None and config.run_dir is not None:
        raise UsageError("run_dir names the folder of one run; with --seeds each has its own, in --runs-dir")
    loading()
    began = time.perf_counter()
    from fedpriv.cli.report import Reporter
    from fedpriv.seeding import default_torch
    from fedpriv.simulation import run

    imports = time.perf_counter() - began
    summaries, folders = [], []
    for number, seed in enumerate((config.seed,) if seeds is None else seeds):
        config = config.model_copy(update={"seed": seed})
        with Reporter(console()) as reporter, default_torch():
            outcome = run.start(
                config, runs_dir, reporter.on_start, reporter.on_round, reporter.warn, profile, reporter.on_answer
            )
        if outcome.summary is None and seeds is not None and seeds[number + 1 :]:
            say(f"not begun: seeds {', '.join(map(str, seeds[number + 1 :]))}", err=True)
        summaries.append(_conclude(reporter, outcome, imports))
        folders.append(outcome.folder.path)
    if seeds is None:
        return summaries[0]
    from fedpriv.api.comparison.groups import as_row, groups_between
    from fedpriv.api.comparison.side_by_side import Comparison
    from fedpriv.cli.compare import spread_of

    (group,) = groups_between(Comparison(folders))
    console().print(f"\n{spread_of(group) or f'{group.label}: {len(folders)} run, so no spread over seeds'}", soft_wrap=True)
    return {"runs": summaries, "group": as_row(group)}


def _check_seeds(assignments: tuple[str, ...], dump_config: bool, flags: dict[str, Any]) -> None:
    """Refuse what does not go with ``--seeds``."""
    if flags["seed"] is not None or any(text.partition("=")[0].strip() == "seed" for text in assignments):
        raise UsageError("--seed is the seed of a single run; leave it out, or --seeds")
    if dump_config:
        raise UsageError("--dump-config prints the config of a single run; leave --seeds out")


@command(main, "resume")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--workers",
    type=WorkersParam(),
    help="Worker processes, auto or ray; results do not depend on it. Default: as the run was started.",
)
@click.option("--ray-address", help="HOST:PORT of the Ray cluster of --workers ray. Default: one of this machine alone.")
@click.option("--ray-workers", type=click.IntRange(min=1), help="Processes on it. Default: one for each of its cores.")
@click.option("--tracking-uri", help="MLflow store from now on. Required if the run folder names a store other than yours.")
@_PROFILE
@RUNS_DIR
def resume(
    run_name: str, tracking_uri: str | None, profile: bool, runs_dir: Path, **executor: int | str | None
) -> dict[str, Any] | None:
    """Resume a killed or interrupted run.

    The results equal those of an uninterrupted run, bit for bit.

    RUN is a run folder, a run id, or a unique beginning of one.

    \b
    Example: fedpriv resume runs/20260131-120000-mpfedcon-digits-s0-1a2b
    """
    loading()
    began = time.perf_counter()
    from fedpriv.cli.report import Reporter
    from fedpriv.simulation import run
    from fedpriv.storage.run_folder import RunFolder
    from fedpriv.tracking import find_run, settle_store

    imports = time.perf_counter() - began
    with Reporter(console()) as reporter:
        folder = find_run(run_name, runs_dir)
        settle_store(RunFolder.open(folder), tracking_uri)
        events = reporter.on_start, reporter.on_round, reporter.warn
        outcome = run.resume(folder, *events, profile, executor, reporter.on_answer)
    return _conclude(reporter, outcome, imports)


def _conclude(reporter: Any, outcome: Any, imports: float) -> dict[str, Any]:
    if outcome.profile is not None:
        from fedpriv.cli.profile import show

        show(outcome.profile, outcome.folder.profile, reporter.out, imports)
    if outcome.summary is None:
        reporter.conclude(outcome)
        sys.exit(130)
    canaries = _measured(outcome)
    reporter.conclude(outcome, canaries)
    return dict(outcome.summary) | ({} if canaries is None else {"canaries": asdict(canaries)})


def _measured(outcome: Any) -> Canaries | None:
    """The results of the run's canaries, if it has some."""
    if not outcome.folder.canaries_file.exists():
        return None
    from fedpriv.audit.membership.epsilon import measured

    return measured(outcome.folder, outcome.summary.get("privacy"))
