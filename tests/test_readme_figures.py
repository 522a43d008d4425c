"""Figures of the README and the pages that a change of an attack would make wrong."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import fedpriv
from fedpriv.cli import main

ROOT = Path(__file__).parents[1]


def test_what_is_recovered_from_the_first_message_of_the_quick_start(tmp_path: Path) -> None:
    """The first round does not depend on how many follow."""
    run = fedpriv.train(method="mpfedcon", rounds=1, run_dir=tmp_path / "run", tracking_uri="none")
    arguments = [
        "attack",
        "analytic",
        "--run",
        str(run.folder.path),
        "--round",
        "1",
        "--output",
        str(tmp_path / "a.png"),
        "--json",
    ]
    result = json.loads(CliRunner().invoke(main, arguments).stdout.splitlines()[-1])
    rate = result["attackers"][0]["success"]["0.01"]
    phrase = f"{rate['successes']} of the {rate['n']} images"
    assert f"It recovers {phrase}" in (ROOT / "README.md").read_text()
    assert f"* {phrase} of a client, from its message of the first round" in (ROOT / "docs/start/audit-page.md").read_text()
