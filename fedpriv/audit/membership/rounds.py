"""Membership inference in several rounds of a run: each has a leak of its own, and the intervals hold for all attacks at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.audit.judge.members import status_of
from fedpriv.audit.membership.inference import Membership, membership
from fedpriv.audit.progress import BudgetSpent, Progress
from fedpriv.audit.record.earlier_updates import had_earlier_update
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results import ControlResult, EpsilonBounds, MembershipOutcome, distinct
from fedpriv.errors import FedprivError

EARLIER = 8
"""Shadow local updates for each client of a round before the last kept one, at most: a message of few local samples shows most
there."""


@dataclass(frozen=True)
class InRounds:
    """
    Attributes:
        outcomes: by round; of each round first those that were run. Of a round in which no attack counts there is a single one.
        controls: by round, each once; those of rounds in which no attack counts are last.
        limit: why it is no evidence that members were not found; ``None``: it is.
        refused: why no attack of any round counts; ``None``: one does, or none was asked for.
        epsilon: the bounds from the last kept round.
    """

    outcomes: tuple[MembershipOutcome, ...]
    controls: tuple[ControlResult, ...]
    limit: str | None
    refused: Reason | None
    epsilon: EpsilonBounds | None


def in_rounds(evidence: RunRecord, earlier: Sequence[int], shadows: int, seed: int, progress: Progress) -> InRounds:
    """Membership inference in the last kept round, and with fewer shadow local updates in earlier ones.

    Args:
        earlier: the other rounds; the last one among them does not count.
        shadows: shadow local updates for each client of the last round; 0: none is attacked.
    """
    last = evidence.store.rounds()[-1]
    found, refused, blamed = list[Membership](), dict[int, Reason](), list[ControlResult]()
    for round in [last, *(one for one in earlier if one != last)] if shadows else []:
        updates = shadows if round == last else min(EARLIER, shadows)
        try:
            progress.in_time()
            clients = evidence.whole_clients(round)
            progress(f"membership: {updates} shadow models for each of {len(clients)} clients of round {round}")
            made = membership(evidence, round, clients, updates, seed)
        except FedprivError as error:
            refused[round] = error.reason if isinstance(error, BudgetSpent) else Reason("not available", str(error))
            continue
        if failed := made.failed_controls:  # a fault, other samples than the members, or a chance of one in a thousand
            why = f"{', '.join(failed)} found members in the negative control, so no attack of the round counts"
            refused[round] = Reason("control failed", why)
            blamed += made.described_controls()
        else:
            found.append(made)
    found.sort(key=lambda one: one.round)
    corrected = _corrected(evidence, [one.round for one in found])
    controls = [*(control for one in found for control in one.described_controls()), *blamed]
    return InRounds(
        _judged(found, last, refused, corrected),
        distinct(controls),
        _limit(corrected),
        None if found or not refused else _together(list(refused.values())),
        next((one.epsilon for one in found if one.round == last), None),
    )


def _together(reasons: Sequence[Reason]) -> Reason:
    return Reason(reasons[0].kind, "; ".join(dict.fromkeys(one.text for one in reasons)))


def _corrected(evidence: RunRecord, rounds: Sequence[int]) -> list[int]:
    """The rounds in which clients' gradients had a term from their earlier local updates."""
    if not evidence.federation.method.objective.corrects:
        return []
    return [
        round for round in rounds if any(had_earlier_update(evidence, round, client) for client in evidence.whole_clients(round))
    ]


def _limit(corrected: Sequence[int]) -> str | None:
    """Why it is no evidence that members were not found in some round; ``None``: it is."""
    if not corrected:
        return None
    which = ", ".join(map(str, corrected))
    return f"in round {which} the clients' gradients had a term from their earlier local updates, which simulated clients lack"


def _judged(
    found: Sequence[Membership], last: int, refused: dict[int, Reason], corrected: Sequence[int]
) -> tuple[MembershipOutcome, ...]:
    """The outcomes of all rounds, with their status.

    Args:
        last: the round whose lower bounds of epsilon are shown.
    """
    count = sum(len(one.attacks) for one in found)
    made = [outcome for one in found for outcome in _outcomes(one, count, bounds=one.round == last)]
    limit = None if (why := _limit(corrected)) is None else Reason("unlike the controls", why)
    judged = [
        replace(one, status=status_of(one, made, limit if one.round in corrected else None)) if one.status.was_run else one
        for one in made
    ]
    judged += [
        MembershipOutcome(attack="every attack", status=Status.not_run(why), round=round) for round, why in refused.items()
    ]
    return tuple(sorted(judged, key=lambda one: one.round))


def _outcomes(found: Membership, count: int, bounds: bool) -> Iterator[MembershipOutcome]:
    """Those of a round; whether an attack that was run found members is said once all rounds are known.

    Args:
        count: attacks of all rounds, for all of which ``together`` holds at once.
        bounds: whether the lower bounds of epsilon are shown.
    """
    shown = {} if found.epsilon is None or not bounds else dict(zip(found.likelihoods, found.epsilon.each, strict=True))
    together = found.together(count)
    for name, points in found.attacks.items():
        uses, use = found.kinds[name]
        yield MembershipOutcome(
            attack=name,
            status=Status("resisted"),
            knows=found.threat,
            round=found.round,
            senders=found.senders,
            uses=uses,
            use=use,
            extent=found.extent(name),
            points=points,
            together=together[name],
            epsilon_lower=shown.get(name),
        )
    for name, why in found.not_tried.items():
        uses, use = found.kinds[name]
        yield MembershipOutcome(
            attack=name, status=Status.not_run(why), round=found.round, senders=found.senders, uses=uses, use=use
        )
