"""Canaries, with which a private run's epsilon is measured (Nasr et al. 2023; Andrew et al. 2024).

A canary is an additional client (or training sample) of the run, whose change (or gradient) has the largest norm that clipping
allows, in a direction of its own. A fair coin decides whether it is used or zeroed out, which is the adjacency of
:mod:`fedpriv.privacy.ledger`; an attacker guesses which are used. The directions are orthonormal: each coordinate of the model
belongs to at most one canary, at random and with a random sign. So canaries do not disturb each other, and missing noise in a
part of the model is detected by the canaries there.
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
from fedpriv.wire import RandomStream


@dataclass(frozen=True)
class Canaries:
    """The canaries of a run, as functions of its seed.

    Attributes:
        space: the layout of the tensors that are sent, with p entries.
        used: whether each canary is used ``(N,)``.
        places: the coordinates of each canary ``(N, w)``.
        entries: the values of its direction at these coordinates ``(N, w)``, float64.
    """

    space: ParameterSpace
    used: Tensor
    places: Tensor
    entries: Tensor

    @classmethod
    def of(cls, config: RunConfig, space: ParameterSpace, sent: Iterable[str]) -> Canaries:
        """Draw the canaries of a run from its seed.

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
        """The sum of the directions of some canaries ``(p,)``, by number."""
        row = torch.zeros(self.space.size, dtype=torch.float64)
        return row.scatter_(0, self.places[canaries].flatten(), self.entries[canaries].flatten())

    def products(self, row: Tensor) -> Tensor:
        """The inner products of a row ``(p,)`` with all directions ``(N,)``."""
        return (row[self.places] * self.entries).sum(1)

    def held_by(self, client: int, clients: Sequence[int]) -> Tensor:
        """The numbers of the canaries of a client; they are distributed over ``clients`` in turn, and others have none."""
        first = clients.index(client) if client in clients else len(self.used)
        return torch.arange(first, len(self.used), len(clients))


@dataclass(frozen=True)
class HeldCanaries:
    """The canaries among the samples of a client, whose gradients have the norm of the clipping bound.

    Attributes:
        held: their numbers ``(n,)``.
        clip: the clipping bound C.
    """

    canaries: Canaries
    held: Tensor
    clip: float

    def drawn(self, rate: float, noise: RandomStream) -> dict[str, Tensor]:
        """The sum of the gradients of the used canaries that are sampled in a step, each with probability ``rate``, by name."""
        chosen = noise.uniform((len(self.held),)) < rate
        row = self.canaries.sum_of(self.held[chosen & self.canaries.used[self.held]])
        return self.canaries.space.unpack(row * self.clip)


def log_ratio(seen: Tensor, noise: float, rate: float, steps: int = 1) -> Tensor:
    """The log-likelihood ratio of used to unused canaries ``(N,)``, the best test statistic (Neyman & Pearson).

    ``log sum_j B(j; K, q) exp((j s - j^2 / 2) / (K Z^2))`` with the binomial probability B of being sampled j times in K steps.
    At rate 1, its sum over rounds is a linear function of the sum of the products.

    Args:
        seen: s ``(N,)``, the products with the released sum of K steps, in units of the clipping bound; N(j, K Z^2) if sampled j
            times.
        noise: Z.
        rate: q, the probability of being sampled in a step.
        steps: K.
    """
    j = torch.arange(steps + 1, dtype=torch.float64)
    ways = math.lgamma(steps + 1) - torch.lgamma(j + 1) - torch.lgamma(steps - j + 1)
    times = ways + j * math.log(rate) + torch.special.xlog1py(steps - j, torch.tensor(-rate, dtype=torch.float64))
    return torch.logsumexp(times + (j * seen[:, None] - j**2 / 2) / (steps * noise**2), 1)
