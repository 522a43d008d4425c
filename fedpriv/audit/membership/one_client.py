"""Membership inference on the upload of one client: the scores of its candidates, by every attack that applies to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch

from fedpriv.attacks.core.labels import groups
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.membership import Array, Mask, Use, centred, in_every_use, random_halves
from fedpriv.attacks.inference.membership_controls import Kind
from fedpriv.audit.membership.candidates import Candidates, candidates
from fedpriv.audit.membership.class_centers import NETS, sends_centers
from fedpriv.audit.membership.gradients import by_gradients, over_rounds
from fedpriv.audit.membership.member_scores import (
    FEDMIA,
    REGRESSION,
    REGRESSIONS,
    RUNNING,
    USED_BY,
    Statistic,
    Uploaded,
    applicable_statistics,
    confidences,
    is_finite,
    noting,
    running_statistics,
)
from fedpriv.audit.membership.other_clients import Compared, OwnUpdates, against_other_clients
from fedpriv.audit.membership.readings import readings
from fedpriv.audit.progress import unlimited
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowUpdates
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError

FEWEST_ALIKE = 4
"""FedMIA needs so many candidates per class (the median): scores are centred by class medians, which correlates the scores of
members and others. On pure noise, 9 % of the AUC intervals lay above 0.5 with 2 candidates per class, 4 % with 4."""


@dataclass(frozen=True)
class OfClient:
    """The result for one client.

    Attributes:
        samples, classes: of the candidates, see :class:`fedpriv.audit.membership.candidates.Candidates`.
        scores, control: by attack, of the client's upload and of one that saw no candidate.
        kinds: by attack, its statistic and how it is used.
        diverged: how many shadows were left out.
        rounds: the rounds that FedMIA used.
    """

    members: Mask
    samples: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]
    scores: dict[str, Array] = field(default_factory=dict)
    control: dict[str, Array] = field(default_factory=dict)
    kinds: dict[str, tuple[Kind, Use]] = field(default_factory=dict)
    not_tried: dict[str, Reason] = field(default_factory=dict)
    diverged: int = 0
    rounds: tuple[int, ...] = ()

    def add(self, name: str, kind: tuple[Kind, Use], scores: Array, control: Array) -> None:
        """Add an attack."""
        self.kinds[name], self.scores[name], self.control[name] = kind, scores, control

    def only(self, kept: Mask) -> OfClient:
        """The result for some of the candidates."""
        scores, control = (
            {name: values[kept] for name, values in by_attack.items()} for by_attack in (self.scores, self.control)
        )
        who, which, classes = self.members[kept], self.samples[kept], self.classes[kept]
        return replace(self, scores=scores, control=control, members=who, samples=which, classes=classes)


def counted_once(clients: Sequence[OfClient]) -> list[OfClient]:
    """The results with each sample as the candidate of one client only, and equally many members and others of each class."""
    distinct, seen = list[OfClient](), np.empty(0, dtype=np.int64)
    for client in clients:
        kept = ~np.isin(client.samples, seen)
        for label in np.unique(client.classes):
            alike = kept & (client.classes == label)
            inside, outside = np.flatnonzero(alike & client.members), np.flatnonzero(alike & ~client.members)
            kept[inside[len(outside) :]] = kept[outside[len(inside) :]] = False
        distinct.append(client.only(kept))
        seen = np.union1d(seen, distinct[-1].samples)
    return distinct


def attack_client(
    record: RunRecord, round: int, client: int, shadows: int, seed: int, in_time: Callable[[], None] = unlimited
) -> OfClient:
    """Attack one upload; the truth about members is only in the result. ``in_time`` is called before each local update."""
    message, download = record.message(round, client), record.store.download(round)
    if download is None:
        raise UsageError(f"the download of round {round} was not kept, and shadows start from it")
    federation = record.federation
    pool: Candidates = candidates(federation, round, client, seed)
    inside = random_halves(shadows, len(pool.members), seed)
    # A shadow has as many samples as the client, so that it takes as many steps.
    filling = max(0, (message.num_examples or 0) - len(pool.members) // 2)
    own_update = shadows  # the number after the last shadow's

    def data(number: int) -> Split:
        in_time()
        if number == own_update:
            return pool.spare
        device = pool.data.labels.device
        chosen = pool.data.at(torch.from_numpy(inside[number]).nonzero().squeeze(1).to(device))
        return chosen.followed_by(pool.spare.at(torch.arange(min(filling, len(pool.spare.labels)), device=device)))

    updates = ShadowUpdates(federation, round, download, record.store.broadcast(), message.parts)
    results = updates.run(data, [own_update, *range(shadows)])
    own = next(results)
    if own is None:
        raise FedprivError(f"round {round}: the server's own local update diverged, as client {client}'s may have")
    ahead = list(islice(results, NETS if sends_centers(message) else 0))
    nets = [result.model for result in ahead if result is not None and is_finite(result.uploaded)]
    statistics, not_tried = applicable_statistics(record, message, own, pool, nets)
    uploads = (None if result is None else result.uploaded for result in chain(ahead, results))
    try:
        (scores, control), diverged = infer([message.uploaded, own.uploaded], inside, uploads, statistics)
    except (ValueError, Inapplicable) as error:
        raise FedprivError(f"round {round}, client {client}: no membership inference ({error})") from None
    for statistic in statistics:
        if statistic.kind == "confidence":
            control.pop(statistic.attack("alone"))
    own_updates = OwnUpdates(record, pool, {(round, message.parts): own})
    control |= _before_any_training(record, message, pool, own_updates)
    kinds: dict[str, tuple[Kind, Use]] = {
        name: (statistic.kind, use)
        for statistic in statistics
        for use in get_args(Use)
        if (name := statistic.attack(use)) in scores
    }
    classes = groups(pool.data.labels).cpu().numpy()
    by_shadows = OfClient(pool.members, pool.samples, classes, scores, control, kinds, not_tried, diverged)
    return _without_shadows(by_shadows, record, message, client, pool, own_updates)


def _without_shadows(
    result: OfClient, record: RunRecord, message: Message, client: int, pool: Candidates, own_updates: OwnUpdates
) -> OfClient:
    """The result with the attacks that need no shadows."""
    not_tried, rounds, is_last = result.not_tried, tuple[int, ...](), message.round == record.store.rounds()[-1]
    own = own_updates(message.round, message.parts)
    assert own is not None, "the attacks with shadows need it, too"
    with noting(not_tried, REGRESSION):
        result.add(REGRESSION, USED_BY[REGRESSION], *by_gradients(record, message, own, pool))
    if REGRESSION in result.kinds and is_last and len(record.store.rounds()) > 1:
        last = result.scores[REGRESSION], result.control[REGRESSION]
        with noting(not_tried, REGRESSIONS):
            result.add(REGRESSIONS, USED_BY[REGRESSIONS], *over_rounds(record, client, pool, last, own_updates))
    if record.attacker.buffers(message):
        with noting(not_tried, RUNNING):
            scores, control = (
                running_statistics(record, message, sent, pool.data.inputs) for sent in (message.uploaded, own.uploaded)
            )
            result.add(RUNNING, USED_BY[RUNNING], scores, control)
    if is_last:
        rounds = add_fedmia(result, partial(against_other_clients, record, client, pool, own_updates))
    return replace(result, rounds=rounds)


def add_fedmia(result: OfClient, compare: Callable[[], Compared]) -> tuple[int, ...]:
    """Add FedMIA, or why it does not apply; return the rounds that it used."""
    with noting(result.not_tried, FEDMIA):
        # Only samples of one client and class are comparable, and half of each such group are members.
        classes = result.classes
        if (alike := float(np.median(np.unique(classes, return_counts=True)[1]))) < FEWEST_ALIKE:
            raise Inapplicable(
                f"scores are comparable within a class, and classes have {alike:g} candidates; {FEWEST_ALIKE} are needed"
            )
        compared = compare()
        for (kind, way), values in compared.scores.items():
            both = centred(values, classes), centred(compared.control[kind, way], classes)
            result.add(Statistic.named(kind, "FedMIA", way), (kind, "FedMIA"), *both)
        return compared.rounds
    return ()


def _before_any_training(record: RunRecord, message: Message, pool: Candidates, own_updates: OwnUpdates) -> dict[str, Array]:
    """The confidence of the candidates ``(n,)`` under a local update of round 1 with the server's own samples, as a control of
    the loss threshold; empty where that round's download was not kept."""
    if (first := own_updates(1, message.parts)) is None:
        return {}
    objective = record.federation.method.objective
    ways = readings(record.federation.resident, first, pool.spare, pool.data.inputs, objective.labels)
    return {statistic.attack("alone"): statistic.of(first.uploaded) for statistic in confidences(ways, pool.data.labels)}


def infer(
    uploads: Sequence[Uploaded], inside: Mask, shadows: Iterable[Uploaded | None], statistics: Sequence[Statistic]
) -> tuple[list[dict[str, Array]], int]:
    """Scores of the candidates ``(n,)`` for each upload, by attack, and how many shadows diverged.

    All uploads and statistics share the same shadows.

    Args:
        inside: which candidates each shadow was trained on ``(s, n)``.
        shadows: the upload of each, ``None`` where it diverged; read one at a time.

    Raises:
        ValueError: an upload is not finite, or too few shadows are left.
    """
    by_statistic: list[list[Array]] = [[] for _ in statistics]
    kept = []
    for number, shadow in zip(range(len(inside)), shadows, strict=True):
        if shadow is None or not is_finite(shadow):
            continue
        kept.append(number)
        for values, statistic in zip(by_statistic, statistics, strict=True):
            values.append(statistic.of(shadow))
    if len(kept) < 4:
        raise ValueError(f"{len(inside) - len(kept)} of {len(inside)} shadow models diverged")
    if not all(map(is_finite, uploads)):
        raise ValueError("an upload is not finite")
    by_upload: list[dict[str, Array]] = [{} for _ in uploads]
    for values, statistic in zip(by_statistic, statistics, strict=True):
        of_shadows = np.stack(values)
        for scores, uploaded in zip(by_upload, uploads, strict=True):
            by_use = in_every_use(statistic.of(uploaded), of_shadows, inside[kept])
            scores |= {statistic.attack(use): score for use, score in by_use.items()}
    return by_upload, len(inside) - len(kept)
