"""The signal back-propagated to the last shared convolution, in closed form: the weight gradient is linear in it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedpriv.attacks.gradients.matching import Data

RIDGE = 1e-9
"""Ridge on the normal equations, as a share of their mean diagonal: keeps them solvable where features are nearly equal."""


def determined(layer: nn.Module, places: int) -> bool:
    """Whether the layer's weight gradient has more equations than its output has ``places`` per channel."""
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    return layer.weight[0].numel() > places


def convolution_signal(layer: nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The signal ``s`` ``(1, O, H, W)`` at the layer's output that fits its gradients best, given its inputs ``(1, C, H', W')``.

    Least squares for each output channel: ``weight[o] = sum_p s[o, p] patch[p]`` and ``bias[o] = sum_p s[o, p]``; in float64,
    since the normal equations square the condition number.
    """
    padding = (int(layer.padding[0]), int(layer.padding[1]))
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)[0].double()  # (K, P)
    seen = weight.flatten(1).double()  # (O, K)
    if bias is not None:
        patches = torch.cat([patches, torch.ones_like(patches[:1])])
        seen = torch.cat([seen, bias.double()[:, None]], 1)
    normal = patches.T @ patches
    normal = normal + RIDGE * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
    found: Tensor = torch.linalg.solve(normal, patches.T @ seen.T).T  # (O, P)
    height, width = _size(layer, inputs)
    return found.reshape(1, -1, height, width).to(inputs.dtype)


def layer_input(net: nn.Module, layer: nn.Module, weights: Data, inputs: Tensor) -> Tensor:
    """The input of the module ``layer`` when ``net`` gets ``inputs``."""
    caught: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    try:
        functional_call(net, weights, (inputs,))
    finally:
        hook.remove()
    (found,) = caught
    return found


def _size(layer: nn.Conv2d, inputs: Tensor) -> tuple[int, int]:
    sides = []
    for i, side in enumerate(inputs.shape[-2:]):
        padding, reach = int(layer.padding[i]), layer.dilation[i] * (layer.kernel_size[i] - 1)
        sides.append((side + 2 * padding - reach - 1) // layer.stride[i] + 1)
    return sides[0], sides[1]
