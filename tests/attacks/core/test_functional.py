"""A net is the same after a pass with other tensors, and the pass has the tensors under all names of a layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedpriv.attacks.core.functional import functional_call


def one_layer_twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def blocks_of_one() -> nn.Module:
    """As in ALBERT: one block, with a normalisation, many times."""
    block = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    return nn.Sequential(*[block] * 3)


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    net[2].weight = net[0].weight  # type: ignore[assignment]
    return net


@pytest.mark.parametrize("build", [one_layer_twice, blocks_of_one, tied, lambda: nn.Linear(3, 3)])
@pytest.mark.parametrize("fails", [False, True])
def test_a_net_keeps_its_own_tensors(build: Callable[[], nn.Module], fails: bool) -> None:
    net, x = build(), torch.rand(4, 2 if fails else 3)
    own = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    values = [tensor.detach().clone() for _, tensor in own]
    others = {name: torch.rand_like(tensor, dtype=torch.float32) for name, tensor in net.named_parameters()}
    if fails:
        with pytest.raises(RuntimeError):
            functional_call(net, others, (x,))
    else:
        buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
        called = functional_call(net, others | buffers, (x,))
    for (name, tensor), value in zip(own, values, strict=True):
        now = net.get_parameter(name) if isinstance(tensor, nn.Parameter) else net.get_buffer(name)
        assert now is tensor and torch.equal(now, value)
    if not fails:
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.copy_(others[name])
        torch.testing.assert_close(called, net(x))
