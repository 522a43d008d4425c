"""Who takes part in a round: a function of the config, the round and who holds data."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.config import RunConfig
from fedpriv.methods.base import Method
from fedpriv.seeding import generator


def participants(config: RunConfig, method: Method, everyone: Sequence[int], round: int) -> list[int]:
    """The clients of a round (1-based), by number.

    Without DP a fixed number of them, drawn without replacement. Under client-level DP each one with probability
    ``train.participation``, independently: that is the sampling whose epsilon the accountants know (Poisson), so the number
    varies and may be none.
    """
    if config.privacy.level == "client":
        share = config.train.participation or 0.0
        return [client for client in everyone if _uniform(config.seed, round, client) < share]
    count = config.participants_of(len(everyone))
    order = torch.randperm(len(everyone), generator=generator(config.seed, round, "participants"))
    sampled = [everyone[i] for i in order[:count].tolist()]
    return sorted(method.participants(round, sampled, everyone))


def _uniform(seed: int, round: int, client: int) -> float:
    return float(torch.rand((), dtype=torch.float64, generator=generator(seed, round, client, "participates")))
