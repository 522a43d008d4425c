"""How long one waits for the first answer: ``--help``, ``methods``, and the first round of the main job, each a fresh process.

CPU seconds of the process and its children (user and system), also as a ratio to ``import torch``, and how many modules
were imported; the median of some starts. The main job is ``fedpriv train`` for one round on the embedded digits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from machine import facts, spread

COUNT = "import sys, atexit; atexit.register(lambda: print('modules', len(sys.modules), file=sys.stderr)); "
CLI = COUNT + "from fedpriv.cli import main; main({words!r}, standalone_mode=True)"


def commands(folder: Path) -> dict[str, str]:
    """What each process runs."""
    train = ["train", "--rounds", "1", "--set", "tracking.uri=none", "--runs-dir", str(folder)]
    words = {"fedpriv --help": ["--help"], "fedpriv methods": ["methods"], "fedpriv train --rounds 1": train}
    imports = {name: COUNT + f"import {name}" for name in ("torch",)}
    return {
        "python": COUNT + "pass",
        **{f"import {k}": v for k, v in imports.items()},
        **{k: CLI.format(words=v) for k, v in words.items()},
    }


def measured(code: str) -> tuple[float, int]:
    """CPU seconds and imported modules of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stderr)
    modules = [line for line in done.stderr.splitlines() if line.startswith("modules ")]
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, int(modules[-1].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        codes = commands(Path(folder))
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in codes}
        for repeat in range(1 + options.repeats):  # the first fills the disk's cache
            for name, code in codes.items():
                one = measured(code)
                if repeat:
                    found[name].append(one)
    seconds = {name: [cpu for cpu, _ in of] for name, of in found.items()}
    rows = {
        name: {
            "cpu_seconds": spread(seconds[name]),
            "times_importing_torch": spread([a / b for a, b in zip(seconds[name], seconds["import torch"], strict=True)]),
            "modules": int(median(modules for _, modules in of)),
        }
        for name, of in found.items()
    }
    for name, row in rows.items():
        cpu, times = row["cpu_seconds"], row["times_importing_torch"]
        print(f"{name}: {cpu['median']:.2f} CPU s, {times['median']:.2f} times `import torch`, {row['modules']} modules")
    results = {"benchmark": "start", **facts(("fedpriv", "torch")), "repeats": options.repeats, "commands": rows}
    print(f"on {results['processor']}, load {results['load_average']}, Python {results['python']}, {results['versions']}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
