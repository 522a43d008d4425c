"""Canaries among the clients, or among the samples, of a private run: how strongly what is released shows each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.methods.base import ServerState
from fedpriv.privacy.canaries import Canaries, log_ratio
from fedpriv.server.sampling import drawn
from fedpriv.wire.coding import Upload
from fedpriv.wire.report import Report

_TOO_LONG = 2.0
"""Canary clients send changes of this many times the clipping bound, so that the server's clipping is measured with its noise."""


class Planted:
    """The canaries of a run, as its server sees them.

    Attributes:
        scores: ``(N,)`` log-likelihood ratios of the rounds so far.
    """

    def __init__(self, agreement: Agreement, canaries: Canaries) -> None:
        self.agreement, self.config, self.canaries = agreement, agreement.config, canaries
        self.scores = torch.zeros(len(canaries.used), dtype=torch.float64)

    def found(self) -> dict[str, Tensor]:
        """What an audit reads: the scores, and which canaries were used."""
        return {"scores": self.scores, "used": self.canaries.used}

    def products(self, change: Mapping[str, Tensor]) -> Tensor:
        """``(N,)`` inner products of a change, by name, with all directions."""
        space = self.canaries.space
        return self.canaries.products(space.pack(change, torch.zeros(space.size, dtype=torch.float64)))


class ClientCanaries(Planted):
    """Registered clients without data, with numbers after those of the others, which are drawn as these are; level ``client``.

    They are no part of the denominator, the expected number of participants: it is a constant, on which epsilon does not depend,
    and the other clients' changes weigh as without canaries. The observer sees all released models.

    Args:
        expected: that denominator.
    """

    def __init__(self, agreement: Agreement, canaries: Canaries, expected: float) -> None:
        super().__init__(agreement, canaries)
        self.expected = expected

    def changes(self, round: int) -> Iterator[Mapping[str, Tensor]]:
        """The changes of the used canaries that are drawn for a round, by name."""
        canaries, first = self.canaries, self.config.data.clients
        used = [first + canary for canary in canaries.used.nonzero().squeeze(1).tolist()]
        for client in drawn(self.config, used, round):
            row = canaries.sum_of(torch.tensor([client - first]))
            yield canaries.space.unpack(row * (_TOO_LONG * self.config.privacy.clip))

    def observe(self, before: ServerState, after: ServerState) -> None:
        """Add what the model of a round shows, compared with the one before."""
        privacy, space, names = self.config.privacy, self.agreement.space, self.canaries.space.names
        moved = space.unpack(after.row.cpu().double() - before.row.cpu().double(), names)
        seen = self.products(moved) * (self.expected / privacy.clip)
        self.scores += log_ratio(seen, privacy.noise or 0.0, self.config.train.participation or 0.0)


class SampleCanaries(Planted):
    """Training samples of the clients, which are drawn in each step as the others are; level ``sample``.

    They are not counted in a client's number n of samples: rate, steps and denominator are as without canaries. The observer sees
    the uploads, each of which shows the sum of a local update's steps alone, while the ledger's epsilon covers every step.
    """

    def observe(self, round: int, uploads: Sequence[Upload], sent: Mapping[str, Tensor], reports: Sequence[Report]) -> None:
        """Add what the uploads of a round show.

        Args:
            sent: what the clients were sent, by name.
        """
        told, config, trainable = {report.client: report for report in reports}, self.config, self.agreement.trainable
        for upload in uploads:
            client = upload.sealed.client
            if client is None or not (charges := self._charges(round, told[client])):
                continue
            held = self.canaries.held_by(client, trainable)
            moved = {
                name: tensor.double() - sent[name].cpu().double()
                for name, tensor in upload.tensors(self.canaries.space).items()
                if name in sent
            }
            (_, rate, _), steps = charges[0], sum(steps for _, _, steps in charges)
            gain = sum(lr * steps * reached(steps, config.train.momentum) for lr, _, steps in charges) / steps
            units = rate * told[client].num_examples / (gain * config.privacy.clip)
            seen = -self.products(moved)[held] * units
            self.scores[held] += log_ratio(seen, config.privacy.noise or 0.0, rate, steps)

    def _charges(self, round: int, report: Report) -> list[tuple[float, float, int]]:
        """(learning rate, sampling rate, steps) of the phases that train what is sent."""
        train, space = self.config.train, self.canaries.space
        roles = {entry.role for entry in space.entries}
        phases = zip(self.agreement.method.phases(round), report.spent, strict=True)
        decayed = train.lr_decay ** (round - 1)
        return [((phase.lr or train.lr) * decayed, *spent) for phase, spent in phases if roles & phase.trains]


def reached(steps: int, momentum: float) -> float:
    """How far a gradient moves the model by the end of a local update, over the learning rate; on average over the steps."""
    return fmean((1 - momentum ** (steps - step)) / (1 - momentum) for step in range(steps))
