"""Canaries: contributions of the largest norm that a private run allows, half of which it uses, to measure its epsilon.

A canary is one more client (or training sample) of the run, with a change (a gradient) of its own direction. A fair coin decides
whether it is used or a blank, which is the adjacency of :mod:`fedpriv.privacy.ledger`. The directions are orthonormal: each
coordinate of the model belongs to one canary at most, at random, with a random sign. So canaries do not disturb each other, and
noise that is missing in a part of the model is missed by those that lie there (Nasr et al. 2023; Andrew et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.parameters import ParameterSpace
from fedpriv.seeding import generator


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

    def direction(self, canary: int) -> Tensor:
        """``(p,)`` the unit vector of a canary."""
        return torch.zeros(self.space.size, dtype=torch.float64).scatter_(0, self.places[canary], self.entries[canary])

    def products(self, row: Tensor) -> Tensor:
        """``(N,)`` the inner products of a row ``(p,)`` with all directions."""
        return (row[self.places] * self.entries).sum(1)


def log_ratio(seen: Tensor, noise: float, rate: float) -> Tensor:
    """The log-likelihood ratio of a canary that is drawn with probability ``rate`` to one that is a blank.

    ``log(1 - q + q exp((s - 1/2) / Z^2))``. By Neyman & Pearson no other score tells used canaries from unused ones better. At
    rate 1 its sum over rounds grows linearly with that of the products.

    Args:
        seen: ``(N,)`` products with the released sum of a step, in units of the clipping bound: N(0, Z^2), if drawn N(1, Z^2).
        noise: Z.
    """
    if_drawn = (seen - 0.5) / noise**2
    return if_drawn if rate == 1 else torch.logaddexp(torch.full_like(seen, math.log1p(-rate)), if_drawn + math.log(rate))
