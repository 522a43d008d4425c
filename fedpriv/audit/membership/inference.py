"""Membership inference on a client's real upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.membership import Use
from fedpriv.attacks.inference.membership_controls import SURE, Kind, kept_controls, running_statistics_control
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.scoring.operating_points import Area, OperatingPoints, area, interval, operating_points
from fedpriv.audit.membership.epsilon import epsilon_bounds, lower_bounds
from fedpriv.audit.membership.member_scores import (
    CENTERS,
    FEDMIA,
    LIRA,
    LOSS,
    OFFLINE,
    REGRESSION,
    REGRESSIONS,
    ROWS,
    RUNNING,
    USED_BY,
    Statistic,
)
from fedpriv.audit.membership.one_client import OfClient, attack_client, counted_once
from fedpriv.audit.progress import Progress, beside, unlimited
from fedpriv.audit.record.base import Record
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.epsilon import EpsilonBounds
from fedpriv.audit.results.outcome import ControlResult, Interval, Sender
from fedpriv.errors import FedprivError, UsageError

__all__ = [
    "CENTERS", "FEDMIA", "LIRA", "LOSS", "OFFLINE", "REGRESSION", "REGRESSIONS", "ROWS", "RUNNING", "Membership", "membership",
]  # fmt: skip
FEWEST_SHADOWS = 4
CONFIDENCE = 0.95
"""Confidence of the reported intervals."""
_THREAT = (
    "The server follows the protocol and uses one upload of each client (FedMIA and the gradient regression over rounds: "
    "several). It knows what it sent in this round and in round 0, the method and its options, and the number of samples where "
    "the upload states it.",
    "It does not know the run's random draws. Its shadow models train as in a client's first round, without what clients keep "
    "from earlier ones, also where that could be computed from their messages.",
    "It scores candidates with known labels, half of them members, and trains its shadows on random halves of them; it has "
    "further samples of the same classes. No client trained on the non-members or on the server's own samples up to this round.",
)
_ROWS = (
    "For the row distance it divides the weight gradient of the first linear layer with a bias by its bias gradient, and takes "
    "the distance of the nearest row to that layer's input for a candidate, at the weights that it sent."
)
_CENTERS = (
    "For the class centres it embeds candidates and its own samples with the client's encoder (with its own encoder, if a "
    "defence altered the client's). For layers that were not sent, it uses those that it trained itself."
)
_RUNNING = (
    "For the running statistics it undoes BatchNorm's momentum by the number of batches, which is known from the schedule, and "
    "passes the candidates through the layers before, normalised by what it found."
)
_FEDMIA = (
    "For FedMIA it also uses the client's messages of other kept rounds, what it sent in them, and the messages of the other "
    "clients of these rounds, as a reference for samples that a sender did not train on."
)
_GRADIENTS = (
    "For the gradient regression it computes the gradient of every candidate and of its own samples at the weights that it sent; "
    "where layers were not sent, with those that it trained itself. It knows the defences and their options. Over rounds it also "
    "uses what the client sent in the other kept rounds."
)
_SUMS = "It sees only the sum of the clients' uploads: a member is a sample that one of them trained on. Shadows are sums too."
_HIDDEN = (
    "The last layers were not sent: it completes the encoder with layers that it trained itself, in the ways listed. The "
    "positive controls of these attacks are on a whole model; they do not show that such layers suffice."
)


@dataclass(frozen=True)
class Membership:
    """The result over all attacked clients of a round together.

    Attributes:
        attacks: by attack, and by the way to complete the upload where its last layers are hidden.
        kinds: the statistic of each attack, tried or not, and how it is used.
        not_tried: why other attacks were not tried: they could not be mounted, or a control of theirs failed.
        controls: negative controls: areas of the attacks on the upload of a local update that saw no candidate. One of them fails
            by chance once in a thousand times, or because non-members differ from members in more than membership. FedMIA and the
            attacks on gradients, class centres and running statistics are not reported if their own negative control fails. The
            loss threshold's control is an update of round 1, since later models have seen the samples; there is no such control
            where that round's download was not kept.
        positive: positive controls (:mod:`fedpriv.attacks.inference.membership_controls`), with as many shadows; they are on a
            whole model even where the last layers are hidden.
        epsilon: LiRA's lower bound and the run's ledger; ``None`` where LiRA was not tried.
        likelihoods: the attacks behind that bound, LiRA on each statistic; the best one is taken.
        shadows: shadow local updates per client; ``diverged``: how many of all of them were left out.
        rounds: for each client, the rounds that FedMIA used; empty where it was not tried.
        threat: the threat model, in sentences.
    """

    round: int
    senders: tuple[Sender, ...]
    attacks: dict[str, OperatingPoints]
    kinds: dict[str, tuple[Kind, Use]]
    not_tried: dict[str, Reason]
    controls: dict[str, Area]
    positive: dict[str, Control]
    epsilon: EpsilonBounds | None
    likelihoods: tuple[str, ...]
    shadows: int
    diverged: int
    rounds: tuple[tuple[int, ...], ...]
    threat: tuple[str, ...]

    def together(self, of: int | None = None) -> dict[str, Interval]:
        """The intervals of the attacks' areas that hold simultaneously (Bonferroni), as the best one is picked.

        Args:
            of: the number of attacks, where those of other rounds count as well.
        """
        of = of or len(self.attacks)
        confidence = 1 - (1 - CONFIDENCE) / of
        areas = {
            name: interval(points.auc.value, points.members, points.non_members, confidence)
            for name, points in self.attacks.items()
        }
        return {name: Interval(span.low, span.high, of) for name, span in areas.items()}

    def extent(self, attack: str) -> str:
        """How many shadow local updates, or how many rounds, an attack used, in words; empty: none, or one."""
        _, use = self.kinds[attack]
        if use == "alone":
            return ""
        if use != "FedMIA":
            return f"{self.shadows} shadow models per client"
        least, most = min(map(len, self.rounds)), max(map(len, self.rounds))
        return f"{least if least == most else f'{least} to {most}'} round{'s' * (most > 1)} a client"

    @property
    def failed_controls(self) -> list[str]:
        """The attacks that were tried and find members in their negative controls; if there are any, no attack of the round
        counts.

        Attacks in :attr:`not_tried` are left out alone, even if that is for their own negative control.
        """
        return [name for name, control in self.controls.items() if name in self.attacks and not _finds_nothing(control)]

    def described_controls(self) -> list[ControlResult]:
        """The controls, positive ones first."""
        positive = [ControlResult(name, **vars(control)) for name, control in self.positive.items()]
        negative = []
        for name, control in self.controls.items():
            sentence = f"round {self.round}: {_on_no_candidate(control)}; the interval must contain 0.5"
            negative.append(ControlResult(name, "negative", _finds_nothing(control), sentence, None))
        return positive + negative


def membership(
    record: RunRecord,
    round: int,
    clients: Sequence[int],
    shadows: int,
    seed: int = 0,
    progress: Progress | None = None,
    workers: int = 1,
) -> Membership:
    """Attack the uploads of some clients in a round; their scores are pooled, as one client has few samples.

    A sample that is a candidate of several clients counts for one of them: models of one round score it alike, and intervals take
    scores as independent. FedMIA, which compares all kept rounds, is tried in the last one only: an earlier round's
    non-members may be trained on later.

    Args:
        shadows: shadow local updates per client; even. They dominate the cost: each is as expensive as a client's local update.
        progress: asked before each of them whether it may begin.
        workers: processes, which share the clients.

    Raises:
        UsageError: an upload was not kept.
        FedprivError: an upload is not finite, too many shadows diverged, or no candidates are left.
    """
    if shadows < FEWEST_SHADOWS or shadows % 2:
        raise UsageError(f"{shadows} shadow models: must be an even number of at least {FEWEST_SHADOWS}")
    in_time = unlimited if progress is None else progress.in_time
    calls = [partial(attack_client, record, round, client, shadows, seed, in_time) for client in clients]
    return pooled(record, round, clients, list(beside(calls, workers, progress)), shadows, seed)


def pooled(
    record: Record, round: int, clients: Sequence[int], of_clients: Sequence[OfClient], shadows: int, seed: int
) -> Membership:
    """The attacks on several clients as one, with their controls.

    Args:
        shadows: shadow local updates per client; 0: no attack uses any.

    Raises:
        FedprivError: no attack is left.
    """
    results = counted_once(of_clients)
    members = np.concatenate([result.members for result in results])
    known = {name: kind for result in results for name, kind in result.kinds.items()}
    kinds = {name: known[name] for name in results[0].kinds if all(name in result.kinds for result in results)}
    if REGRESSIONS in kinds and all(np.array_equal(it.scores[REGRESSIONS], it.scores[REGRESSION]) for it in results):
        del kinds[REGRESSIONS]  # no client sent a message in another kept round
    not_tried = _refused(results)
    must = kept_controls(shadows or FEWEST_SHADOWS, seed)
    if RUNNING in kinds:
        must[kinds[RUNNING]] = running_statistics_control(seed)
    failed = {name: must[kind].sentence for name, kind in kinds.items() if not must[kind].passed}
    not_tried |= {name: Reason("control failed", f"its control failed: {sentence}") for name, sentence in failed.items()}
    controlled = [name for name in kinds if name not in not_tried and all(name in result.control for result in results)]
    pooled = {name: np.concatenate([result.control[name] for result in results]) for name in controlled}
    controls = {name: area(values, members, 1 - (1 - SURE) / len(pooled)) for name, values in pooled.items()}
    # Shadows are a valid null by construction. For the other attacks that is an assumption (the server's model may have learned
    # members in earlier rounds); if their control contradicts it, they are left out.
    not_tried |= {
        name: Reason("control failed", f"its negative control failed: {_on_no_candidate(control)}")
        for name, control in controls.items()
        if (kinds[name][1] == FEDMIA or kinds[name][0] in ("class centre", "gradient", RUNNING)) and not _finds_nothing(control)
    }
    tried = [name for name in kinds if name not in not_tried]
    if not tried:
        reasons = "; ".join(dict.fromkeys(reason.text for reason in not_tried.values()))
        raise FedprivError(f"round {round}: no membership attack could be tried ({reasons})")
    scores = {name: np.concatenate([result.scores[name] for result in results]) for name in tried}
    likelihoods = {name: scores[name] for name in tried if kinds[name][1] == "LiRA"}
    across = any(kinds[name][1] == FEDMIA for name in tried)
    bounds = None
    if likelihoods and not record.summed:  # the ledger has no account of a sum
        each = [*likelihoods.values()]
        if isinstance(record, RunRecord):
            last = record.folder.records()[-1]["round"]
            bounds = epsilon_bounds(record.federation, round, last, clients, each, members, seed)
        else:
            bounds = lower_bounds(each, members, record.delta, seed)
    also = {
        _SUMS: record.summed,
        _ROWS: ROWS in kinds,
        _CENTERS: CENTERS in kinds,
        _GRADIENTS: REGRESSION in kinds,
        _RUNNING: RUNNING in kinds,
        _FEDMIA: across,
        _HIDDEN: LIRA not in kinds,
    }
    return Membership(
        round=round,
        senders=tuple(record.sender(round, client) for client in clients),
        attacks={name: operating_points(values, members) for name, values in scores.items()},
        kinds={name: known.get(name) or USED_BY[name] for name in (*tried, *not_tried)},
        not_tried=not_tried,
        controls=controls,
        positive={Statistic.named(*kind): must[kind] for kind in dict.fromkeys(kinds.values())},
        epsilon=bounds,
        likelihoods=tuple(likelihoods),
        shadows=shadows,
        diverged=sum(result.diverged for result in results),
        rounds=tuple(result.rounds for result in results) if across else (),
        threat=(*_THREAT, *(sentence for sentence, applies in also.items() if applies)),
    )


def _finds_nothing(control: Area) -> bool:
    return control.low <= 0.5 <= control.high


def _on_no_candidate(control: Area) -> str:
    span = f"interval {control.low:.2f} to {control.high:.2f}"
    return f"an upload of a client trained on none of the candidates (AUC {control.value:.2f}, {span})"


def _refused(results: Sequence[OfClient]) -> dict[str, Reason]:
    """Why attacks were not mounted, by attack: they do not apply to some client's upload."""
    reasons = {name: reason for result in results for name, reason in result.not_tried.items()}
    everywhere = set.intersection(*(set(result.kinds) for result in results))
    partly = dict.fromkeys(name for result in results for name in result.kinds if name not in everywhere)
    return dict.fromkeys(partly, Reason("does not apply", "it does not apply to every client's upload")) | reasons
