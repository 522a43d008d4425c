"""``attacks`` and ``fedpriv.attacks`` are the same modules; a user's own package of that name hides neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(*args: str, cwd: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FEDPRIV_TRACKING": "none"}
    done = subprocess.run([sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_both_names_are_the_same_modules(tmp_path: Path) -> None:
    code = """
import attacks.core.by_name
from attacks.core import registry
from attacks import invert
import fedpriv.attacks, fedpriv.attacks.attack, fedpriv.attacks.api.inversion
assert attacks is fedpriv.attacks and registry is fedpriv.attacks.attack
assert invert is fedpriv.attacks.api.inversion.invert
assert registry.__name__ == registry.__spec__.name == "fedpriv.attacks.attack"
try:
    import attacks.nothing
except ModuleNotFoundError as error:
    print(error)
"""
    assert python("-W", "error::ImportWarning", "-c", code, cwd=tmp_path) == "No module named 'attacks.nothing'\n"


@pytest.mark.slow
def test_beside_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "__init__.py").write_text("mine = 3\n")
    code = "import fedpriv.attacks, attacks; print(attacks.mine, fedpriv.attacks.invert.__module__)"
    code += "; from fedpriv.cli import main; main(['attacks'])"
    said = python("-c", code, cwd=tmp_path)
    assert said.startswith("3 fedpriv.attacks.api.inversion\n") and "dlg" in said
