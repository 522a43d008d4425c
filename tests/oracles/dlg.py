"""DLG and iDLG as in the authors' scripts: one image at a time, with torch's optimiser; independent of ``attacks``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Result:
    """The final image ``(1, C, H, W)``, its label, and the loss after every outer step."""

    image: Tensor
    label: int
    curve: list[float]


def dlg(
    net: nn.Module, gradient: list[Tensor], image: Tensor, label: Tensor | None, steps: int = 300, improved: bool = False
) -> Result:
    """Run DLG from the initial ``image`` ``(1, C, H, W)`` and ``label`` logits ``(1, classes)``.

    Args:
        gradient: observed gradient of one sample, in the order of the net's parameters.
        improved: iDLG: label by the row sums of the last weight's gradient, hard cross-entropy.
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
