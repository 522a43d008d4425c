"""Attacks are imported as ``fedpriv.attacks``; a user's own package ``attacks`` does not hide them."""

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
def test_the_link_at_the_root_is_no_package_of_its_own() -> None:
    assert (ROOT / "attacks").resolve() == ROOT / "fedpriv" / "attacks"
    code = """
try:
    import attacks
except ImportError as error:
    print(error)
"""
    assert python("-c", code, cwd=ROOT) == "attacks is a link to fedpriv.attacks: import that\n"


@pytest.mark.slow
def test_beside_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "__init__.py").write_text("mine = 3\n")
    code = "import fedpriv.attacks, attacks; print(attacks.mine, fedpriv.attacks.invert.__module__)"
    code += "; from fedpriv.cli import main; main(['attacks'])"
    said = python("-c", code, cwd=tmp_path)
    assert said.startswith("3 fedpriv.attacks.api.inversion\n") and "dlg" in said
