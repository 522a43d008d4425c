"""No process outlives the one that started it, however that ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fedpriv import processes
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.processes import free_memory, usable_cores
from fedpriv.simulation import run
from tests.simulation.processes import Process, have_children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends them on Linux alone")
TINY = {
    "method": "fedavg",
    "data": {"name": "digits", "clients": 4},
    "train": {"rounds": 400, "participation": 0.5, "local_epochs": 1, "batch_size": 50},
    "eval": {"every": 100},
    "tracking": {"uri": "none"},
}


def descendants(pid: int) -> set[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if after_name[0] != "Z":
            parents[int(folder.name)] = int(after_name[1])
    descendants: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in descendants | {pid}} - descendants:
        descendants |= more
    return descendants


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true: object, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def killed_with(process: subprocess.Popen[bytes] | Process) -> None:
    """SIGKILL it; what it had started is gone soon after."""
    started = descendants(process.pid)
    assert started
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    wait_until(lambda: not any(map(is_there, started)), 120)


def test_a_command_ends_with_the_process_that_started_it() -> None:
    code = (
        "import subprocess, time; from fedpriv.processes import python_command;"
        "subprocess.Popen(python_command('import time; time.sleep(600)'), start_new_session=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: descendants(process.pid))
    time.sleep(1)  # until the child has said what it wants
    killed_with(process)


def test_a_command_whose_parent_is_gone_already_does_nothing(tmp_path: Path) -> None:
    code = f"from fedpriv.processes import die_with_parent; die_with_parent(1); open({str(tmp_path / 'x')!r}, 'w')"
    if os.getpid() != 1:
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
        assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_an_experiment_that_was_killed_goes_on(tmp_path: Path) -> None:
    file, runs_dir = tmp_path / "paper" / "tiny.yaml", tmp_path / "runs"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump({"title": "t", "base": TINY, "runs": {"a": {}}, "seeds": [0]}))
    command = ["experiment", "run", file, "--runs-dir", runs_dir]
    folder = runs_dir / "experiments" / "paper" / "tiny" / "a-s0"

    def rounds() -> int:
        metrics = folder / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    process = Process(tmp_path, *command)
    wait_until(lambda: rounds() > 3)
    killed_with(process)
    done = rounds()
    again = Process(tmp_path, *command)
    wait_until(lambda: rounds() > done + 3 or not is_there(again.pid))
    again.signal(signal.SIGINT)
    output = again.wait(60).out
    assert "FAILED" not in output and "interrupted" in output
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_the_processes_of_an_audit_end_with_it(tmp_path: Path) -> None:
    values = {"tracking.uri": "none", "train.rounds": 1, "train.local_steps": 2, "data.clients": 4, "method.name": "fedavg"}
    folders = [tmp_path / name for name in "ab"]
    run.start(load_config(None, values | {"run_dir": str(folders[0])}), tmp_path, lambda *_: None, lambda _: None, lambda _: None)
    shutil.copytree(folders[0], folders[1])
    process = Process(tmp_path, "audit", *folders, "--workers", 2, sabotage=have_children)
    wait_until(lambda: len(descendants(process.pid)) >= 3)  # two workers and what passes their progress on
    time.sleep(2)  # until each has said what it wants
    killed_with(process)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 16 GB of free memory, of whose cores this process may run on six, and its folders of control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(processes, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "_CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.delenv(processes.CORES, raising=False)
    written(tmp_path, {"proc/meminfo": "MemTotal:  9 kB\nMemAvailable:  16000000 kB\n"})
    return tmp_path


def written(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def test_cores_and_memory_are_those_of_the_machine_where_nothing_limits_them(machine: Path) -> None:
    assert (usable_cores(), free_memory()) == (6, 16_000_000 * 1024)


@pytest.mark.parametrize(
    ("cores", "files"),
    [
        (2, {"self/cgroup": "0::/a/b\n", "a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}),
        (1, {"self/cgroup": "0::/a\n", "a/cpu.max": "50000 100000\n"}),
        (6, {"self/cgroup": "0::/\n", "cpu.max": "max 100000\n"}),
        (3, {"self/cgroup": "4:cpuset:/\n3:cpu:/x\n", "cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"}),
        (6, {"self/cgroup": "3:cpu:/x\n", "cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}),
    ],
)
def test_cores_are_at_most_those_of_each_control_group(machine: Path, cores: int, files: dict[str, str]) -> None:
    written(machine, {f"{'proc' if name.startswith('self') else 'groups'}/{name}": text for name, text in files.items()})
    assert usable_cores() == cores


@pytest.mark.parametrize(
    "files",
    [
        {
            "self/cgroup": "0::/a\n", "a/memory.max": "5000\n", "a/memory.current": "3000\n",
            "a/memory.stat": "anon 1\ninactive_file 700\n",
        },
        {
            "self/cgroup": "4:memory:/a\n", "memory/a/memory.limit_in_bytes": "5000", "memory/a/memory.usage_in_bytes": "3000",
            "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 700\n",
        },
    ],
)  # fmt: skip
def test_memory_is_at_most_that_of_its_control_group(machine: Path, files: dict[str, str]) -> None:
    written(machine, {f"{'proc' if name.startswith('self') else 'groups'}/{name}": text for name, text in files.items()})
    assert free_memory() == 5000 - 3000 + 700


def test_cores_are_at_most_what_the_environment_says(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for said, cores in (("4", 4), ("64", 6)):
        monkeypatch.setenv(processes.CORES, said)
        assert usable_cores() == cores
    for wrong in ("0", "-1", "two", "", "1.5", "\u0664"):
        monkeypatch.setenv(processes.CORES, wrong)
        with pytest.raises(UsageError, match=r"FEDPRIV_CORES=.*1 or more"):
            usable_cores()
