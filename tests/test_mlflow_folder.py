"""The folder ``mlflow/`` is an MLflow project and never hides the package ``mlflow``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def say(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_import_mlflow_from_the_root_finds_the_package() -> None:
    version, file = say("import sys; assert sys.path[0] == ''; import mlflow; print(mlflow.__version__, mlflow.__file__)")
    assert version[0].isdigit()
    assert "site-packages" in file


def test_the_root_at_the_head_of_the_path_changes_nothing() -> None:
    # As `python -m pytest` puts it there. Finding the package is enough: importing it takes seconds.
    find = "from importlib.util import find_spec; print(find_spec('mlflow').origin)"
    (origin,) = say(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {find}")
    assert "site-packages" in origin


def test_the_folder_is_no_package() -> None:
    assert not list((ROOT / "mlflow").rglob("*.py"))


def test_mlproject_has_the_entry_points() -> None:
    project = yaml.safe_load((ROOT / "mlflow" / "MLproject").read_text())
    assert set(project["entry_points"]) == {"main", "train", "attack", "audit", "experiment"}
    assert (ROOT / "mlflow" / project["python_env"]).is_file()
    for entry in project["entry_points"].values():
        assert "fedpriv " in entry["command"]
        entry["command"].format(**dict.fromkeys(entry["parameters"], "x"))  # every placeholder is a parameter


def test_mlflow_reads_the_project() -> None:
    from mlflow.projects._project_spec import load_project

    project = load_project(str(ROOT / "mlflow"))  # type: ignore[no-untyped-call]
    command = project.get_entry_point("train").compute_command({"method": "fedavg"}, None)
    assert command == "cd .. && fedpriv train --method fedavg --dataset digits --rounds 30 --seed 0"
