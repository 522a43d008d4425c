"""Canaries among the clients of a run with client-level DP, and how strongly the released models show each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.methods.base import ServerState
from fedpriv.privacy.canaries import Canaries, log_ratio
from fedpriv.server.sampling import drawn

_TOO_LONG = 2.0
"""Canaries send changes of this many times the clipping bound, so that the server's clipping is measured with its noise."""


class ClientCanaries:
    """Registered clients without data, with numbers after those of the others, which are drawn as these are.

    They are no part of the denominator, the expected number of participants: it is a constant, on which epsilon does not depend,
    and the other clients' changes weigh as without canaries.

    Args:
        expected: that denominator.

    Attributes:
        scores: ``(N,)`` log-likelihood ratios of the rounds so far, for an observer of all released models.
    """

    def __init__(self, agreement: Agreement, expected: float) -> None:
        self.config, self.expected = agreement.config, expected
        self.canaries = Canaries.of(agreement.config, agreement.space, agreement.sent_names)
        self._space = agreement.space
        self.scores = torch.zeros(len(self.canaries.used), dtype=torch.float64)

    def changes(self, round: int) -> Iterator[Mapping[str, Tensor]]:
        """The changes of the used canaries that are drawn for a round, by name."""
        canaries, first = self.canaries, self.config.data.clients
        used = [first + canary for canary in canaries.used.nonzero().squeeze(1).tolist()]
        for client in drawn(self.config, used, round):
            yield canaries.space.unpack(canaries.direction(client - first) * (_TOO_LONG * self.config.privacy.clip))

    def observe(self, before: ServerState, after: ServerState) -> None:
        """Add what the model of a round shows, compared with the one before."""
        privacy, canaries = self.config.privacy, self.canaries
        moved = self._sent(after.row) - self._sent(before.row)
        seen = canaries.products(moved) * (self.expected / privacy.clip)
        self.scores += log_ratio(seen, privacy.noise or 0.0, self.config.train.participation or 0.0)

    def found(self) -> dict[str, Tensor]:
        """What an audit reads: the scores, and which canaries were used."""
        return {"scores": self.scores, "used": self.canaries.used}

    def _sent(self, row: Tensor) -> Tensor:
        """``(p,)`` float64: the tensors that are sent."""
        space = self.canaries.space
        whole = row.detach().cpu().double()
        return space.pack(self._space.unpack(whole, space.names), torch.empty(space.size, dtype=torch.float64))
