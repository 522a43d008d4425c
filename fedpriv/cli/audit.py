"""``fedpriv audit``: what runs leak, as a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import STORE, command, console, run_folders, send
from fedpriv.cli.terminal import FilePath, styled


@command(main, "audit")
@click.argument("runs", metavar="RUN [RUN…]", nargs=-1, required=True)
@click.option("--messages", default=3, show_default=True, help="Number of messages to attack in each run.")
@click.option("--label-shadows", default=60, show_default=True, help="Shadow clients for inferring label sets; 0: none.")
@click.option("--membership-shadows", default=32, show_default=True, help="Shadow models per client; 0: no membership inference.")
@click.option(
    "--singles",
    default=24,
    show_default=True,
    help="Most single-image clients that optimising attacks get; 0 recovered of 72 bounds the rate at 5 %, of 24 at 14 %.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the attacks.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes; default: one per run, at most one per core.")
@click.option(
    "--output",
    type=FilePath(file_okay=False),
    help="Write the report to this folder, too; default: only to `audit` in each run.",
)
@click.option(
    "--fail-if",
    metavar="CONDITIONS",
    help="Exit with 3 if one holds of a run: recovered, membership_auc, epsilon or labels, such as 'recovered>0.05,epsilon>8'.",
)
@STORE
@click.option("--runs-dir", type=FilePath(), default=Path("runs"), show_default=True, help="Folder of the runs.")
def audit(
    runs: tuple[str, ...],
    workers: int | None,
    output: Path | None,
    fail_if: str | None,
    tracking_uri: str | None,
    runs_dir: Path,
    **options: int,
) -> dict[str, Any]:
    """Audit what finished runs leak.

    Attacks the messages that clients really sent (`fedpriv train --keep-payloads` selects which ones a run keeps). Writes one
    report as HTML, Markdown and JSON: the contents of uploads, reconstructions, label and membership inference, the cost of
    defences, and the conclusions. MLflow gets a copy with each run.

    \b
    Example: fedpriv audit runs/20260131-120000-mpfedcon-digits-s0-1a2b
             fedpriv audit runs/*-fedavg-* --output report
             fedpriv audit RUN --fail-if "recovered>0,membership_auc>0.6"
    """
    import torch

    from fedpriv.audit import report
    from fedpriv.audit.conditions import conditions, first_met
    from fedpriv.audit.run_audit import AuditOptions
    from fedpriv.errors import ConditionMet

    wanted = conditions(fail_if) if fail_if is not None else []
    torch.set_num_threads(1)
    chosen = AuditOptions(**options)
    folders = run_folders(runs, runs_dir)
    out = console()
    processes = min(len(folders), workers or os.cpu_count() or 1)
    asked = click.get_current_context().command_path + " " + " ".join(runs)
    audited = report.audit(folders, chosen, asked, processes, lambda text: out.print(text, soft_wrap=True))
    places = [*([output] if output else []), *(folder / "audit" for folder in folders)]
    for place in places:
        report.write(audited, place)
    for folder in folders:
        send(folder, tracking_uri, "the report", out)
    for run in audited.findings["runs"]:
        out.print(styled("\n", (run["name"], "bold"), ": ", (run["answer"]["words"], "bold")), soft_wrap=True)
        change = run["answer"]["change"]
        out.print(f"  What would change it: {change['sentence']} {change['command'] or ''}", soft_wrap=True)
        for sentence in run["verdict"]:
            out.print(f"  {sentence}", soft_wrap=True)
    out.print(f"\nreport: {places[0] / 'audit.html'}", soft_wrap=True)
    if (why := first_met(audited.findings["runs"], wanted)) is not None:
        raise ConditionMet(f"{why}; the report is {places[0] / 'audit.html'}")
    return audited.findings | {"report": str(places[0] / "audit.html")}
