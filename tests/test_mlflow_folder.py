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


@pytest.mark.parametrize("head", ["", str(ROOT)])
def test_from_the_root_the_package_is_found(head: str) -> None:
    """The root is the head of the path as ``python -c`` and as ``python -m pytest`` put it there."""
    # Finding the package is enough: importing it takes seconds.
    find = "from importlib.util import find_spec; print(find_spec('mlflow').origin)"
    (origin,) = say(f"import sys; assert sys.path[0] == ''; sys.path[0] = {head!r}; {find}")
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


@pytest.mark.slow
def test_mlflow_reads_the_project() -> None:
    from mlflow.projects._project_spec import load_project

    project = load_project(str(ROOT / "mlflow"))  # type: ignore[no-untyped-call]
    command = project.get_entry_point("train").compute_command({"method": "fedavg"}, None)
    assert command == "cd .. && fedpriv train --method fedavg --dataset digits --rounds 30 --seed 0"
