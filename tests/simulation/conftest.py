"""Runs that several tests compare with or start from; each is made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedpriv.cli import main
from fedpriv.simulation import run
from tests.simulation.small import SILENT, config, play

Reference = Callable[..., Path]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """``reference("fedavg", **{"train.rounds": 5})``: the folder of a run that nothing happened to. Do not write into it."""
    runs: dict[str, Path] = {}

    def get(method: str, **overrides: Any) -> Path:
        key = json.dumps([method, overrides])
        if key not in runs:
            runs[key] = tmp_path_factory.mktemp(method) / "run"
            play(runs[key], method, **overrides)
        return runs[key]

    return get


class Stopped(Exception):
    """Ends a run from the outside."""


@pytest.fixture(scope="session")
def _halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halfway") / "run"

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run.start(config("mpfedcon", **HALFWAY, run_dir=str(folder)), folder.parent, SILENT[0], stop, SILENT[2])
    return folder


HALFWAY = {"train.rounds": 5}


@pytest.fixture
def halfway(_halfway: Path, tmp_path: Path) -> Path:
    """The folder of a run of ``mpfedcon`` over 5 rounds that stopped after the third; one's own copy."""
    return Path(shutil.copytree(_halfway, tmp_path / "halfway"))


@pytest.fixture
def whole(reference: Reference) -> Path:
    """The folder of the run that :func:`halfway` is the beginning of."""
    return reference("mpfedcon", **HALFWAY)


@pytest.fixture
def fedpriv() -> Callable[..., Result]:
    """``fedpriv("resume", folder)``: a command in this process."""
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])
