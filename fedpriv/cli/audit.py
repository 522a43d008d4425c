"""``fedpriv audit``: what runs gave away, as a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, run_folders


@command(main, "audit")
@click.argument("runs", metavar="RUN [RUN…]", nargs=-1, required=True)
@click.option("--messages", default=3, show_default=True, help="Messages of each run that are attacked.")
@click.option("--label-shadows", default=60, show_default=True, help="Turns played to learn what label sets look like; 0: none.")
@click.option(
    "--membership-shadows", default=32, show_default=True, help="Turns played for each client; 0: no membership inference."
)
@click.option(
    "--singles",
    default=24,
    show_default=True,
    help="Clients with a single image that optimising attackers are tried on at most; 0 of 72 leaves 5 % open, 0 of 24 14 %.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the attacks.")
@click.option("--workers", type=click.IntRange(1), help="Processes; default: one a run, as many as there are cores.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Another folder for the report than `audit` in each run."
)
@click.option("--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of the runs.")
def audit(runs: tuple[str, ...], workers: int | None, output: Path | None, runs_dir: Path, **options: int) -> dict[str, Any]:
    """Report what runs gave away.

    Attacks what the clients really sent (`fedpriv train --keep-payloads` says which messages a run keeps) and writes one page, as
    HTML, Markdown and JSON: what left the clients, what attackers made of it, what is known of labels and membership, what the
    defences cost, and what may be said. MLflow gets a copy with each run.

    \b
    Example: fedpriv audit runs/20260131-120000-mpfedcon-digits-s0-1a2b
             fedpriv audit runs/*-fedavg-* --output report
    """
    import torch

    from fedpriv.audit import report
    from fedpriv.audit.run_audit import AuditOptions
    from fedpriv.tracking import TrackingError, sync, target_uri

    torch.set_num_threads(1)
    chosen = AuditOptions(**options)
    folders = run_folders(runs, runs_dir)
    told = console()
    processes = min(len(folders), workers or os.cpu_count() or 1)
    asked = click.get_current_context().command_path + " " + " ".join(runs)
    audited = report.audit(folders, chosen, asked, processes, lambda text: told.print(text, soft_wrap=True, markup=False))
    places = [*([output] if output else []), *(folder / "audit" for folder in folders)]
    for place in places:
        report.write(audited, place)
    for folder in folders:
        if target_uri(folder) != "none":
            try:
                sync(folder)
            except TrackingError as error:
                told.print(f"{error}; `fedpriv sync {folder}` sends the report later", soft_wrap=True, markup=False)
    for run in audited.findings["runs"]:
        told.print(f"\n[bold]{run['name']}[/]", soft_wrap=True)
        for sentence in run["verdict"]:
            told.print(f"  {sentence}", soft_wrap=True, markup=False)
    told.print(f"\nreport: {places[0] / 'audit.html'}", soft_wrap=True, markup=False)
    return audited.findings | {"report": str(places[0] / "audit.html")}
