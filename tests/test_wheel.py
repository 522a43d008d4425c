"""``pip install`` of a clone: a complete wheel, which works outside the clone, beside a folder ``attacks`` of the user's."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UV = os.environ.get("UV", "uv")
USED = """
import attacks, fedpriv.cli, fedpriv.attacks.api
for command in ("train --rounds 2 --tracking-uri none", "attack analytic --n 1 --output found.png"):
    fedpriv.cli.main(command.split(), standalone_mode=False)
print(attacks.mine, fedpriv.cli.__file__, fedpriv.attacks.api.__file__)
"""  # in one process, as each takes seconds to import torch


def run(*command: object, cwd: Path) -> str:
    """What a command prints, without this session's paths; :class:`AssertionError` with its errors where it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDPRIV_", "MLFLOW_"))}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment, which finds the dependencies in this session's site-packages.

    It does not find an editable fedpriv there: of a folder that a ``.pth`` file adds, no ``.pth`` file is read.
    """
    env = tmp_path_factory.mktemp("wheel") / "env"
    run(UV, "venv", "--quiet", "--python", sys.executable, env, cwd=env.parent)
    own = run(env / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=env.parent)
    Path(own.strip(), "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return env


@pytest.fixture(scope="module")
def wheel(env: Path) -> Path:
    run(UV, "build", "--quiet", "--wheel", "--out-dir", env.parent, ROOT, cwd=env.parent)
    (wheel,) = env.parent.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(env: Path, wheel: Path) -> Path:
    """The folder of the environment's commands."""
    run(UV, "pip", "install", "--quiet", "--no-deps", "--python", env / "bin/python", wheel, cwd=env.parent)
    return env / "bin"


@pytest.mark.slow
def test_the_wheel_has_each_file_once_and_nothing_else(wheel: Path) -> None:
    names = sorted(name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name)
    files = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "fedpriv").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert names == sorted(files)
    assert {"fedpriv/py.typed", "fedpriv/attacks/py.typed", "fedpriv/attacks/attack.py"} <= set(names)
    assert {Path(name).suffix for name in names} >= {".py", ".typed", ".j2", ".css", ".txt"}


@pytest.mark.slow
def test_its_metadata_is_complete(wheel: Path) -> None:
    (record,) = (path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    metadata = importlib.metadata.PathDistribution(record)  # type: ignore[arg-type]
    here = importlib.metadata.distribution("fedpriv")
    assert (metadata.name, metadata.version) == ("fedpriv", here.version)
    assert {"Summary", "Keywords", "Classifier", "Requires-Python", "License-Expression"} <= set(metadata.metadata)
    assert metadata.metadata.get_payload() == (ROOT / "README.md").read_text()
    assert metadata.metadata["Description-Content-Type"] == "text/markdown"
    assert (record / "licenses" / metadata.metadata["License-File"]).read_text() == (ROOT / "LICENSE").read_text()
    assert [(entry.name, entry.group, entry.value) for entry in metadata.entry_points] == [
        ("fedpriv", "console_scripts", "fedpriv.__main__:main")
    ]
    assert metadata.requires and all("<" in requirement and ">=" in requirement for requirement in metadata.requires)


@pytest.mark.slow
def test_the_wheel_trains_and_attacks_outside_the_clone(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "__init__.py").write_text("mine = 3\n")
    version = importlib.metadata.version("fedpriv")
    assert run(installed / "fedpriv", "--version", cwd=tmp_path) == f"fedpriv, version {version}\n"
    mine, *modules = run(installed / "python", "-c", USED, cwd=tmp_path).splitlines()[-1].split()
    assert mine == "3" and all(Path(module).is_relative_to(installed.parent) for module in modules)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 1
    assert (tmp_path / "found.png").is_file()
