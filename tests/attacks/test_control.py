"""The cache of controls: what is part of its key, and that no cache is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpriv.attacks.lab import control as module
from fedpriv.attacks.lab.control import Control, cached_controls


@dataclass(frozen=True)
class Guess:
    steps: int = 1


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIV_CONTROLS", str(tmp_path / "cache"))


def computed(attack: object, *facts: object) -> bool:
    """Whether the controls had to be computed."""
    calls = []

    def compute() -> list[Control]:
        calls.append(1)
        return [Control("positive", True, "as it should be", 1.5)]

    assert cached_controls(attack, *facts, compute=compute) == (Control("positive", True, "as it should be", 1.5),)
    return bool(calls)


def test_the_second_time_they_are_read() -> None:
    assert computed(Guess(), 0)
    assert not computed(Guess(), 0)


def test_options_setting_and_code_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    computed(Guess(), 0)
    assert computed(Guess(steps=2), 0)
    assert computed(Guess(), 1)
    monkeypatch.setattr(module, "code", lambda: "another version")
    assert computed(Guess(), 0)
    monkeypatch.setattr(module, "_source", lambda file: "a plug-in that was changed")
    assert computed(Guess(), 0)


def test_a_damaged_file_is_computed_again() -> None:
    computed(Guess())
    (file,) = module.folder().iterdir()
    file.write_text('[{"name": "positive", "pass')
    assert computed(Guess())
    assert not computed(Guess())


def test_without_a_cache_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPRIV_CONTROLS", str(tmp_path / "file"))
    assert computed(Guess())
    assert computed(Guess())
