"""Which samples a client trained on, learned from an upload that it really sent (method card, A11)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.membership import Array, Mask, confidence, halves, lira, loss_threshold
from attacks.operating_points import Area, OperatingPoints, area, operating_points
from attacks.scores import Rate
from fedpriv.audit.candidates import Candidates, candidates
from fedpriv.audit.evidence import Evidence
from fedpriv.audit.membership_epsilon import EpsilonBounds, epsilon_bounds
from fedpriv.audit.readings import Reading, readings
from fedpriv.audit.shadow_turns import ShadowTurns
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError

LOSS, LIRA, OFFLINE = "loss threshold", "LiRA", "LiRA offline"
SURE = 0.999
"""Confidence of the control's interval: it fails by chance once in two thousand times."""

Uploaded = Mapping[str, Tensor]

_THREAT = (
    "The server follows the protocol and looks at one upload of each client. It knows what it sent in this round and in round 0, "
    "the method and its options, and the number of samples where the upload states it.",
    "It does not know the run's random draws, nor what a client kept from earlier turns: its shadows take their first turn.",
    "It is asked about candidates of known labels, half of them members, and trains its shadows on random halves of them; it has "
    "further samples of the same classes. Non-members and its own samples are some that nobody trained on up to this round.",
)
_HIDDEN = "The last layers did not cross the wire: it reads the encoder with layers that it trained itself, in the ways listed."


@dataclass(frozen=True)
class Membership:
    """What was found, over all attacked clients together.

    Attributes:
        attacks: by attack, and by how the upload was read where that is not as it stands.
        controls: areas (with their 99.9 % intervals) that LiRA has on the upload of a turn that saw none of the candidates.
        epsilon: the lower bound that LiRA shows, beside what the run's ledger says.
        shadows: shadow turns a client; of all of them ``diverged`` were left out.
        threat: what the attacker is and knows, in sentences.
    """

    round: int
    clients: tuple[int, ...]
    attacks: dict[str, OperatingPoints]
    controls: dict[str, Area]
    epsilon: EpsilonBounds
    shadows: int
    diverged: int
    cpu_seconds: float
    threat: tuple[str, ...]

    @property
    def controls_passed(self) -> bool:
        """Whether the attack finds nothing where there is nothing to find."""
        return all(one.low <= 0.5 <= one.high for one in self.controls.values())

    def to_json(self) -> dict[str, Any]:
        """As plain lists, numbers and strings."""
        attacks = {
            name: {
                **asdict(found),
                "at": [
                    {"false_positive_rate": rate, **({} if point is None else {k: _rate(v) for k, v in vars(point).items()})}
                    for rate, point in found.at.items()
                ],
            }
            for name, found in self.attacks.items()
        }
        return {**asdict(self), "attacks": attacks, "controls_passed": self.controls_passed, "chance": {"auc": 0.5}}


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
    scores = {name: np.concatenate([one.scores[name] for one in found]) for name in found[0].scores}
    control = {name: np.concatenate([one.control[name] for one in found]) for name in found[0].control if _is_lira(name)}
    likelihoods = [values for name, values in scores.items() if _is_lira(name)]
    return Membership(
        round=round,
        clients=tuple(clients),
        attacks={name: operating_points(values, members) for name, values in scores.items()},
        controls={name: area(values, members, SURE) for name, values in control.items()},
        epsilon=epsilon_bounds(evidence.federation, round, clients, likelihoods, members, seed),
        shadows=shadows,
        diverged=sum(one.diverged for one in found),
        cpu_seconds=time.process_time() - began,
        threat=_THREAT if LIRA in scores else (*_THREAT, _HIDDEN),
    )


@dataclass(frozen=True)
class _Found:
    scores: dict[str, Array]
    control: dict[str, Array]
    members: Mask
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
    if not ways:
        raise FedprivError(f"round {round}: client {client} holds one class, and a probe of features without a head needs two")
    uploads = (None if one is None else one.uploaded for one in played)
    try:
        (scores, control), diverged = infer(asked.data.labels, [message.uploaded, own.uploaded], inside, uploads, ways)
    except ValueError as error:
        raise FedprivError(f"round {round}, client {client}: no membership inference ({error})") from None
    return _Found(scores, control, asked.members, diverged)


def infer(
    labels: Tensor,
    uploads: Sequence[Uploaded],
    inside: Mask,
    shadows: Iterable[Uploaded | None],
    ways: Mapping[str, Reading],
) -> tuple[list[dict[str, Array]], int]:
    """Scores of candidates with these labels ``(n,)`` for each upload, by attack and reading, and how many shadows diverged.

    The same shadows serve all uploads.

    Args:
        inside: which candidates each shadow was trained on ``(s, n)``.
        shadows: what each would have uploaded, ``None`` where it diverged; one is looked at after another.

    Raises:
        ValueError: an upload is not finite, or too few shadows are left.
    """
    seen: dict[str, list[Array]] = {way: [] for way in ways}
    kept = []
    for number, uploaded in zip(range(len(inside)), shadows, strict=True):
        if uploaded is None or not all(bool(tensor.isfinite().all()) for tensor in uploaded.values()):
            continue
        kept.append(number)
        for way, read in ways.items():
            seen[way].append(confidence(read(uploaded).cpu(), labels.cpu()))
    if len(kept) < 4:
        raise ValueError(f"{len(inside) - len(kept)} of {len(inside)} shadow turns diverged")
    found: list[dict[str, Array]] = []
    for uploaded in uploads:
        found.append({})
        for way, read in ways.items():
            observed, beside = confidence(read(uploaded).cpu(), labels.cpu()), np.stack(seen[way])
            suffix = f", {way}" if way else ""
            found[-1] |= {
                LOSS + suffix: loss_threshold(observed),
                LIRA + suffix: lira(observed, beside, inside[kept]),
                OFFLINE + suffix: lira(observed, beside, inside[kept], "offline"),
            }
    return found, len(inside) - len(kept)


def _is_lira(name: str) -> bool:
    return name.split(",")[0] == LIRA


def _rate(rate: Rate) -> dict[str, float]:
    return {"share": rate.share, **asdict(rate)}
