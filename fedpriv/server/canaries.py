"""Canaries among the clients, or the samples, of a private run: how strongly the released models or uploads show each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.methods.base import ServerState
from fedpriv.optim.rates import rate_of_round, rates_of_steps
from fedpriv.privacy.canaries import Canaries, log_ratio
from fedpriv.server.sampling import poisson_sample
from fedpriv.wire.coding import Upload
from fedpriv.wire.report import Report

_NORM_FACTOR = 2.0
"""Norm of a canary client's change, as a multiple of the clipping bound: above 1, so that the server's clipping is tested too."""


class PlantedCanaries:
    """The canaries of a run, as its server sees them.

    Attributes:
        scores: ``(N,)`` log-likelihood ratios of the rounds so far.
    """

    def __init__(self, agreement: Agreement, canaries: Canaries) -> None:
        self.agreement, self.config, self.canaries = agreement, agreement.config, canaries
        self.scores = torch.zeros(len(canaries.used), dtype=torch.float64)

    def tensors(self) -> dict[str, Tensor]:
        """What an audit reads, by name: the scores, and which canaries were used."""
        return {"scores": self.scores, "used": self.canaries.used}

    def products(self, change: Mapping[str, Tensor]) -> Tensor:
        """``(N,)`` inner products of a change, by name, with all directions."""
        space = self.canaries.space
        return self.canaries.products(space.pack(change, torch.zeros(space.size, dtype=torch.float64)))


class ClientCanaries(PlantedCanaries):
    """Canaries of client-level DP: registered clients without data, which are drawn for a round as the others are.

    Their client numbers come after those of the other clients. The mean's denominator is the expected number of participants;
    canaries do not count. Epsilon does not depend on this number, and the real clients keep their weight. The observer sees all
    released models.

    Args:
        expected: the expected number of participants, without canaries.
    """

    def __init__(self, agreement: Agreement, canaries: Canaries, expected: float) -> None:
        super().__init__(agreement, canaries)
        self.expected = expected

    def changes(self, round: int) -> Iterator[Mapping[str, Tensor]]:
        """Yield the changes, by name, of the used canaries that are drawn for a round."""
        canaries, first = self.canaries, self.config.data.clients
        used = [first + canary for canary in canaries.used.nonzero().squeeze(1).tolist()]
        for client in poisson_sample(self.config, used, round):
            row = canaries.sum_of(torch.tensor([client - first]))
            yield canaries.space.unpack(row * (_NORM_FACTOR * self.config.privacy.clip))

    def observe(self, before: ServerState, after: ServerState) -> None:
        """Add the scores of a round, from the models before and after it."""
        privacy, space, names = self.config.privacy, self.agreement.space, self.canaries.space.names
        moved = space.unpack(after.row.cpu().double() - before.row.cpu().double(), names)
        seen = self.products(moved) * (self.expected / privacy.clip)
        self.scores += log_ratio(seen, privacy.noise or 0.0, self.config.train.participation or 0.0)


class SampleCanaries(PlantedCanaries):
    """Canaries of sample-level DP: training samples of the clients, which are drawn in each step as the others are.

    A client's number n of samples does not include them, so sampling rate, steps and denominator are as without canaries. The
    observer sees the uploads. Each shows only the sum of a local update's steps, while the ledger's epsilon covers every step.
    """

    def observe(self, round: int, uploads: Sequence[Upload], sent: Mapping[str, Tensor], reports: Sequence[Report]) -> None:
        """Add the scores of a round, from its uploads.

        Args:
            sent: what the clients were sent, by name.
        """
        config, trainable = self.config, self.agreement.trainable
        report_of = {report.client: report for report in reports}
        for upload in uploads:
            client = upload.sealed.client
            if client is None or not (charges := self._charges(round, report_of[client])):
                continue
            held = self.canaries.held_by(client, trainable)
            moved = {
                name: tensor.double() - sent[name].cpu().double()
                for name, tensor in upload.tensors(self.canaries.space).items()
                if name in sent
            }
            (_, rate, _), steps = charges[0], sum(steps for _, _, steps in charges)
            gain = sum(lr * steps * self._mean_gain(lr, steps) for lr, _, steps in charges) / steps
            if not gain:  # the only step is the first of a warm-up
                continue
            units = rate * report_of[client].num_examples / (gain * config.privacy.clip)
            seen = -self.products(moved)[held] * units
            self.scores[held] += log_ratio(seen, config.privacy.noise or 0.0, rate, steps)

    def _mean_gain(self, lr: float, steps: int) -> float:
        """:func:`mean_gain` of a phase, in units of its learning rate."""
        train = self.config.train
        return mean_gain([rate / lr for rate in rates_of_steps(train, lr, steps)], train.momentum)

    def _charges(self, round: int, report: Report) -> list[tuple[float, float, int]]:
        """(learning rate, sampling rate, steps) of the phases that train what is sent."""
        train, space = self.config.train, self.canaries.space
        roles = {entry.role for entry in space.entries}
        phases = zip(self.agreement.method.phases(round), report.spent, strict=True)
        return [(rate_of_round(train, round, phase.lr), *spent) for phase, spent in phases if roles & phase.trains]


def mean_gain(rates: Sequence[float], momentum: float) -> float:
    """Mean over the steps of how far a step's gradient moves the model by the end of the update, momentum included.

    It is a multiple of the gradient; without momentum it is the mean learning rate.

    Args:
        rates: the learning rate of each step.
    """
    return fmean(rate * ((1 - momentum ** (step + 1)) / (1 - momentum)) for step, rate in enumerate(rates))
