"""Audits of tiny runs end as they ended when they were stored.

On the machine that stored them, word for word; on another one, whose sums may round differently, with the same answer and keys.
``pytest tests/fingerprints/test_audits.py -m "" --store`` renews the files after a change that is meant to alter them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audit.conftest import hardly_any_steps, one_iteration
from tests.fingerprints.audits import AUDITS, FOLDER, form, take
from tests.fingerprints.taking import machine
from tests.marks import slow_but

__all__ = ["hardly_any_steps", "one_iteration"]


@pytest.mark.usefixtures("hardly_any_steps")
@pytest.mark.parametrize("name", slow_but(["plain"], AUDITS), ids=list(AUDITS))
def test_an_audit_ends_as_it_ended(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    taken, path = take(name, tmp_path), FOLDER / f"{name.replace(' ', '-')}.json"
    if request.config.getoption("--store"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"machine": machine(), **taken}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    assert taken["answer"] == expected["answer"]
    if expected.pop("machine") == machine():
        assert taken["findings"] == expected["findings"]
        assert taken["page"] == expected["page"]
    else:
        assert form(taken["findings"]) == form(expected["findings"])


def test_no_audit_is_left_of_a_run_that_is_no_more() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {name.replace(" ", "-") for name in AUDITS}
