"""SGD on slices of rows is torch's."""

from __future__ import annotations

import pytest
import torch

from fedpriv.client.sgd import SGD, step_together


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_torchs_to_the_bit(momentum: float, dtype: torch.dtype) -> None:
    """Of two clients with rates of their own, each of which decays a part of its row."""
    draw = torch.Generator().manual_seed(0)
    rows, grads = torch.randn((2, 2, 1003), generator=draw, dtype=dtype)
    theirs = [torch.nn.Parameter(part.clone()) for row in rows for part in row.split([900, 103])]
    rates = (0.1, 0.03)
    groups = [{"params": theirs[i : i + 1], "lr": rates[i // 2], "weight_decay": (0.01, 0.0)[i % 2]} for i in range(4)]
    expected = torch.optim.SGD(groups, momentum=momentum, fused=True)
    ours = []
    for row, grad, lr in zip(rows, grads, rates, strict=True):
        ours.append(SGD([(row[:900], grad[:900], 0.01), (row[900:], grad[900:], 0.0)], lr, momentum))
    for number in range(4):
        grads.copy_(torch.randn(grads.shape, generator=draw, dtype=dtype))
        for parameter, grad in zip(theirs, (part for row in grads for part in row.split([900, 103])), strict=True):
            parameter.grad = grad.clone()
        expected.step()
        if number == 2:
            for optimiser in ours:  # one after another is the same
                optimiser.step()
        else:
            step_together(ours)
        assert torch.equal(rows.flatten(), torch.cat([parameter.detach() for parameter in theirs]))
