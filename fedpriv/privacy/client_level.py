"""Client-level DP on the server (McMahan et al. 2018): bounded changes, a fixed denominator, Gaussian noise on the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.methods.base import ServerState
from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import Upload


@dataclass(frozen=True)
class NoisyMean:
    """``x <- x + (sum_k min(1, C / ||d_k||) d_k + N(0, (Z C)^2 I)) / m``, ``d_k`` the change of client k over ``names``.

    A client moves the sum by at most C against a blank, which changes nothing: every weight is 1, ``m`` is a constant and not
    the number of uploads, and a round in which no client was drawn gets its noise too.

    Attributes:
        names: the tensors that clients send; what an upload lacks counts as no change.
        clip: C. The clients clip already; this does not rely on it (they may have rounded after).
        noise: Z.
        expected: m, the expected number of participants.
    """

    space: ParameterSpace
    names: tuple[str, ...]
    clip: float
    noise: float
    expected: float

    def __call__(
        self, server: ServerState, uploads: Sequence[Upload], sent: Mapping[str, Tensor], generator: torch.Generator
    ) -> ServerState:
        """The server's next state.

        Args:
            sent: what the clients were sent, by name; their changes count from there.
        """
        old = self.space.unpack(server.row, self.names)
        total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in old.items()}
        for upload in uploads:
            arrived = upload.tensors()
            change = {
                name: arrived[name].double() - sent.get(name, old[name]).double().cpu() for name in self.names if name in arrived
            }
            length = float(torch.stack([part.square().sum() for part in change.values()]).sum().sqrt()) if change else 0.0
            for name, part in change.items():
                total[name] += part * (min(1.0, self.clip / length) if length else 1.0)
        row = server.row.clone()
        for name, value in total.items():
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64) * (self.noise * self.clip)
            self.space.view(row, name).add_(((value + noise) / self.expected).to(row))
        return ServerState(row, server.memory)
