"""Calls in forked processes: their results in order, and what goes wrong in one."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch

from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import forked


def raises(error: Exception) -> None:
    raise error


def test_results_come_in_order_from_other_processes() -> None:
    found = forked([lambda number=number: (number, os.getpid()) for number in range(5)], 2)  # type: ignore[misc]
    assert [number for number, _ in found] == list(range(5))
    assert os.getpid() not in {process for _, process in found}


def test_one_at_a_time_is_here() -> None:
    assert forked([os.getpid, os.getpid], 1) == [os.getpid()] * 2


def test_what_a_call_raises_is_raised_here() -> None:
    with pytest.raises(UsageError, match="its own words"):
        forked([os.getpid, partial(raises, UsageError("its own words"))], 2)


def test_a_process_that_ends_has_no_result() -> None:
    with pytest.raises(FedprivError, match="exit code 7"):
        forked([lambda: os._exit(7), os.getpid], 2)


def test_tensors_outlive_the_process_that_made_them() -> None:
    found = forked([partial(torch.full, (1000,), float(number)) for number in range(20)], 4)
    assert [float(one.mean()) for one in found] == list(range(20))
