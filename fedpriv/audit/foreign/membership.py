"""Membership inference on the messages of a record, whose clients' training is declared.

Members are the recorded samples of a client; non-members, and the server's own samples, are the recorded public ones of the same
classes. Shadow models train as the record declares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import Array, Use, confidence, random_halves
from fedpriv.audit.foreign.simulation import Simulated, SimulatedRecord
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.membership.inference import Membership, pooled
from fedpriv.audit.membership.member_scores import (
    LIRA,
    LOSS,
    REGRESSION,
    REGRESSIONS,
    ROWS,
    RUNNING,
    USED_BY,
    Statistic,
    Uploaded,
    is_finite,
    noting,
    row_distance,
    running_statistics,
)
from fedpriv.audit.membership.one_client import OfClient, add_fedmia, infer
from fedpriv.audit.membership.other_clients import compared, evenly
from fedpriv.audit.membership.rounds import EARLIER, InRounds, results_of_rounds
from fedpriv.audit.progress import BudgetSpent, Progress
from fedpriv.audit.record.base import Message
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError
from fedpriv.samples import from_tensors, tensors
from fedpriv.seeding import generator
from fedpriv.wire.coding import is_model

CHUNK = 256
"""Samples that pass the net at a time."""


def in_recorded_rounds(record: SimulatedRecord, rounds: Sequence[int], shadows: int, seed: int, progress: Progress) -> InRounds:
    """Attack membership in the last recorded round, and with fewer shadow models in other ones.

    Args:
        shadows: for each client of the last round.
    """
    last = record.rounds()[-1]
    results, refused = list[Membership](), dict[int, Reason]()
    for round in dict.fromkeys((last, *rounds)):
        updates, clients = shadows if round == last else min(EARLIER, shadows), record.clients(round)
        try:
            progress.in_time()
            progress(f"membership: {updates} shadow models for each of {len(clients)} clients of round {round}")
            of_clients = [_OneClient(record, round, client, updates, seed, progress.in_time).attacked() for client in clients]
            results.append(pooled(record, round, clients, of_clients, updates, seed))
        except FedprivError as error:
            refused[round] = error.reason if isinstance(error, BudgetSpent) else Reason("not available", str(error))
    return results_of_rounds(results, refused, last, [])


class _OneClient:
    """Membership inference on the message of one client; the truth about members is only in the result."""

    def __init__(
        self, record: SimulatedRecord, round: int, client: int, shadows: int, seed: int, in_time: Callable[[], None]
    ) -> None:
        self._record, self._client, self._shadows, self._seed, self._in_time = record, client, shadows, seed, in_time
        self._message, self._pool = record.message(round, client), candidates(record, round, client, seed)
        if not is_finite(self._message.uploaded):
            raise FedprivError(f"round {round}: the message of {record.sender(round, client).named} is not finite")
        # Not of a bound method, whose cycle would keep each client's updates in memory.
        self._own_update = lru_cache(record.held)(partial(_trained, record, client, self._pool.spare, shadows))

    def attacked(self) -> OfClient:
        """The scores of the candidates.

        Raises:
            FedprivError: the server's own local update diverged, or too many shadows did.
        """
        record, message, pool = self._record, self._message, self._pool
        is_last, own = message.round == record.rounds()[-1], self._own
        result = OfClient(pool.members, pool.samples, pool.data.labels.numpy())
        diverged = self._by_shadows(result, own)
        last: tuple[Array, Array] | None = None
        with noting(result.not_tried, REGRESSION):
            last = self._by_gradients(message, own)
            result.add(REGRESSION, USED_BY[REGRESSION], *last)
        if last is not None and is_last:
            with noting(result.not_tried, REGRESSIONS):
                result.add(REGRESSIONS, USED_BY[REGRESSIONS], *self._over_rounds(last))
        if record.buffers(message):
            with noting(result.not_tried, RUNNING):
                seen = (running_statistics(record, message, it.uploaded, pool.data.inputs) for it in (message, own))
                result.add(RUNNING, USED_BY[RUNNING], *seen)
        rounds = tuple[int, ...]()
        if is_last:
            rounds = add_fedmia(
                result, lambda: compared(record, self._client, self._own_update, lambda it, own: self._statistics(it, {}))
            )
        return replace(result, diverged=diverged, rounds=rounds)

    @cached_property
    def _own(self) -> Simulated:
        own = self._own_update(self._message.round)
        if own is None:
            raise FedprivError(f"round {self._message.round}: the server's own local update diverged, as a client's may have")
        return own

    def _by_shadows(self, result: OfClient, own: Simulated) -> int:
        """Add the attacks with shadow models, and those on the same statistics alone; return how many shadows diverged."""
        record, message, pool = self._record, self._message, self._pool
        statistics = self._statistics(message, result.not_tried)
        if not statistics:
            return 0
        inside = random_halves(self._shadows, len(pool.members), self._seed)
        # A shadow has as many samples as the client, so that it takes as many steps.
        fill = max(0, record.samples_behind(message) - len(pool.members) // 2)
        filling = pool.spare.at(torch.arange(min(fill, len(pool.spare.labels))))

        def data(number: int) -> Split:
            self._in_time()
            return pool.data.at(torch.from_numpy(inside[number]).nonzero().squeeze(1)).followed_by(filling)

        shadows = record.shadows(message.round, self._client, data, range(self._shadows))
        uploads = (None if shadow is None else shadow.uploaded for shadow in shadows)
        try:
            (scores, control), diverged = infer([message.uploaded, own.uploaded], inside, uploads, statistics)
        except (ValueError, Inapplicable) as error:
            sender = record.sender(message.round, self._client).named
            raise FedprivError(f"round {message.round}, {sender}: no membership inference ({error})") from None
        if LOSS in control:
            del control[LOSS]  # a later model has seen the members, so the control is a local update of the first round
            if (first := self._before_any_training()) is not None:
                control[LOSS] = first
        names = {it.attack(use): (it.kind, use) for it in statistics for use in get_args(Use) if it.attack(use) in scores}
        result.kinds.update(names)
        result.scores.update(scores)
        result.control.update(control)
        return diverged

    def _before_any_training(self) -> Array | None:
        """The confidence of the candidates under a local update of round 1 with the server's own samples.

        Returns:
            ``None``: that round was not recorded.
        """
        first = self._record.messages(1)
        if not first:
            return None
        message = self._record.message(*((1, self._client) if (1, self._client) in first else first[0]))
        own = self._record.simulated(message, self._pool.spare, self._shadows)
        return None if own is None or not self._is_whole(message) else self._confidence(message, own.uploaded)

    def _statistics(self, message: Message, not_tried: dict[str, Reason]) -> list[Statistic]:
        """The statistics that apply to a message of this client, or of another one."""
        statistics = list[Statistic]()
        if self._is_whole(message):
            statistics.append(Statistic("confidence", "", lambda uploaded: self._confidence(message, uploaded)))
        else:
            why = Reason("does not apply", "the new weights of all layers were not sent, so that no model gives a confidence")
            not_tried |= {LOSS: why, LIRA: why}
        with noting(not_tried, ROWS):
            statistics.append(row_distance(self._record, message, self._pool.data.inputs))
        return statistics

    def _is_whole(self, message: Message) -> bool:
        update = self._record.update(message)
        trains = (name for name, parameter in update.model.named_parameters() if parameter.requires_grad)
        return update.is_change and all(name in message.uploaded for name in trains)

    def _confidence(self, message: Message, uploaded: Uploaded) -> Array:
        """The confidence of the model that was sent back in the candidates' labels ``(n,)``."""
        net, inputs = self._record.update(message).model, self._pool.data.inputs
        assert isinstance(inputs, Tensor), "samples of a record are no pairs"
        state, was_training = {name: tensor for name, tensor in uploaded.items() if is_model(name)}, net.training
        try:
            with torch.no_grad():
                logits = [functional_call(net.eval(), state, (part,)) for part in torch.split(inputs, CHUNK)]
        finally:
            net.train(was_training)
        return confidence(torch.cat(logits), self._pool.data.labels)

    def _by_gradients(self, message: Message, own: Simulated) -> tuple[Array, Array]:
        """The regression of a message on the candidates' gradients, and of the server's own update as a control.

        Raises:
            Inapplicable: see :func:`fedpriv.attacks.inference.gradient_regression.gradient_regression`.
        """
        inputs = self._record.regression_beside(message, own)
        known, mine = (LabelledSamples(tensors(it.inputs), it.labels, from_tensors) for it in (self._pool.data, self._pool.spare))
        scores, control = gradient_regression(inputs.messages, known, mine, inputs.path)
        return scores, control

    def _over_rounds(self, last: tuple[Array, Array]) -> tuple[Array, Array]:
        """The regression's scores and their control, summed over the client's messages of all recorded rounds."""
        by_round = [last]
        for round in evenly([round for round, _ in self._record.messages(client=self._client)])[:-1]:
            message, own = self._record.message(round, self._client), self._own_update(round)
            if own is not None and is_finite(message.uploaded):
                by_round.append(self._by_gradients(message, own))
        scores, control = (np.sum(values, axis=0) for values in zip(*by_round, strict=True))
        return scores, control


def _trained(record: SimulatedRecord, client: int, spare: Split, shadows: int, round: int) -> Simulated | None:
    """The local update of a client with the server's own samples, in place of the client's in a round."""
    return record.simulated(record.message(round, client), spare, shadows)  # the number after the last shadow's


def candidates(record: SimulatedRecord, round: int, client: int, seed: int) -> Candidates:
    """Of each class as many of the client's samples as public ones, and further public ones for the server.

    Raises:
        FedprivError: too few public samples were recorded.
    """
    truth, labels = record.truth(client), record.server_labels()
    if not len(labels):
        raise FedprivError("no public samples were recorded (record.public), so there are no non-members")
    draws = generator(seed, round, client, "candidates")

    def shuffled(which: Tensor) -> Tensor:
        return which[torch.randperm(len(which), generator=draws)]

    inside, outside, spare = [], [], []
    for label in torch.unique(truth.labels):
        mine, theirs = (shuffled((held == label).nonzero().squeeze(1)) for held in (truth.labels, labels))
        number = min(len(mine), len(theirs) // 2)
        inside.append(mine[:number])
        outside.append(theirs[:number])
        spare.append(theirs[number : number + len(mine)])
    members, others, own = (torch.cat(part) for part in (inside, outside, spare))
    if not len(members):
        sender = record.sender(round, client).named
        raise FedprivError(f"{sender}: fewer than two public samples of each of its classes were recorded (record.public)")
    order = torch.randperm(len(members) + len(others), generator=draws)
    data = Split(record.as_input(truth.images[members]), truth.labels[members]).followed_by(record.server_samples(others))
    is_member = (torch.arange(len(order)) < len(members))[order]
    # A public sample is the same for all clients; those of clients have numbers of their own.
    numbers = torch.cat([-1 - members - 1_000_000_000 * client, others])[order]
    return Candidates(data.at(order), is_member.numpy(), numbers.numpy(), record.server_samples(shuffled(own)))
