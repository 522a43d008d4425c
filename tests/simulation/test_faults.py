"""Wherever a call fails, or the process ends, a run ends in a line that says why, and goes on to the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.marks import quick_first
from tests.simulation.faults import ON_DISK, Faults, How, begin, go_on, judged, quick
from tests.simulation.small import computed

HOWS: tuple[How, ...] = ("once", "lasting", "killed")
STRIDE = 24  # of the allocations, of which there are many


def assert_harmless(tmp_path: Path, method: str, numbers: slice, **overrides: Any) -> None:
    """Each call that some ``numbers`` of the calls of a run are fails in one of three ways, in turn."""
    with quick():
        counted = Faults()
        assert begin(tmp_path / "whole", method, counted, **overrides).how == "finished"
        reference, wrong = computed(tmp_path / "whole"), {}
        on_disk = [number for number, kind in enumerate(counted.kinds, 1) if kind in ON_DISK]
        allocations = [number for number, kind in enumerate(counted.kinds, 1) if kind not in ON_DISK]
        for place, number in enumerate([*on_disk[numbers], *allocations[numbers][::STRIDE]]):
            faults = Faults(number, HOWS[place % len(HOWS)])
            outcome = judged(tmp_path / "run", method, reference, faults, **overrides)
            if outcome.wrong:
                wrong[f"call {number}, {counted.kinds[number - 1]}, {faults.how}"] = outcome.wrong
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert not wrong


@pytest.mark.parametrize("stride", quick_first([20, 3]))
def test_wherever_a_call_fails(tmp_path: Path, stride: int) -> None:
    assert_harmless(tmp_path, "fedrep", slice(None, None, stride), **{"train.rounds": 1, "method.head_epochs": 1})


@pytest.mark.slow
def test_wherever_a_call_of_a_longer_run_fails(tmp_path: Path) -> None:
    """Of a method with private states and a memory: FedAvg writes and allocates nothing that it does not."""
    assert_harmless(tmp_path, "mpfedcon", slice(None, None, 20), **{"train.rounds": 3})


@pytest.mark.slow
def test_wherever_a_call_of_a_resumed_run_fails(tmp_path: Path) -> None:
    """Which was killed where a checkpoint is half there."""
    with quick():
        counted = Faults()
        begin(tmp_path / "whole", "fedavg", counted)
        reference = computed(tmp_path / "whole")
        middle = [number for number, kind in enumerate(counted.kinds, 1) if kind == "write"][-9]
        begin(tmp_path / "half", "fedavg", Faults(middle, "killed"))
        shutil.copytree(tmp_path / "half", tmp_path / "run")
        rest = Faults()
        assert go_on(tmp_path / "run", "fedavg", rest).how == "finished"
        wrong = {}
        on_disk = [number for number, kind in enumerate(rest.kinds, 1) if kind in ON_DISK]
        for place, number in enumerate(on_disk[::5]):
            shutil.rmtree(tmp_path / "run")
            shutil.copytree(tmp_path / "half", tmp_path / "run")
            if wrong := judged(tmp_path / "run", "fedavg", reference, Faults(number, HOWS[place % len(HOWS)])).wrong:
                wrong[f"call {number}, {rest.kinds[number - 1]}"] = wrong
    assert on_disk and not wrong


@pytest.mark.parametrize("kind", ["write", "memory"])
def test_what_failed_is_said_in_a_line(tmp_path: Path, kind: str) -> None:
    with quick():
        counted = Faults()
        begin(tmp_path / "whole", "fedavg", counted)
        last = [number for number, happened in enumerate(counted.kinds, 1) if happened == kind][-20 if kind == "memory" else -4]
        ended = begin(tmp_path / "run", "fedavg", Faults(last))
    assert "No space left on device" in ended.how if kind == "write" else ended.how.startswith("out of memory; ")
    assert f"`fedpriv resume {tmp_path / 'run'}`" in ended.how and "\n" not in ended.how and not ended.crashed
