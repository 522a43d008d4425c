"""Functions of many problems at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.gradients.batching import vmap_or_loop

OTHERWISE = [pytest.param(options, marks=pytest.mark.slow) for options in ({"reduction": "sum"}, {"label_smoothing": 0.1})]
"""Options with which torch computes it, which first imports sympy."""


@pytest.mark.parametrize("options", [{}, {"ignore_index": 2}, *OTHERWISE], ids=str)
@pytest.mark.parametrize(("shape", "of_classes"), [((3, 5), (3,)), ((5,), ()), ((3, 5, 2), (3, 2))], ids=str)
def test_cross_entropy_is_that_of_each_problem_alone(
    shape: tuple[int, ...], of_classes: tuple[int, ...], options: dict[str, Any]
) -> None:
    noise = torch.Generator().manual_seed(0)
    logits = torch.randn(4, *shape, generator=noise, dtype=torch.float64, requires_grad=True)
    classes = torch.randint(2, (4, *of_classes), generator=noise)
    classes.view(-1)[0] = 2  # ignored by one of the options, if the problem has another sample

    def loss(given: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(given, labels, **options)

    together = vmap_or_loop(loss, logits, classes)
    alone = torch.stack([loss(given, labels) for given, labels in zip(logits, classes, strict=True)])
    torch.testing.assert_close(together, alone, equal_nan=True)
    gradients = (torch.autograd.grad(losses.nansum(), logits)[0] for losses in (together, alone))
    torch.testing.assert_close(*gradients, equal_nan=True)
