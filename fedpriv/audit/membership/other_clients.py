"""FedMIA: a client's messages of all kept rounds, compared with those of the other clients of the same rounds.

The other clients are the null distribution: scores of samples that the sender did not train on. That needs no shadow models, but
rests on what :func:`fedpriv.attacks.inference.membership.fedmia` assumes of them. The negative control tests it: in each round,
a local update of the server on samples of the client's classes takes the place of the client's message, and must reveal no
member. Like those of the other clients, it starts from a model that has learned the members in the client's earlier updates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeVar

import numpy as np

from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.inference.membership import Array, fedmia
from fedpriv.attacks.inference.membership_controls import Kind
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.membership.member_scores import Statistic, Uploaded, applicable_statistics, is_finite
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult, ShadowUpdates

OTHERS = 2
"""Least number of other clients of a round, as fewer have no standard deviation."""
MOST = 16
"""Most rounds that are used, evenly spaced where more were kept; each costs a local update of the server."""

Scores = dict[tuple[Kind, str], Array]
"""(statistic, way to complete an upload) -> a number per candidate ``(n,)``."""


class HasUpload(Protocol):
    """A local update of the server's own."""

    @property
    def uploaded(self) -> Uploaded:
        """What it would upload, by the net's names."""


Own = TypeVar("Own", bound=HasUpload)


@dataclass(frozen=True)
class Compared:
    """The results of FedMIA on one client.

    Attributes:
        scores: of the candidates ``(n,)``, higher for likelier members.
        control: the same, from local updates that saw no candidate.
        rounds: the rounds that were used.
    """

    scores: Scores
    control: Scores
    rounds: tuple[int, ...]


def against_other_clients(record: RunRecord, client: int, pool: Candidates, own_updates: OwnUpdates | None = None) -> Compared:
    """Score a client's candidates by FedMIA.

    Args:
        pool: candidates for the last kept round, up to which no client trained on its non-members.
        own_updates: of the server with ``pool.spare``; ``None``: they are computed here.

    Raises:
        Inapplicable: too few messages were kept, or no statistic applies to all of them.
    """
    updates = own_updates or OwnUpdates(record, pool)
    return compared(record, client, updates, lambda message, own: applicable_statistics(record, message, own, pool)[0])


def compared(
    record: Record,
    client: int,
    own_updates: Callable[[int], Own | None],
    statistics: Callable[[Message, Own], Sequence[Statistic]],
) -> Compared:
    """Score a client's candidates by FedMIA, in any record.

    Args:
        own_updates: round -> the server's local update with samples of its own; ``None``: there is none.
        statistics: a message of a round and that update -> the statistics that apply to the message.

    Raises:
        Inapplicable: see :func:`against_other_clients`.
    """
    observed, control, others = (defaultdict[tuple[Kind, str], list[Array]](list) for _ in range(3))
    used = []
    for round in evenly(_rounds_of(record, client)):
        message = record.message(round, client)
        if not is_finite(message.uploaded) or (own := own_updates(round)) is None:
            continue
        # One message of another client is in memory at a time.
        others_messages = (record.message(round, other) for other in record.whole_clients(round) if other != client)
        null, number = _scores(others_messages, own, statistics)
        if number < OTHERS:
            continue
        used.append(round)
        mine, none = (_scores([it], own, statistics)[0] for it in (message, message.simulated(own.uploaded)))
        for key in [key for key in mine if key in none and key in null]:
            observed[key].append(mine[key][0])
            control[key].append(none[key][0])
            others[key].append(null[key])
    if not used:
        raise Inapplicable(
            f"in no round are the messages of the client and of {OTHERS} others and of the server's own training finite"
        )
    keys = [key for key, values in observed.items() if len(values) == len(used)]
    if not keys:
        raise Inapplicable("no statistic applies to the messages of the client and of the others in every round")
    scores = {key: fedmia(observed[key], others[key]) for key in keys}
    return Compared(scores, {key: fedmia(control[key], others[key]) for key in keys}, tuple(used))


def _rounds_of(record: Record, client: int) -> list[int]:
    """The rounds of which the messages of the client and of enough others were kept; :class:`Inapplicable`: there is none."""
    kept = {round: clients for round in record.rounds() if client in (clients := record.clients(round))}
    rounds = [round for round in kept if len(record.whole_clients(round)) > OTHERS]
    if not rounds:
        most = max(map(len, kept.values())) - 1
        raise Inapplicable(f"it needs the messages of {OTHERS} other clients of a round, and {most} were kept")
    return rounds


def evenly(rounds: list[int]) -> list[int]:
    """The rounds, or :data:`MOST` evenly spaced ones, the last among them."""
    if len(rounds) <= MOST:
        return rounds
    return [rounds[-1 - i * len(rounds) // MOST] for i in reversed(range(MOST))]


class OwnUpdates:
    """The server's local updates of kept rounds with its own samples, each computed once.

    Args:
        known: those that were computed, by round and number of clients of a sum.
    """

    def __init__(
        self, record: RunRecord, pool: Candidates, known: Mapping[tuple[int, int], ShadowResult] = MappingProxyType({})
    ) -> None:
        self._evidence, self._pool = record, pool
        self._known: dict[tuple[int, int], ShadowResult | None] = dict(known)

    def __call__(self, round: int, parts: int = 1) -> ShadowResult | None:
        """The local update of a round; ``None``: it diverged, or the round's download was not kept."""
        if (round, parts) not in self._known:
            self._known[round, parts] = self._trained(round, parts)
        return self._known[round, parts]

    def _trained(self, round: int, parts: int) -> ShadowResult | None:
        record = self._evidence
        if (download := record.store.download(round)) is None:
            return None
        updates = ShadowUpdates(record.federation, round, download, record.store.broadcast(), parts)
        (own,) = updates.run(lambda _: self._pool.spare, [0])
        return own if own is not None and is_finite(own.uploaded) else None


def _scores(
    messages: Iterable[Message], own: Own, statistics: Callable[[Message, Own], Sequence[Statistic]]
) -> tuple[Scores, int]:
    """The statistics of each finite message ``(K, n)`` that apply to all of them, and K."""
    scores: dict[tuple[Kind, str], list[Array]] = defaultdict(list)
    number = 0
    for message in messages:
        if not is_finite(message.uploaded):
            continue
        number += 1
        for statistic in statistics(message, own):
            scores[statistic.kind, statistic.way].append(statistic.of(message.uploaded))
    return {key: np.stack(values) for key, values in scores.items() if len(values) == number}, number
