"""What befalls a whole machine: a power cut, a home that cannot be written, a clock that goes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpriv.storage.run_folder import RunFolder
from tests.deploy.deployed import REAL, SMALL, Deployment, deployed, same
from tests.simulation.small import play

pytestmark = REAL
ALONE: dict[str, Any] = {"data.clients": 1, "data.limit": 100}
HOUR = 3600


class PowerCut(Exception):
    """Every process is gone."""


def test_a_run_continues_after_a_power_cut_of_all_machines(tmp_path: Path) -> None:
    """Server and clients are killed at once. Once they are started again, the run goes on by itself, with the same bits."""
    from fedpriv.deploy.flower.demo import running_deployment
    from fedpriv.deploy.flower.requests import Request

    settings: dict[str, Any] = {"data.clients": 2, "train.rounds": 4}
    play(tmp_path / "whole", "scaffold", **{**SMALL, **settings})
    with deployed(tmp_path / "d", 2) as before:

        def cut(record: dict[str, Any]) -> None:
            if record["round"] == 2:
                for supervisor in before.supervisors:
                    for pid in supervisor.pids().values():
                        os.kill(pid, signal.SIGKILL)
                raise PowerCut

        with pytest.raises(PowerCut):
            before.play("cut", "scaffold", cut, **settings)
    with running_deployment(before.paths) as (link, look, supervisors):
        request = Request.latest(before.paths.requests)["cut"]
        assert Deployment(before.paths, link, look, supervisors).follow(request, 0)
    same(request.run_dir, tmp_path / "whole")


@pytest.fixture(scope="module")
def shift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], None]]:
    """Shifts the clock of the processes that are started from now on (seconds)."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler for a clock that can be shifted")
    folder = tmp_path_factory.mktemp("clock")
    library, file = folder / "clock.so", folder / "shift"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)

    def to(seconds: int) -> None:
        with file.open("r+b" if file.exists() else "wb") as opened:  # not another file: it is mapped
            opened.write(seconds.to_bytes(8, "little", signed=True))

    to(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FEDPRIV_TEST_CLOCK", str(file))
        yield to


@pytest.fixture(scope="module")
def poor(shift: Callable[[int], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment of one client, in a home in which nothing can be written, and with a clock that can be shifted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", os.devnull)
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
            patch.delenv(name, raising=False)
        with deployed(tmp_path_factory.mktemp("poor") / "d", 1) as running:
            yield running


def test_a_run_needs_no_home_that_can_be_written(tmp_path: Path, poor: Deployment) -> None:
    play(tmp_path / "whole", "fedavg", **{**SMALL, **ALONE})
    same(poor.play("homeless", "fedavg", **ALONE), tmp_path / "whole")


def test_a_clock_that_goes_back_by_an_hour_changes_nothing(
    tmp_path: Path, poor: Deployment, shift: Callable[[int], None]
) -> None:
    """Of a machine, in the middle of a run."""
    settings: dict[str, Any] = {**ALONE, "train.rounds": 4}
    play(tmp_path / "whole", "fedavg", **{**SMALL, **settings})

    def back(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            shift(-HOUR)

    try:
        run = poor.play("back", "fedavg", back, **settings)
    finally:
        shift(0)
    same(run, tmp_path / "whole")
    times = [record["time_ms"] for record in RunFolder.open(run).records()]
    assert times[-1] < times[0], "the clock has gone back"
