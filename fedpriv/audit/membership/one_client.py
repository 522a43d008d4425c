"""Membership inference on the upload of one client: the scores of its candidates, by every attack that applies to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch

from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.membership import Array, Mask, Use, centred, halves, in_every_use
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
    confidences,
    is_finite,
    running_statistics,
    statistics_of,
)
from fedpriv.audit.membership.other_clients import OwnUpdates, against_other_clients
from fedpriv.audit.membership.readings import readings
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult, ShadowUpdates
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError

FEWEST_ALIKE = 4
"""Candidates of a class from which FedMIA is tried, whose scores are pooled by the medians of classes. That makes scores of
members and others depend on each other: of noise, 9 % of the intervals lay above one half with 2 a class, 4 % with 4."""


@dataclass(frozen=True)
class OfClient:
    """The result for one client.

    Attributes:
        samples, classes: of the candidates, see :class:`fedpriv.audit.membership.candidates.Candidates`.
        kinds: by attack, its statistic and how it is used.
        rounds: the rounds that FedMIA used.
    """

    scores: dict[str, Array]
    control: dict[str, Array]
    members: Mask
    samples: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]
    kinds: dict[str, tuple[Kind, Use]]
    not_tried: dict[str, Reason]
    diverged: int
    rounds: tuple[int, ...]

    def only(self, kept: Mask) -> OfClient:
        """The same of some candidates."""
        scores, control = ({name: one[kept] for name, one in values.items()} for values in (self.scores, self.control))
        who, which, classes = self.members[kept], self.samples[kept], self.classes[kept]
        return replace(self, scores=scores, control=control, members=who, samples=which, classes=classes)


def counted_once(found: Sequence[OfClient]) -> list[OfClient]:
    """The same with each sample as the candidate of one client alone, and as many members as others of each class."""
    counted, seen = list[OfClient](), np.empty(0, dtype=np.int64)
    for one in found:
        kept = ~np.isin(one.samples, seen)
        for label in np.unique(one.classes):
            alike = kept & (one.classes == label)
            inside, outside = np.flatnonzero(alike & one.members), np.flatnonzero(alike & ~one.members)
            kept[inside[len(outside) :]] = kept[outside[len(inside) :]] = False
        counted.append(one.only(kept))
        seen = np.union1d(seen, counted[-1].samples)
    return counted


def of_client(evidence: RunRecord, round: int, client: int, shadows: int, seed: int) -> OfClient:
    """Attack one upload. Only the last line uses the truth about members."""
    message, download = evidence.message(round, client), evidence.store.download(round)
    if download is None:
        raise UsageError(f"the download of round {round} was not kept, and shadows start from it")
    federation = evidence.federation
    pool: Candidates = candidates(federation, round, client, seed)
    inside = halves(shadows, len(pool.members), seed)
    # A shadow has as many samples as the client, so that it takes as many steps.
    filling = max(0, (message.num_examples or 0) - len(pool.members) // 2)
    own_update = shadows  # the number after the last shadow's

    def data(number: int) -> Split:
        if number == own_update:
            return pool.spare
        device = pool.data.labels.device
        chosen = pool.data.at(torch.from_numpy(inside[number]).nonzero().squeeze(1).to(device))
        return chosen.followed_by(pool.spare.at(torch.arange(min(filling, len(pool.spare.labels)), device=device)))

    updates = ShadowUpdates(federation, round, download, evidence.store.broadcast(), message.parts)
    results = updates.run(data, [own_update, *range(shadows)])
    own = next(results)
    if own is None:
        raise FedprivError(f"round {round}: the server's own local update diverged, as client {client}'s may have")
    ahead = list(islice(results, NETS if sends_centers(message) else 0))
    nets = [one.model for one in ahead if one is not None and is_finite(one.uploaded)]
    statistics, not_tried = statistics_of(evidence, message, own, pool, nets)
    uploads = (None if one is None else one.uploaded for one in chain(ahead, results))
    try:
        (scores, control), diverged = infer([message.uploaded, own.uploaded], inside, uploads, statistics)
    except (ValueError, Inapplicable) as error:
        raise FedprivError(f"round {round}, client {client}: no membership inference ({error})") from None
    for one in statistics:
        if one.kind == "confidence":
            control.pop(one.attack("alone"))
    control |= _before_any_training(evidence, round, message, own, pool, own_update)
    kinds: dict[str, tuple[Kind, Use]] = {
        name: (one.kind, use) for one in statistics for use in get_args(Use) if (name := one.attack(use)) in scores
    }
    own_updates = OwnUpdates(evidence, pool)
    try:
        scores[REGRESSION], control[REGRESSION] = last = by_gradients(evidence, message, own, pool)
        kinds[REGRESSION] = USED_BY[REGRESSION]
        if round == evidence.store.rounds()[-1] and len(evidence.store.rounds()) > 1:
            scores[REGRESSIONS], control[REGRESSIONS] = over_rounds(evidence, client, pool, last, own_updates)
            kinds[REGRESSIONS] = USED_BY[REGRESSIONS]
    except Inapplicable as error:
        not_tried[REGRESSIONS if REGRESSION in kinds else REGRESSION] = Reason("does not apply", str(error))
    if evidence.attacker.buffers(message):
        try:
            found = [running_statistics(evidence, message, sent, pool.data.inputs) for sent in (message.uploaded, own.uploaded)]
        except Inapplicable as error:
            not_tried[RUNNING] = Reason("does not apply", str(error))
        else:
            kinds[RUNNING], scores[RUNNING], control[RUNNING] = USED_BY[RUNNING], *found
    rounds: tuple[int, ...] = ()
    classes = pool.data.labels.cpu().numpy()
    if round == evidence.store.rounds()[-1]:
        # Only samples of one client and class are comparable, and of each half are members.
        try:
            if (usual := float(np.median(np.unique(classes, return_counts=True)[1]))) < FEWEST_ALIKE:
                raise Inapplicable(
                    f"scores are comparable within a class, and classes have {usual:g} candidates; {FEWEST_ALIKE} are needed"
                )
            compared = against_other_clients(evidence, client, pool, own_updates)
        except Inapplicable as error:
            not_tried[FEDMIA] = Reason("does not apply", str(error))
        else:
            rounds = compared.rounds
            for (kind, way), values in compared.scores.items():
                name = Statistic.named(kind, "FedMIA", way)
                alone = compared.control[kind, way]
                kinds[name], scores[name], control[name] = (kind, "FedMIA"), centred(values, classes), centred(alone, classes)
    return OfClient(scores, control, pool.members, pool.samples, classes, kinds, not_tried, diverged, rounds)


def _before_any_training(
    evidence: RunRecord, round: int, message: Message, own: ShadowResult, pool: Candidates, number: int
) -> dict[str, Array]:
    """The confidence of the candidates ``(n,)`` under a local update of round 1 with the server's own samples, as a control of
    the loss threshold; empty where that round's download was not kept.

    Args:
        own: such a local update of the attacked ``round``.
        number: of the simulated client.
    """
    first: ShadowResult | None = own
    if round > 1:
        if (download := evidence.store.download(1)) is None:
            return {}
        (first,) = ShadowUpdates(evidence.federation, 1, download, evidence.store.broadcast(), message.parts).run(
            lambda _: pool.spare, [number]
        )
    if first is None or not is_finite(first.uploaded):
        return {}
    objective = evidence.federation.method.objective
    ways = readings(evidence.federation.resident, first, pool.spare, pool.data.inputs, objective.labels)
    return {one.attack("alone"): one.of(first.uploaded) for one in confidences(ways, pool.data.labels)}


def infer(
    uploads: Sequence[Uploaded], inside: Mask, shadows: Iterable[Uploaded | None], statistics: Sequence[Statistic]
) -> tuple[list[dict[str, Array]], int]:
    """Scores of the candidates ``(n,)`` for each upload, by attack, and how many shadows diverged.

    The same shadows serve all uploads and all statistics.

    Args:
        inside: which candidates each shadow was trained on ``(s, n)``.
        shadows: the upload of each, ``None`` where it diverged; read one at a time.

    Raises:
        ValueError: an upload is not finite, or too few shadows are left.
    """
    seen: list[list[Array]] = [[] for _ in statistics]
    kept = []
    for number, shadow in zip(range(len(inside)), shadows, strict=True):
        if shadow is None or not is_finite(shadow):
            continue
        kept.append(number)
        for values, statistic in zip(seen, statistics, strict=True):
            values.append(statistic.of(shadow))
    if len(kept) < 4:
        raise ValueError(f"{len(inside) - len(kept)} of {len(inside)} shadow models diverged")
    if not all(map(is_finite, uploads)):
        raise ValueError("an upload is not finite")
    found: list[dict[str, Array]] = [{} for _ in uploads]
    for values, statistic in zip(seen, statistics, strict=True):
        beside = np.stack(values)
        for scores, uploaded in zip(found, uploads, strict=True):
            used = in_every_use(statistic.of(uploaded), beside, inside[kept])
            scores |= {statistic.attack(use): score for use, score in used.items()}
    return found, len(inside) - len(kept)
