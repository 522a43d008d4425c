"""What an audit of the quick start takes, by stage: with an empty cache of controls, with the controls kept, and with a budget.

The quick start is trained once, without tracking; each audit is a command of its own on a copy of the run. The audits whose CPU
seconds are limited have one process, since two that share a core take longer for the same work; the one with a budget uses all
cores. The start is included, with Python's modules compiled, as they are from a user's second command on. Limits: 45 CPU s with
an empty cache, 20 with the controls kept, and with ``--budget 60s`` 75 s from the start to the end, on idle cores.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import facts, parser_of, report

CASES = {
    "empty cache of controls": ("--workers", "1"),
    "controls kept": ("--workers", "1"),
    "budget of 60 s, empty cache": ("--budget", "60s"),
}
CPU_LIMITS = {"empty cache of controls": 45.0, "controls kept": 20.0}
WALL_LIMITS = {"budget of 60 s, empty cache": 75.0}
FEDPRIV = "from fedpriv.cli import main; main()"


def run(*words: str, controls: Path) -> tuple[float, float]:
    """Wall seconds and CPU seconds of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = os.environ | {"FEDPRIV_CONTROLS": str(controls), "MLFLOW_TRACKING_URI": "none"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(controls.with_name("compiled"))}
    done = subprocess.run(
        [sys.executable, "-c", FEDPRIV, *words], capture_output=True, text=True, env=environment, encoding="utf-8"
    )
    if done.returncode:
        sys.exit(done.stderr)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    return seconds, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def audited(name: str, trained: Path, controls: Path) -> dict[str, Any]:
    """An audit's seconds, its stages' CPU seconds, and how many of its attacks the budget cut."""
    folder = trained.parent / name.replace(" ", "-")
    shutil.copytree(trained, folder)
    if name != "controls kept":
        shutil.rmtree(controls, ignore_errors=True)
    wall, cpu = run("audit", str(folder), *CASES[name], controls=controls)
    text = (folder / "audit" / "audit.json").read_text(encoding="utf-8")
    stages: dict[str, float] = json.loads(text)["runs"][0]["seconds"]
    return {"wall_seconds": round(wall, 1), "cpu_seconds": round(cpu, 1), "cut": text.count('"budget spent"'), "stages": stages}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="a case; default: all")
    options = parser.parse_args()
    rows, missed = dict[str, Any](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        trained, controls = Path(folder, "run"), Path(folder, "controls")
        run("train", "--method", "mpfedcon", "--tracking-uri", "none", "--run-dir", str(trained), controls=controls)
        shutil.copytree(trained, first := trained.with_name("first"))
        run("audit", str(first), "--budget", "1s", controls=controls)  # compiles the modules
        for name in options.only or CASES:
            rows[name] = row = audited(name, trained, controls)
            print(
                f"{name}: {row['cpu_seconds']} CPU s, {row['wall_seconds']} s, {row['cut']} attacks cut by a budget", flush=True
            )
            stages = sorted(row["stages"].items(), key=lambda stage: -stage[1])
            for stage, seconds in stages[:12]:
                print(f"  {seconds:6.1f}  {stage}")
            if row["cpu_seconds"] > CPU_LIMITS.get(name, row["cpu_seconds"]):
                missed.append(f"{name}: {row['cpu_seconds']} CPU s, and the aim is {CPU_LIMITS[name]:g}")
            if row["wall_seconds"] > WALL_LIMITS.get(name, row["wall_seconds"]):
                missed.append(f"{name}: {row['wall_seconds']} s, and the aim is {WALL_LIMITS[name]:g} on idle cores")
    report({"benchmark": "audit_stages", **facts(("fedpriv", "torch")), "cases": rows}, options.json, missed)


if __name__ == "__main__":
    main()
