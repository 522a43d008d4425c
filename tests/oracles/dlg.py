"""DLG and iDLG as the authors' scripts have them: one image at a time, torch's own optimiser. Shares nothing with ``attacks``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Result:
    """Of one image ``(1, C, H, W)``: as the optimiser left it, its label, the loss after every outer step."""

    image: Tensor
    label: int
    curve: list[float]


def dlg(
    net: nn.Module, gradient: list[Tensor], image: Tensor, label: Tensor | None, steps: int = 300, improved: bool = False
) -> Result:
    """From the starts ``image`` ``(1, C, H, W)`` and ``label`` ``(1, classes)``.

    Args:
        gradient: of the loss of one sample, in the order of the net's parameters.
        improved: iDLG: the label by the sign of the last weight's row sums, hard cross-entropy.
    """
    parameters = list(net.parameters())
    dummy = image.clone().requires_grad_()
    soft: Tensor | None = None
    hard = torch.tensor([0])
    if improved:
        hard = gradient[-2].sum(-1).argmin().reshape(1)
    else:
        assert label is not None
        soft = label.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([dummy] if soft is None else [dummy, soft], lr=1)

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = net(dummy)
        loss = F.cross_entropy(logits, hard) if soft is None else -(F.softmax(soft, -1) * F.log_softmax(logits, -1)).sum(1).mean()
        guess = torch.autograd.grad(loss, parameters, create_graph=True)
        distance = sum(((a - b) ** 2).sum() for a, b in zip(guess, gradient, strict=True))
        assert isinstance(distance, Tensor)
        distance.backward()
        return distance

    curve = []
    for _ in range(steps):
        optimiser.step(closure)
        curve.append(float(closure().detach()))
    return Result(dummy.detach(), int(hard if soft is None else soft.argmax()), curve)
