"""Canaries: contributions of the largest norm that a private run allows, half of which it uses, to measure its epsilon.

A canary is one more client (or training sample) of the run, with a change (a gradient) of its own direction. A fair coin decides
whether it is used or a blank, which is the adjacency of :mod:`fedpriv.privacy.ledger`. The directions are orthonormal: each
coordinate of the model belongs to one canary at most, at random, with a random sign. So canaries do not disturb each other, and
noise that is missing in a part of the model is missed by those that lie there (Nasr et al. 2023; Andrew et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.parameters import ParameterSpace
from fedpriv.seeding import generator
from fedpriv.wire import Draws


@dataclass(frozen=True)
class Canaries:
    """The canaries of a run, as functions of its seed.

    Attributes:
        space: of the tensors that are sent, with p entries.
        used: ``(N,)`` whether each takes part.
        places: ``(N, w)`` the coordinates of each.
        entries: ``(N, w)`` float64, what its direction has there.
    """

    space: ParameterSpace
    used: Tensor
    places: Tensor
    entries: Tensor

    @classmethod
    def of(cls, config: RunConfig, space: ParameterSpace, sent: Iterable[str]) -> Canaries:
        """The canaries of a run.

        Args:
            sent: the tensors of ``space`` that clients send.

        Raises:
            UsageError: there are more canaries than parameters.
        """
        count, space = config.privacy.canaries, space.restricted(sent)
        if count > space.size:
            raise UsageError(f"privacy.canaries {count}: at most {space.size:,}, the number of parameters that are sent")
        used = torch.rand(count, generator=generator(config.seed, "canaries", "used")) < 0.5
        draw, width = generator(config.seed, "canaries", "directions"), space.size // count
        places = torch.randperm(space.size, generator=draw)[: count * width].view(count, width)
        signs = 2.0 * torch.randint(2, (count, width), generator=draw).double() - 1
        return cls(space, used, places, signs / math.sqrt(width))

    def sum_of(self, canaries: Tensor) -> Tensor:
        """``(p,)`` the sum of the directions of some canaries, by number."""
        row = torch.zeros(self.space.size, dtype=torch.float64)
        return row.scatter_(0, self.places[canaries].flatten(), self.entries[canaries].flatten())

    def products(self, row: Tensor) -> Tensor:
        """``(N,)`` the inner products of a row ``(p,)`` with all directions."""
        return (row[self.places] * self.entries).sum(1)

    def held_by(self, client: int, clients: Sequence[int]) -> Tensor:
        """The numbers of the canaries among a client's samples: they are dealt to ``clients`` in turn, and others hold none."""
        first = clients.index(client) if client in clients else len(self.used)
        return torch.arange(first, len(self.used), len(clients))


@dataclass(frozen=True)
class ClientCanaries:
    """The canaries among the samples of a client, each with a gradient as long as the clipping bound.

    Attributes:
        held: ``(n,)`` their numbers.
        clip: C.
    """

    canaries: Canaries
    held: Tensor
    clip: float

    def drawn(self, rate: float, draws: Draws) -> dict[str, Tensor]:
        """The sum of the gradients of the used ones that are drawn for a step, with probability ``rate`` each, by name."""
        chosen = draws.uniform((len(self.held),)) < rate
        row = self.canaries.sum_of(self.held[chosen & self.canaries.used[self.held]])
        return self.canaries.space.unpack(row * self.clip)


def log_ratio(seen: Tensor, noise: float, rate: float, steps: int = 1) -> Tensor:
    """The log-likelihood ratio of canaries that are drawn with probability ``rate`` in each step to those that are blanks.

    ``log sum_j B(j; K, q) exp((j s - j^2 / 2) / (K Z^2))``. By Neyman & Pearson no other score tells used canaries from unused
    ones better. At rate 1 its sum over rounds grows linearly with that of the products.

    Args:
        seen: ``(N,)`` products with the released sum of K steps, in units of the clipping bound: N(j, K Z^2) if drawn j times.
        noise: Z.
        steps: K.
    """
    j = torch.arange(steps + 1, dtype=torch.float64)
    ways = math.lgamma(steps + 1) - torch.lgamma(j + 1) - torch.lgamma(steps - j + 1)
    times = ways + j * math.log(rate) + torch.special.xlog1py(steps - j, torch.tensor(-rate, dtype=torch.float64))
    return torch.logsumexp(times + (j * seen[:, None] - j**2 / 2) / (steps * noise**2), 1)
