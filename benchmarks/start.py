"""Start-up times: ``--help``, ``methods``, ``train`` with and without MLflow, and the quick start.

Each is a fresh process. Reports wall seconds, CPU seconds (user and system, with children that it waits for), both also as ratios
to ``import torch``, and the number of imported modules; medians over some starts. ``fedpriv train`` on the built-in digits is
timed until its first round is shown, and to its end without tracking, with a new MLflow store, and with an old one. The floor of
the quick start is ``import torch`` and its SGD steps on the cross-entropy in a bare PyTorch loop. A background process sends
data to MLflow; its CPU time is not counted, and the next start waits for its end. The quick start uses the cores that it may use,
which the other commands are too short for.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from machine import facts, parser_of, report, spread

UNTIL = """
import os, re, sys, time
class FirstRound:
    'The process ends where the line of the first round is shown.'
    def __init__(self, stream): self.stream, self.shown = stream, ''
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        self.shown += text
        if re.search(r'round 1/2 .*accuracy', self.shown):
            print('modules', len(sys.modules), file=self.stream, flush=True)
            os._exit(0)
        return len(text)
sys.stderr = FirstRound(sys.stderr)
"""
COUNT = "import sys, atexit; atexit.register(lambda: print('modules', len(sys.modules), file=sys.stderr)); "
BARE = """
import torch
from torch import nn
from torch.nn import functional as F
torch.set_num_threads(1)
encoder = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
images, labels = torch.randn(72, 64).split(10), torch.randint(0, 10, (72,)).split(10)
for update in range(30 * 10):  # rounds, participants
    for part, epochs in (head, 10), (encoder, 5):
        head.requires_grad_(part is head)
        optimiser = torch.optim.SGD(part.parameters(), lr=1e-3, momentum=0.5)
        with torch.no_grad():
            inputs = [encoder(x) for x in images] if part is head else images
        for epoch in range(epochs):
            for x, y in zip(inputs, labels):
                optimiser.zero_grad()
                F.cross_entropy(head(x if part is head else encoder(x)), y).backward()
                optimiser.step()
"""
CLI = COUNT + "from fedpriv.cli import main; main({words!r}, standalone_mode=True)"


def commands(folder: Path, repeat: int) -> dict[str, str]:
    """The code of each process, by name."""
    tracked = folder / "tracked"
    untracked = ["--set", "tracking.uri=none", "--runs-dir", str(folder / "untracked")]
    two = ["train", "--rounds", "2"]
    words = {
        "fedpriv --help": ["--help"],
        "fedpriv methods": ["methods"],
        "train --rounds 1": ["train", "--rounds", "1", *untracked],
        "train --rounds 2": [*two, *untracked],
        "train --rounds 2, new MLflow store": [*two, "--runs-dir", str(tracked / f"new{repeat}")],
        "train --rounds 2, MLflow store that is there": [*two, "--runs-dir", str(tracked / "new0")],
    }
    quick_start = ["train", "--method", "mpfedcon", "--runs-dir", str(tracked / f"quick{repeat}")]
    return {
        "python": COUNT + "pass",
        "import torch": COUNT + "import torch",
        **{k: CLI.format(words=v) for k, v in words.items()},
        "train, until the first round": UNTIL + CLI.format(words=[*two, *untracked]),
        "the quick start's SGD steps in bare PyTorch": COUNT + BARE,
        "the quick start": CLI.format(words=quick_start),
    }


def measured(code: str) -> tuple[float, float, int]:
    """Seconds, CPU seconds and imported modules of one process."""
    left_out = ("MLFLOW_TRACKING_URI", "PYTHONDONTWRITEBYTECODE")  # without bytecode every start would compile all modules
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
        encoding="utf-8",
    )
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    if done.returncode:
        sys.exit(done.stderr)
    modules = [line for line in done.stderr.splitlines() if line.startswith("modules ")]
    return seconds, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, int(modules[-1].split()[1])


def wait_for_copies(folder: Path) -> None:
    """Until every tracked run is in its MLflow store."""
    deadline = time.monotonic() + 300
    for run in {file.parent for file in (folder / "tracked").glob("*/*/run.json")}:
        copied = run / "tracking.json"
        while '"FINISHED"' not in (copied.read_text(encoding="utf-8") if copied.exists() else ""):
            if time.monotonic() > deadline:
                sys.exit(f"{run} was not sent to MLflow")
            time.sleep(0.1)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        starts: dict[str, list[tuple[float, float, int]]] = {}
        for repeat in range(1 + options.repeats):  # the first fills the disk's cache
            for name, code in commands(Path(folder), repeat).items():
                start = measured(code)
                wait_for_copies(Path(folder))
                if repeat:
                    starts.setdefault(name, []).append(start)
    torch_seconds, torch_cpu, _ = zip(*starts["import torch"], strict=True)
    rows = {}
    for name, of in starts.items():
        seconds, cpu, modules = zip(*of, strict=True)
        rows[name] = {
            "seconds": spread(seconds),
            "times_importing_torch": spread([a / b for a, b in zip(seconds, torch_seconds, strict=True)]),
            "cpu_seconds": spread(cpu),
            "cpu_times_importing_torch": spread([a / b for a, b in zip(cpu, torch_cpu, strict=True)]),
            "modules": int(median(modules)),
        }
        row = {key: value["median"] if isinstance(value, dict) else value for key, value in rows[name].items()}
        print(
            f"{name}: {row['seconds']:.2f} s ({row['times_importing_torch']:.2f} times `import torch`), "
            f"{row['cpu_seconds']:.2f} CPU s ({row['cpu_times_importing_torch']:.2f} times), {row['modules']} modules"
        )
    results = {"benchmark": "start", **facts(("fedpriv", "torch")), "repeats": options.repeats, "commands": rows}
    report(results, options.json)


if __name__ == "__main__":
    main()
