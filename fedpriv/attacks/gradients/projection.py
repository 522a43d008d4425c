"""The signal back-propagated to a convolution, in closed form.

With the input patches ``P (K, P)`` and the signal ``s = dL/da`` at the output, the weight gradient is ``s P^T``: linear in ``s``.
So for a given image the signal follows by least squares, if the weight has more entries per channel than the output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RIDGE = 1e-9
"""Ridge on the normal equations, as a share of their mean diagonal: keeps them solvable where features are nearly equal."""


def is_overdetermined(layer: nn.Module, positions: int) -> bool:
    """Whether the layer's weight gradient has more equations per output channel than the output has ``positions``."""
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    return layer.weight[0].numel() > positions


def convolution_signal(layer: nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The signal ``s`` ``(1, O, H, W)`` at the layer's output that fits its gradients best, given its inputs ``(1, C, H', W')``.

    Least squares for each output channel ``o``: ``weight[o] = sum_p s[o, p] patch[p]`` and ``bias[o] = sum_p s[o, p]``. Computed
    in float64, since the normal equations square the condition number.

    Args:
        weight, bias: the layer's gradients.
    """
    padding = (int(layer.padding[0]), int(layer.padding[1]))
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, padding, layer.stride)[0].double()  # (K, P)
    equations = weight.flatten(1).double()  # (O, K)
    if bias is not None:
        patches = torch.cat([patches, torch.ones_like(patches[:1])])
        equations = torch.cat([equations, bias.double()[:, None]], 1)
    normal = patches.T @ patches
    normal = normal + RIDGE * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
    signal: Tensor = torch.linalg.solve(normal, patches.T @ equations.T).T  # (O, P)
    height, width = _size(layer, inputs)
    return signal.reshape(1, -1, height, width).to(inputs.dtype)


def _size(layer: nn.Conv2d, inputs: Tensor) -> tuple[int, int]:
    sides = []
    for i, side in enumerate(inputs.shape[-2:]):
        padding, reach = int(layer.padding[i]), layer.dilation[i] * (layer.kernel_size[i] - 1)
        sides.append((side + 2 * padding - reach - 1) // layer.stride[i] + 1)
    return sides[0], sides[1]
