"""``fedpriv sync``: sends records to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import RUNS_DIR, command, console
from fedpriv.errors import FedprivError, UsageError


@command(main, "sync")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every run of the runs folder, those of its sweeps, too.")
@RUNS_DIR
@click.option("--tracking-uri", help="Send to this MLflow store. Required if a run names a store other than yours.")
def sync_runs(runs: tuple[str, ...], every: bool, runs_dir: Path, tracking_uri: str | None) -> dict[str, Any]:
    """Send records to MLflow that it does not have yet.

    A run keeps its records while the tracking server cannot be reached. No record is sent twice.

    RUN is a run folder, a run id, or the beginning of a folder's name.

    \b
    Example: fedpriv sync --all
    """
    from fedpriv.tracking import ForeignStore, ServerAway, TrackingError, find_run, sync, target_uri
    from fedpriv.tracking.folder import SWEEPS, check_run

    if every == bool(runs):
        raise UsageError("name the runs to send, or use --all")
    if every:  # a damaged run does not keep the others back
        configs = [path for kind in ("*", f"{SWEEPS}/*/runs/*") for path in sorted(runs_dir.glob(f"{kind}/config.yaml"))]
        folders = [path.parent for path in configs if (path.parent / "run.json").exists()]
    else:
        folders = [find_run(name, runs_dir) for name in runs]
    if not folders:
        raise UsageError(f"{runs_dir} holds no runs; --runs-dir names another folder")
    away: set[str] = set()  # servers that did not answer are not tried again for other runs
    results: list[dict[str, Any]] = []
    failures: list[FedprivError] = []
    tolerated = FedprivError if every else (TrackingError, ForeignStore)
    for folder in folders:
        uri = ""
        try:
            if every:
                check_run(folder)
            uri = target_uri(folder, tracking_uri)
            if uri in away:
                continue
            report = sync(folder, tracking_uri)
        except tolerated as error:
            failures.append(error)
            console().print(f"{folder.name}: not sent: {error}", soft_wrap=True)
            if isinstance(error, ServerAway):
                away.add(uri)
            continue
        if report.uri is None:
            outcome = "the run is not tracked by MLflow; --tracking-uri sends it anyway"
        elif report.params or report.points or report.artifacts:
            outcome = f"sent {report.params} params, {report.points} points, {report.artifacts} files"
        else:
            outcome = "nothing new"
        console().print(f"{folder.name}: {outcome}", soft_wrap=True)
        results.append({"run": folder.name, "uri": report.uri, "mlflow_run_id": report.mlflow_run_id, "points": report.points,
                        "params": report.params, "artifacts": report.artifacts, "status": report.status})  # fmt: skip
    if failures:
        left = len(folders) - len(results)
        raise FedprivError(f"{failures[-1]}; {left} of {len(folders)} runs not sent, their records are kept")
    return {"runs": results}
