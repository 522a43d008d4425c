"""Whether a net is smooth in its input, which decides whether a search by curvature can follow its gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.observation import in_clients_mode
from fedpriv.attacks.core.reconstruction import differentiating_twice, mounting

POINTS = 17
"""On the line, at equal distances."""
MISSING = 0.3
"""Share of the slope's change that the second derivative does not give, above which the slope jumps. Measured: at least 0.8 with
ReLU or max pooling; at most 0.1 without, which is the error of the integral by trapezoids."""
SAMPLES = 4
"""Of a batch."""
STRAIGHT = 1e-4
"""Change of the slope, as a share of it, that rounding may make."""


def is_smooth(net: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether the derivative of the net's outputs is continuous in its inputs. ReLU, max pooling and absolute values let it jump.

    Found on a line between two batches of random images, whatever the net is made of: where all is smooth, the second derivative
    integrates to the change of the first. Autograd's second derivative has no part for the jumps.

    Args:
        net: ``(B, *input_shape)`` -> ``(B, C)``, with its weights; BatchNorm counts in the mode in which it is.

    Raises:
        Inapplicable: an operation of the net has no second derivative.
    """
    net, draw = in_clients_mode(net), torch.Generator().manual_seed(0)
    start, end = (torch.rand(2, SAMPLES, *input_shape, generator=draw) - 0.5) / 0.25  # as far apart as normalised images
    places, weights = torch.linspace(0, 0.3, POINTS), torch.Tensor()
    slopes, curvatures = list[Tensor](), list[Tensor]()
    with mounting(), differentiating_twice():
        for place in places:
            place = place.clone().requires_grad_()
            outputs = net(torch.lerp(start, end, place))
            weights = weights if slopes else torch.randn(outputs.shape, generator=draw)
            (slope,) = torch.autograd.grad((outputs * weights).sum(), place, create_graph=True)
            slopes.append(slope.detach())
            bends = slope.requires_grad and torch.autograd.grad(slope, place, allow_unused=True)[0]
            curvatures.append(bends.detach() if isinstance(bends, Tensor) else torch.zeros(()))
    slope, curvature = torch.stack(slopes), torch.stack(curvatures)
    change = slope.diff()
    missed = change - (curvature[1:] + curvature[:-1]) / 2 * places.diff()
    whole = change.abs().sum()
    return bool(whole <= STRAIGHT * slope.abs().sum()) or bool(missed.abs().sum() <= MISSING * whole)
