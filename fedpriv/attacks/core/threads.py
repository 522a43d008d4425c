"""Blocks in which torch and BLAS compute with some number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def with_threads(number: int) -> Iterator[None]:
    """A block in which torch computes with a number of threads, on which its sums depend; restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """A block in which torch and the BLAS of NumPy and SciPy compute with one thread; usable as a decorator too.

    Nets and regressions as small as those of audits gain nothing from more. On busy cores, threads wait for each other at every
    operation: an evaluation of the reference victim took 7 ms of CPU time with one thread, and 490 ms with two.
    """
    with with_threads(1), threadpool_limits(1, user_api="blas"):
        yield
