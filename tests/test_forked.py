"""Calls in forked processes: their results in order, and what goes wrong in one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import forked, forked_in_order


def raises(error: Exception) -> None:
    raise error


def test_results_come_in_order_from_other_processes() -> None:
    results = forked([lambda number=number: (number, os.getpid()) for number in range(5)], 2)  # type: ignore[misc]
    assert [number for number, _ in results] == list(range(5))
    assert os.getpid() not in {process for _, process in results}


COMPUTED = """
import torch
from fedpriv.processes import forked
torch.set_num_threads(2)
total = lambda: float(torch.ones(1_000_000).exp().sum())
total()
print(len(forked([total, total], 2)), torch.get_num_threads())
"""


def test_no_fork_waits_for_threads_with_which_its_parent_has_computed() -> None:
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", COMPUTED], env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["2", "2"], done.stderr


def test_those_that_still_run_are_killed_when_no_more_results_are_wanted() -> None:
    reading, writing = os.pipe()

    def late() -> None:
        os.write(writing, b"begun ")
        time.sleep(60)
        os.write(writing, b"ended")

    results = forked_in_order([os.getpid, late, late], 2)
    assert next(results) != os.getpid()
    assert os.read(reading, 6) == b"begun "
    results.close()
    os.close(writing)  # all processes that could write are gone, so the pipe is at its end
    assert os.read(reading, 100) in (b"", b"begun ") and os.read(reading, 100) == b""


def test_one_at_a_time_is_here() -> None:
    assert forked([os.getpid, os.getpid], 1) == [os.getpid()] * 2


def test_what_a_call_raises_is_raised_here() -> None:
    with pytest.raises(UsageError, match="its own words"):
        forked([os.getpid, partial(raises, UsageError("its own words"))], 2)


def test_a_process_that_ends_has_no_result() -> None:
    with pytest.raises(FedprivError, match="exit code 7"):
        forked([lambda: os._exit(7), os.getpid], 2)


def test_tensors_outlive_the_process_that_made_them() -> None:
    results = forked([partial(torch.full, (1000,), float(number)) for number in range(20)], 4)
    assert [float(tensor.mean()) for tensor in results] == list(range(20))
