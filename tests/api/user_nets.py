"""Nets of a user's own, in a module that can be imported."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from opacus.layers import DPGRU
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune


class Small(nn.Module):
    """Without names that are roles or a stacked form; BatchNorm, and a layer that is fed by another linear one."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(8, classes)
        self.conv = nn.Conv2d(input_shape[0], 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.between = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.pool(self.relu(self.norm(self.conv(x)))).reshape(-1, 16))
        logits: Tensor = self.fc(x)
        return logits


class Counting(Small):
    """Its statistics are means over all batches."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(input_shape, classes)
        self.norm.momentum = None


class InRoles(nn.Module):
    """Its modules have the names of roles."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.projector = nn.Linear(16, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.projector(self.encoder(x)))
        return logits


class Softmax(InRoles):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Noisy(InRoles):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.projector(self.encoder(x) + 0.1 * torch.randn(16)))
        return logits


class Capped(InRoles):
    """Its head is zero at first, so that the cap changes nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return 3 * torch.tanh(super().forward(x) / 3)


class DroppedLast(InRoles):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), training=self.training)


class TwoInTraining(InRoles):
    """Returns auxiliary logits too, in training mode."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class FailsInTraining(InRoles):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("it needs\nlabels")
        return super().forward(x)


class InPlace(InRoles):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        return super().forward(x)


class ByNumPy(InRoles):
    """Its dropout of whole batches draws from another generator than torch's."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * float(np.random.rand() < 0.5) if self.training else x)


class Rooted(InRoles):
    """With other weights its logits are NaN: it takes the root of some."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1) * self.scale.sqrt())


class Drawing(InRoles):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * float(0.5 + self.draws.random()) if self.training else x)


class MaxNorm(nn.Linear):
    """Its weight gets other memory in each pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 1.0)
        return super().forward(x)


def max_normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), MaxNorm(64, 8), nn.ReLU(), nn.Linear(8, 10))


class Scheduled(InRoles):
    """Its scale falls with the number of batches."""

    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
        return super().forward(x / (1 + 0.1 * self.batches))


class Branching(InRoles):
    """What it computes depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x if x.max() > 0.5 else x)


class Named(InRoles):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x)}


class Tied(nn.Module):
    """Two of its layers have one weight; ``head``: the head has it too."""

    def __init__(self, head: bool = False) -> None:
        super().__init__()
        first, second, self.head = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10)
        second.weight = first.weight
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), first, nn.ReLU(), second)
        if head:
            self.head.weight = first.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits


class TiedToHead(Tied):
    def __init__(self) -> None:
        super().__init__(head=True)


class SharesNumbers(Tied):
    """Its head's weight is another parameter, with the memory of the encoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.encoder[1].weight.data[:, :10])  # type: ignore[union-attr, index]


class Double(InRoles):
    """Its projector computes in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.projector.double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.projector(self.encoder(x).double()).float())
        return logits


class Complex(InRoles):
    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(64, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x.flatten(1) * self.factors).real)


class HalfStatistics(InRoles):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(16, dtype=torch.float16))


def ending_in(last: nn.Module) -> nn.Module:
    """A net whose head ends in another module."""
    net = InRoles()
    net.head = nn.Sequential(net.head, last)  # type: ignore[assignment]
    return net


def softmax_in_head() -> nn.Module:
    return ending_in(nn.Softmax(dim=1))


def sigmoid_in_head() -> nn.Module:
    return ending_in(nn.Sigmoid())


def relu_in_head() -> nn.Module:
    return ending_in(nn.ReLU())


def log_softmax_in_head() -> nn.Module:
    return ending_in(nn.LogSoftmax(dim=1))


class Counts(InRoles):
    """A buffer of floats that is no running statistic."""

    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.counts += len(x)
        return super().forward(2 * x)


class Causal(InRoles):
    """Its mask is a constant that is not finite."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(8))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.mask.softmax(1) @ x)


class NotFinite(InRoles):
    """A parameter without initial values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float("nan")))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.scale * x)


def frozen(*layers: int) -> nn.Module:
    """:func:`mlp` with the numbers of some layers fixed; of both by default."""
    net = mlp()
    for layer in layers or (1, 3):
        net.get_submodule(str(layer)).requires_grad_(False)
    return net


def frozen_head() -> nn.Module:
    return frozen(3)


def pruned() -> nn.Module:
    """A hook makes its first layer's weight anew before each pass."""
    net = mlp()
    prune.random_unstructured(net.get_submodule("1"), "weight", 0.5)
    return net


def frozen_encoder() -> nn.Module:
    return frozen(1)


class Recurrent(nn.Module):
    """Reads an image line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lines(x[:, 0])[0][:, -1])
        return logits


class Gated(Recurrent):
    """``torch.func`` cannot take it sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.GRU(8, 16, batch_first=True)  # type: ignore[assignment]


class GatedByOpacus(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        self.lines = DPGRU(8, 16, batch_first=True)  # type: ignore[assignment]


def mlp(width: int = 8) -> nn.Module:
    """A net by a function."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def compiled() -> nn.Module:
    return torch.compile(mlp(), backend="eager")  # type: ignore[return-value]


def needy(width: int) -> nn.Module:
    return mlp(width)


narrow = partial(needy, width=4)
no_partial = partial(sorted, reverse=True)


def no_net() -> nn.Module:
    return "a net"  # type: ignore[return-value]
