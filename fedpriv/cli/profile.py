"""The profile of a run as a table, from ``profile/profile.json``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedpriv.cli.terminal import styled


def show(report: dict[str, Any], folder: Path, out: Console, imports: float) -> None:
    """Print the report that :meth:`fedpriv.simulation.profile.Profile.report` makes, and where the trace is.

    Args:
        imports: seconds that PyTorch and what else the command needs took to load.
    """
    total, rounds = report["total"], report["total"]["rounds"]
    if rounds:
        title = f"Time of {rounds} round{'s' if rounds > 1 else ''} by part"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for name in ("seconds", "share", "ms a round"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, seconds in total["categories"].items():
            table.add_row(name, *_numbers(seconds, total["seconds"], rounds))
        table.add_row(styled(("all", "bold")), *_numbers(total["seconds"], total["seconds"], rounds))
        out.print(table)
    parts = [f"imports {imports:.2f} s"]
    parts += [f"{when} {_divided(report[key])}" for key, when in (("start", "data and net"), ("end", "after the last round"))]
    if "unfinished" in report:
        parts.append(f"in the interrupted round {report['unfinished']['seconds']:.2f} s")
    parts += [f"{name} in a background thread {seconds:.2f} s" for name, seconds in report["beside"].items()]
    out.print("; ".join(parts), soft_wrap=True)
    trace = os.path.relpath(folder / "trace.json")
    out.print(f"The trace opens in https://ui.perfetto.dev or chrome://tracing: {trace}\n", soft_wrap=True)


def _divided(period: dict[str, Any]) -> str:
    """The time of a period, and how much of it some categories took."""
    named = [f"{name} {seconds:.2f}" for name, seconds in period["categories"].items() if seconds >= 0.01 and name != "other"]
    return f"{period['seconds']:.2f} s" + (f" (of which {', '.join(named)})" if named else "")


def _numbers(seconds: float, whole: float, rounds: int) -> tuple[str, str, str]:
    return f"{seconds:.3f}", f"{seconds / whole:.1%}", f"{1000 * seconds / rounds:.1f}"
