"""``fedpriv audit``: what runs leak, as a report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import RUNS_DIR, STORE, command, console, loading, run_folders, send
from fedpriv.cli.terminal import FilePath, styled
from fedpriv.untrusted.addresses import hide_secrets

if TYPE_CHECKING:
    from rich.console import Console


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """A time such as ``2m`` in seconds."""
    if text is None:
        return None
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise click.BadParameter(f"{text!r}: a time above 0, such as 90s, 2m or 1h")
    return seconds


def extent_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how much an audit attacks."""
    for name, default, text in (
        ("singles", 24, "Most single-image clients for attacks that optimise, in the first and the last round attacked; 0 of 72 "
                        "recovered bounds the rate at 5 %, 0 of 24 at 14 %."),
        ("membership-shadows", 32, "Shadow models per client of the last kept round, an even number of at least 4; at most 8 of "
                                   "earlier ones; 0: no such inference."),
        ("label-shadows", 60, "Shadow clients for inferring label sets; 0: none."),
        ("messages", 3, "Number of messages to attack in each run."),
    ):  # fmt: skip
        function = click.option(f"--{name}", default=default, show_default=True, help=text)(function)
    return function


@command(main, "audit")
@click.argument("runs", metavar="RUN [RUN…]", nargs=-1, required=True)
@extent_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the attacks.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes. Default: one for each core.")
@click.option(
    "--budget",
    callback=_seconds,
    metavar="TIME",
    help="Begin no attack on a run, no control and no shadow client after this time, such as 90s, 2m or 1h. "
    "What has begun goes on to its end.",
)
@click.option("--profile", is_flag=True, help="Show what took the audit's time.")
@click.option(
    "--output",
    type=FilePath(file_okay=False),
    help="Write the report to this folder, too; default: only to `audit` in each run.",
)
@click.option(
    "--fail-if",
    metavar="CONDITIONS",
    help="Exit with code 3 if a condition holds for a run: recovered, words (of texts), cells and attribute_advantage (of rows "
    "of a table), membership_auc, membership_tpr, epsilon, epsilon_measured, epsilon_excess or labels, such as "
    "'recovered>0.05,epsilon>8'; epsilon_excess>0: canaries show more than the privacy accountant claims.",
)
@click.option(
    "--model",
    metavar="NET",
    help="The net of a record that names none: package.module:Name, a class or function without arguments; or a program of "
    "torch.export, such as the record's net.pt2, which can run any code of its writer: load none that you do not trust.",
)
@STORE
@RUNS_DIR
def audit(
    runs: tuple[str, ...],
    workers: int | None,
    output: Path | None,
    fail_if: str | None,
    tracking_uri: str | None,
    runs_dir: Path,
    profile: bool,
    model: str | None,
    **options: Any,
) -> dict[str, Any]:
    """Audit what finished runs leak, or a recorded federation of another framework.

    Attacks the messages that clients really sent (`fedpriv train --keep-payloads` selects which ones a run keeps). Writes one
    report as HTML, Markdown and JSON: the contents of uploads, reconstructions, label and membership inference, the cost of
    defences, and the conclusions. MLflow gets a copy with each run. A report in a run's folder whose answer is worse stands; the
    new one is then written beside it.

    \b
    Example: fedpriv audit runs/20260131-120000-mpfedcon-digits-s0-1a2b
             fedpriv audit runs/*-fedavg-* --output report
             fedpriv audit RUN --fail-if "recovered>0,membership_auc>0.6"
    """
    loading()
    from fedpriv.audit.conditions import conditions
    from fedpriv.audit.public import audit_folders
    from fedpriv.audit.run_audit import AuditOptions
    from fedpriv.audit.sentences.overview import audited, thoroughness
    from fedpriv.errors import ConditionMet
    from fedpriv.processes import usable_cores
    from fedpriv.recorder.reader import is_record

    if fail_if is not None:
        conditions(fail_if)  # refuses what is no condition, before the audit
    chosen = AuditOptions(**options)
    folders = run_folders(runs, runs_dir, records=True)
    out = console()
    processes = workers or usable_cores()
    root = click.get_current_context().find_root()
    asked = hide_secrets(f"{root.info_name} {shlex.join(root.meta['fedpriv.given'])}")  # as it was typed
    places = [output] if output else []

    def say(text: str) -> None:
        out.print(text, soft_wrap=True)

    report, written = audit_folders(folders, chosen, asked, processes, places, say, say, model)
    page = written[0] / "audit.html"
    for folder in (folder for folder in folders if not is_record(folder)):
        send(folder, tracking_uri, "the report", out)
    for run in report.runs:
        answer = run.concluded
        out.print(styled("\n", (run.name, "bold"), ": ", (answer.words, "bold")), soft_wrap=True)
        facts = {"Audited": audited(run), "Title": run.about.title, "Owner": run.about.owner, "Data": run.about.data}
        facts["What to do"] = answer.change + (f"\n\n    {answer.command}\n" if answer.command else "")
        facts["How thorough"] = thoroughness(answer.coverage, chosen.budget) if answer.coverage else None
        for name, text in facts.items():
            if text is not None:
                out.print(f"  {name}: {text}", soft_wrap=True)
        for sentence in run.verdict:
            out.print(f"  {sentence}", soft_wrap=True)
        if profile:
            _show_times(run.seconds, out)
    out.print(f"\nreport: {page}", soft_wrap=True)
    if fail_if is not None and (why := report.met(fail_if)) is not None:
        raise ConditionMet(f"{why}; the report is {page}")
    return report.to_json() | {"report": str(page)}


def _show_times(seconds: Mapping[str, float], out: Console) -> None:
    """A table of CPU seconds by step, the longest first."""
    from rich.table import Table

    whole = sum(seconds.values()) or 1.0
    table = Table("step", "CPU s", "share", box=None)
    for step, spent in sorted(seconds.items(), key=lambda entry: -entry[1]):
        if spent >= 0.005 * whole:
            table.add_row(step, f"{spent:.1f}", f"{spent / whole:.0%}")
    out.print(table)
