"""Experiments in a git checkout run from a clean commit, which their results name."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_cells import write_cells
from made_results import write_yaml

from fedpriv.cli import main
from fedpriv.errors import UsageError
from fedpriv.experiments import read, read_leakage, run, run_cells, runner
from fedpriv.experiments.checkout import refuse_changes
from fedpriv.experiments.leakage import CellResult

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed checkout with an experiment of two runs, and code beside it; the experiment's YAML."""
    path = write_yaml(tmp_path / "paper", runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0, 1])
    (tmp_path / "code.py").write_text("lr = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all of it")
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the runs' processes by a line of Python."""
    return lambda code: monkeypatch.setattr(runner, "_FEDPRIV", f"exec({code!r})")


def test_a_changed_file_is_named_and_nothing_is_started(checkout: Path, started: Callable[[str], None]) -> None:
    started(f"open({str(checkout.with_name('started'))!r}, 'w')")
    code, runs = checkout.parent.parent / "code.py", checkout.parent.parent / "runs"
    code.write_text("lr = 2\n")
    done = CliRunner().invoke(main, ["experiment", "run", str(checkout), "--runs-dir", str(runs)])
    assert done.exit_code == 2 and "not committed: code.py" in done.stderr and "--allow-dirty" in done.stderr
    assert not runs.exists() and not checkout.with_name("started").exists()
    assert [outcome.state for outcome in run(read(checkout), runs, workers=0)] == ["left", "left"]  # collects, and starts nothing

    CliRunner().invoke(main, ["experiment", "run", str(checkout), "--runs-dir", str(runs), "--allow-dirty"])
    assert checkout.with_name("started").exists()


def test_a_change_while_the_first_run_trains_stops_the_second(checkout: Path, started: Callable[[str], None]) -> None:
    code = checkout.parent.parent / "code.py"
    started(f"open({str(code)!r}, 'w').write('lr = 3'); raise SystemExit('fedpriv: ended')")
    first, second = run(read(checkout), checkout.parent.parent / "runs")
    assert "ended" in (first.error or "") and "not committed: code.py" in (second.error or "")


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder is another checkout, with changes."""
    folder = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(folder)
    git(folder, "init", "-q")
    (folder / "own.txt").write_text("first")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "another")
    (folder / "own.txt").write_text("second")


def head(folder: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.usefixtures("elsewhere")
def test_a_run_names_the_commit_that_was_checked(checkout: Path, started: Callable[[str], None]) -> None:
    printed, runs = checkout.with_name("printed"), checkout.parent.parent / "runs"
    started(f"from fedpriv.storage.provenance import git_commit; open({str(printed)!r}, 'w').write(str(git_commit()))")
    run(read(checkout), runs, seeds=[0])
    assert printed.read_text() == head(checkout.parent)

    (checkout.parent.parent / "code.py").write_text("lr = 2\n")
    run(read(checkout), runs, seeds=[1], allow_dirty=True)
    assert printed.read_text() == f"{head(checkout.parent)}-dirty"


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_a_cell_names_the_commit_that_was_checked(checkout: Path) -> None:
    cell = {"images": {"n": 2}, "victim": {"masked": 0}, "attacker": {"name": "idlg-label"}}
    cells = read_leakage(write_cells(checkout.parent, cells={"a": cell}))
    git(checkout.parent, "add", "-A")
    git(checkout.parent, "commit", "-qm", "cells")
    assert [outcome.state for outcome in run_cells(cells)] == ["finished"]
    assert CellResult.load(cells.result_file("a")).git_commit == head(checkout.parent)


def test_leakage_cells_likewise(checkout: Path) -> None:
    cells = read_leakage(write_cells(checkout.with_name("cells"), cells={"a": {"attacker": {"name": "idlg-label"}}}))
    checkout.write_text(checkout.read_text() + "\n")
    with pytest.raises(UsageError, match=r"not committed: paper/tiny\.yaml;"):
        run_cells(cells)
    assert [outcome.state for outcome in run_cells(cells, workers=0)] == ["left"]


def test_an_experiment_that_no_commit_has_is_refused(checkout: Path) -> None:
    own = checkout.with_name("own.yaml")
    own.write_text(checkout.read_text())
    with pytest.raises(UsageError, match=r"not committed: own\.yaml;"):
        refuse_changes(own)
    refuse_changes(checkout)


def test_new_files_are_no_changes_and_staged_ones_are(checkout: Path) -> None:
    folder = checkout.parent.parent
    (folder / "notes.txt").write_text("new")
    (checkout.parent / "results").mkdir(exist_ok=True)
    (checkout.parent / "results" / "one.json").write_text("{}")
    refuse_changes(checkout)
    git(folder, "add", "notes.txt")
    with pytest.raises(UsageError, match=r"not committed: notes\.txt;"):
        refuse_changes(checkout)


def test_many_changes_are_counted(checkout: Path) -> None:
    folder = checkout.parent.parent
    for name in "abcde":
        (folder / name).write_text(name)
    git(folder, "add", "-A")
    with pytest.raises(UsageError, match="not committed: a, b, c and 2 more;"):
        refuse_changes(checkout)


def test_outside_a_checkout_there_is_nothing_to_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_changes(tmp_path / "x.yaml")
    monkeypatch.setenv("PATH", "")  # no git
    refuse_changes(tmp_path / "x.yaml")
