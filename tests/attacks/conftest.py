"""Fixtures of the attacks' tests."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedpriv.attacks.optimise.lbfgs import BatchedLbfgs


@pytest.fixture
def one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an L-BFGS step one iteration instead of twenty, for tests that need not recover anything."""
    monkeypatch.setattr("torch.optim.LBFGS", partial(torch.optim.LBFGS, max_iter=1))
    batched = "fedpriv.attacks.optimise.search.BatchedLbfgs"
    monkeypatch.setattr(batched, lambda function, x, options: BatchedLbfgs(function, x, replace(options, iterations=1)))
