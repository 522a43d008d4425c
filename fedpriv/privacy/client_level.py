"""Client-level DP at the server (McMahan et al., ICLR 2018): clipped changes, Gaussian noise, and a fixed denominator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from fedpriv.methods.base import ServerState
from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import Upload


@dataclass(frozen=True)
class NoisyMean:
    """``x <- x + (sum_k min(1, C / ||d_k||) d_k + N(0, (Z C)^2 I)) / m``, ``d_k`` the change of client k over ``names``.

    Zeroing out a client changes the sum by at most C: all weights are 1, ``m`` is a constant and not the number of uploads, and
    noise is added even if no client was sampled.

    Attributes:
        names: the tensors that clients send; a tensor missing from an upload counts as unchanged.
        clip: C. Clients clip, too, but may round afterwards, and the server does not rely on them.
        noise: Z.
        expected: m, the expected number of participants.
    """

    space: ParameterSpace
    names: tuple[str, ...]
    clip: float
    noise: float
    expected: float

    def __call__(
        self, server: ServerState, uploads: Sequence[Upload], sent: Mapping[str, Tensor], generator: torch.Generator,
        planted: Iterable[Mapping[str, Tensor]] = (),
    ) -> ServerState:  # fmt: skip
        """The server's next state.

        Args:
            sent: the tensors that the clients received, by name, to which their changes refer.
            planted: the changes of canaries.
        """
        old = self.space.unpack(server.row, self.names)
        total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in old.items()}

        def change_of(upload: Upload) -> dict[str, Tensor]:
            arrived = upload.tensors()
            return {
                name: arrived[name].double() - sent.get(name, old[name]).double().cpu() for name in self.names if name in arrived
            }

        for change in chain(map(change_of, uploads), planted):
            length = float(torch.stack([part.square().sum() for part in change.values()]).sum().sqrt()) if change else 0.0
            for name, part in change.items():
                total[name] += part * (min(1.0, self.clip / length) if length else 1.0)
        row = server.row.clone()
        for name, value in total.items():
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64) * (self.noise * self.clip)
            self.space.view(row, name).add_(((value + noise) / self.expected).to(row))
        return ServerState(row, server.memory)
