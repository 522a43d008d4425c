"""Which samples a client trained on, inferred from an upload that it really sent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch

from attacks.core.reconstruction import Inapplicable
from attacks.inference.membership import Array, Mask, Use, halves, in_every_use
from attacks.inference.membership_controls import SURE, Kind, positive_controls
from attacks.lab.controls import Control
from attacks.scoring.operating_points import Area, OperatingPoints, area, operating_points
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.evidence.shadow_turns import ShadowTurns
from fedpriv.audit.membership.candidates import Candidates, candidates
from fedpriv.audit.membership.epsilon import EpsilonBounds, epsilon_bounds
from fedpriv.audit.membership.member_scores import LIRA, LOSS, OFFLINE, ROWS, Statistic, Uploaded, confidences, row_distance
from fedpriv.audit.membership.readings import readings
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError

__all__ = ["LIRA", "LOSS", "OFFLINE", "ROWS", "Membership", "infer", "membership"]
CONFIDENCE = 0.95
"""Of the intervals that are reported."""

_THREAT = (
    "The server follows the protocol and looks at one upload of each client. It knows what it sent in this round and in round 0, "
    "the method and its options, and the number of samples where the upload states it.",
    "It does not know the run's random draws, nor what a client kept from earlier turns: its shadows take their first turn.",
    "It is asked about candidates of known labels, half of them members, and trains its shadows on random halves of them; it has "
    "further samples of the same classes. Non-members and its own samples are some that no client trained on up to this round.",
)
_ROWS = (
    "For the row distance it takes the gradient that the upload shows of the first linear layer with a bias, weight over bias, "
    "and looks how near the nearest row comes to what that layer would be fed for a candidate at the weights that were sent."
)
_HIDDEN = (
    "The last layers did not cross the wire: it reads the encoder with layers that it trained itself, in the ways listed. The "
    "positive controls of these attacks read a whole model; none says that such layers must do."
)


@dataclass(frozen=True)
class Membership:
    """The result, over all attacked clients together.

    Attributes:
        attacks: by attack, and by how the upload was read where that is not as it stands.
        together: their areas, with intervals that hold for all of them at once (Bonferroni), since the best one is picked.
        not_tried: why others were not, by attack: they could not be mounted, or their positive control failed.
        controls: areas that attacks have on the upload of a turn that saw none of the candidates. By chance one of them fails
            once in a thousand times. The loss threshold has none: in later rounds the model that the server sent knows a client's
            samples from its earlier turns, which comparing candidates shows and comparing with shadows does not.
        positive: what each attack told where it must (:mod:`attacks.inference.membership_controls`), with as many shadows.
            Whatever the way to read an upload whose last layers are hidden, it is that of the attack on a whole model.
        epsilon: the lower bound that LiRA shows, beside what the run's ledger says; ``None`` where LiRA was not tried.
        likelihoods: the attacks that it was taken from, LiRA on each statistic, of which the best bound is taken.
        shadows: shadow turns a client; of all of them ``diverged`` were left out.
        threat: what the attacker is and knows, in sentences.
    """

    round: int
    clients: tuple[int, ...]
    attacks: dict[str, OperatingPoints]
    together: dict[str, Area]
    not_tried: dict[str, str]
    controls: dict[str, Area]
    positive: dict[str, Control]
    epsilon: EpsilonBounds | None
    likelihoods: tuple[str, ...]
    shadows: int
    diverged: int
    cpu_seconds: float
    threat: tuple[str, ...]

    @property
    def controls_passed(self) -> bool:
        """Whether the attacks find nothing where there is nothing to find."""
        return all(one.low <= 0.5 <= one.high for one in self.controls.values())

    def described_controls(self) -> list[dict[str, Any]]:
        """As JSON, in the form of the controls of the attacks on images: first those that must tell members, then the others."""
        shown = [{"attacker": name, **vars(control)} for name, control in self.positive.items()]
        for name, one in self.controls.items():
            told = f"an upload of a turn that saw no candidate (AUC {one.value:.2f}, interval {one.low:.2f} to {one.high:.2f})"
            about = {"name": "negative", "passed": one.low <= 0.5 <= one.high, "cpu_seconds": None}
            shown.append({"attacker": name, **about, "sentence": f"{told}; it must hold 0.5"})
        return shown


def membership(evidence: Evidence, round: int, clients: Sequence[int], shadows: int = 64, seed: int = 0) -> Membership:
    """Attack the uploads of some clients in a round; few clients have too few samples to say much, so their scores are pooled.

    Args:
        shadows: turns that the server plays for each client; even. The cost of the attack: each is as dear as a client's turn.

    Raises:
        UsageError: an upload was not kept.
        FedprivError: an upload is not finite, too many shadows diverged, or no candidates are left.
    """
    if shadows < 4 or shadows % 2:
        raise UsageError(f"{shadows} shadow turns: an even number of at least 4")
    began = time.process_time()
    found = [_client(evidence, round, client, shadows, seed) for client in clients]
    members = np.concatenate([one.members for one in found])
    kinds = {name: kind for name, kind in found[0].kinds.items() if all(name in one.kinds for one in found)}
    not_tried = _refused(found)
    must = positive_controls(shadows, seed)
    failed = {name: must[which].sentence for name, which in kinds.items() if not must[which].passed}
    not_tried |= {name: f"its control failed: {sentence}" for name, sentence in failed.items()}
    tried = [name for name in kinds if name not in not_tried]
    if not tried:
        reasons = "; ".join(dict.fromkeys(not_tried.values()))
        raise FedprivError(f"round {round}: no membership attack could be tried ({reasons})")
    scores = {name: np.concatenate([one.scores[name] for one in found]) for name in tried}
    control = {
        name: np.concatenate([one.control[name] for one in found]) for name in tried if kinds[name] != ("confidence", "alone")
    }
    likelihoods = {name: scores[name] for name in tried if kinds[name][1] == "LiRA"}
    threat = (*_THREAT, *([_ROWS] if ROWS in kinds else []), *([] if LIRA in kinds else [_HIDDEN]))
    return Membership(
        round=round,
        clients=tuple(clients),
        attacks={name: operating_points(values, members) for name, values in scores.items()},
        together={name: area(values, members, 1 - (1 - CONFIDENCE) / len(scores)) for name, values in scores.items()},
        not_tried=not_tried,
        controls={name: area(values, members, 1 - (1 - SURE) / len(control)) for name, values in control.items()},
        positive={Statistic.named(*which): must[which] for which in dict.fromkeys(kinds.values())},
        epsilon=_epsilon(evidence, round, clients, list(likelihoods.values()), members, seed),
        likelihoods=tuple(likelihoods),
        shadows=shadows,
        diverged=sum(one.diverged for one in found),
        cpu_seconds=time.process_time() - began,
        threat=threat,
    )


def _epsilon(
    evidence: Evidence, round: int, clients: Sequence[int], likelihoods: Sequence[Array], members: Mask, seed: int
) -> EpsilonBounds | None:
    return epsilon_bounds(evidence.federation, round, clients, likelihoods, members, seed) if likelihoods else None


@dataclass(frozen=True)
class _Found:
    """Of one client.

    Attributes:
        kinds: by attack, what it compares and how.
    """

    scores: dict[str, Array]
    control: dict[str, Array]
    members: Mask
    kinds: dict[str, tuple[Kind, Use]]
    not_tried: dict[str, str]
    diverged: int


def _client(evidence: Evidence, round: int, client: int, shadows: int, seed: int) -> _Found:
    """The attack on one upload; only the last line looks at who is a member."""
    message, download = evidence.message(round, client), evidence.store.download(round)
    if download is None:
        raise UsageError(f"what the server sent in round {round} was not kept; shadows have nothing to start from")
    federation = evidence.federation
    asked: Candidates = candidates(federation, round, client, seed)
    inside = halves(shadows, len(asked.members), seed)
    # A shadow has as many samples as the client: it takes as many steps.
    filling = max(0, (message.num_examples or 0) - len(asked.members) // 2)
    own_turn = shadows  # the number after the last shadow's

    def data(number: int) -> Split:
        if number == own_turn:
            return asked.spare
        device = asked.data.labels.device
        chosen = asked.data.at(torch.from_numpy(inside[number]).nonzero().squeeze(1).to(device))
        return chosen.followed_by(asked.spare.at(torch.arange(min(filling, len(asked.spare.labels)), device=device)))

    turns = ShadowTurns(federation, round, download, evidence.store.broadcast())
    played = turns.play(data, [own_turn, *range(shadows)])
    own = next(played)
    if own is None:
        raise FedprivError(f"round {round}: the server's own turn diverged, as client {client}'s may have")
    ways = readings(federation.resident, own, asked.spare, asked.data.inputs, federation.method.objective.labels)
    statistics, not_tried = confidences(ways, asked.data.labels), dict[str, str]()
    if not ways:
        not_tried[LOSS] = not_tried[LIRA] = f"client {client} holds one class, and a probe of features without a head needs two"
    try:
        statistics.append(row_distance(evidence, message, asked.data.inputs))
    except Inapplicable as error:
        not_tried[ROWS] = str(error)
    uploads = (None if one is None else one.uploaded for one in played)
    try:
        (scores, control), diverged = infer([message.uploaded, own.uploaded], inside, uploads, statistics)
    except (ValueError, Inapplicable) as error:
        raise FedprivError(f"round {round}, client {client}: no membership inference ({error})") from None
    kinds = {one.attack(use): (one.kind, use) for one in statistics for use in get_args(Use)}
    return _Found(scores, control, asked.members, kinds, not_tried, diverged)


def infer(
    uploads: Sequence[Uploaded], inside: Mask, shadows: Iterable[Uploaded | None], statistics: Sequence[Statistic]
) -> tuple[list[dict[str, Array]], int]:
    """Scores of the candidates ``(n,)`` for each upload, by attack, and how many shadows diverged.

    The same shadows serve all uploads and all statistics.

    Args:
        inside: which candidates each shadow was trained on ``(s, n)``.
        shadows: what each would have uploaded, ``None`` where it diverged; one is looked at after another.

    Raises:
        ValueError: an upload is not finite, or too few shadows are left.
    """
    seen: list[list[Array]] = [[] for _ in statistics]
    kept = []
    for number, shadow in zip(range(len(inside)), shadows, strict=True):
        if shadow is None or not _is_finite(shadow):
            continue
        kept.append(number)
        for values, statistic in zip(seen, statistics, strict=True):
            values.append(statistic.of(shadow))
    if len(kept) < 4:
        raise ValueError(f"{len(inside) - len(kept)} of {len(inside)} shadow turns diverged")
    if not all(map(_is_finite, uploads)):
        raise ValueError("an upload that is not finite")
    found: list[dict[str, Array]] = [{} for _ in uploads]
    for values, statistic in zip(seen, statistics, strict=True):
        beside = np.stack(values)
        for scores, uploaded in zip(found, uploads, strict=True):
            used = in_every_use(statistic.of(uploaded), beside, inside[kept])
            scores |= {statistic.attack(use): score for use, score in used.items()}
    return found, len(inside) - len(kept)


def _is_finite(uploaded: Uploaded) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in uploaded.values())


def _refused(found: Sequence[_Found]) -> dict[str, str]:
    """Why attacks were not mounted, by attack: on some client's upload there was no way to."""
    said = {name: reason for one in found for name, reason in one.not_tried.items()}
    partly = dict.fromkeys(name for one in found for name in one.kinds if not all(name in other.kinds for other in found))
    return dict.fromkeys(partly, "not every client's upload can be read so") | said
