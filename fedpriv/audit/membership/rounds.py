"""Membership inference in several rounds of a run: each has a leak of its own, and the intervals hold for all attacks at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.audit.judge.members import status_of
from fedpriv.audit.membership.inference import Membership, membership
from fedpriv.audit.progress import BudgetSpent, Progress
from fedpriv.audit.record.earlier_updates import had_earlier_update
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.epsilon import EpsilonBounds
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import ControlResult, distinct
from fedpriv.errors import FedprivError

EARLIER = 8
"""Largest number of shadows per client in earlier rounds. These are attacked because messages of clients with few samples leak
most there."""


@dataclass(frozen=True)
class InRounds:
    """The results of all rounds.

    Attributes:
        outcomes: ordered by round, within it the attacks that were run before the others; one placeholder for a round in which
            none counts.
        controls: by round, without repetitions; those of rounds in which no attack counts are last.
        limit: why a failure to identify members is no evidence; ``None``: it is evidence.
        refused: why no attack of any round counts; ``None``: one does, or none was asked for.
        epsilon: the bounds from the last kept round.
    """

    outcomes: tuple[MembershipOutcome, ...]
    controls: tuple[ControlResult, ...]
    limit: str | None
    refused: Reason | None
    epsilon: EpsilonBounds | None


def in_rounds(
    record: RunRecord, earlier: Sequence[int], shadows: int, seed: int, progress: Progress, workers: int = 1
) -> InRounds:
    """Attack membership in the last kept round, and with fewer shadow local updates in earlier ones.

    Args:
        earlier: further rounds; the last kept round is attacked once, also if it is among them.
        shadows: shadow local updates for each client of the last round; 0: none is attacked.
        workers: processes.
    """
    last = record.store.rounds()[-1]
    results, refused = list[Membership](), dict[int, Reason]()
    for round in [last, *(number for number in earlier if number != last)] if shadows else []:
        updates = shadows if round == last else min(EARLIER, shadows)
        try:
            clients = record.whole_clients(round)
            progress.in_time()
            progress(f"membership: {updates} shadow models for each of {len(clients)} clients of round {round}")
            result = membership(record, round, clients, updates, seed, progress, workers)
        except FedprivError as error:
            refused[round] = error.reason if isinstance(error, BudgetSpent) else Reason("not available", str(error))
            continue
        results.append(result)
    return results_of_rounds(results, refused, last, _corrected(record, [result.round for result in results]))


def results_of_rounds(
    attacked: Sequence[Membership], failures: Mapping[int, Reason], last: int, corrected: Sequence[int]
) -> InRounds:
    """The results of all rounds; those of a round whose negative control failed do not count.

    Args:
        failures: round -> why it was not attacked.
        last: the last kept round.
        corrected: rounds in which clients' steps had a term from their earlier local updates.
    """
    results, refused, blamed = list[Membership](), dict(failures), list[ControlResult]()
    for result in attacked:
        if failed := result.failed_controls:  # a bug, non-members that differ from members, or chance (1 in 1,000)
            why = f"{', '.join(failed)} found members in the negative control, so no attack of the round counts"
            refused[result.round] = Reason("control failed", why)
            blamed += result.described_controls()
        else:
            results.append(result)
    results.sort(key=lambda result: result.round)
    reasons = list(refused.values())
    return InRounds(
        _judged(results, last, refused, corrected),
        distinct([*(control for result in results for control in result.described_controls()), *blamed]),
        _limit(corrected),
        Reason(reasons[0].kind, "; ".join(dict.fromkeys(reason.text for reason in reasons))) if reasons and not results else None,
        next((result.epsilon for result in results if result.round == last), None),
    )


def _corrected(record: RunRecord, rounds: Sequence[int]) -> list[int]:
    """The rounds in which clients' steps had a term from their earlier local updates: one of an objective, or of a kept
    optimiser."""
    if not (record.federation.method.objective.corrects or record.config.train.carries_steps):
        return []
    return [round for round in rounds if any(had_earlier_update(record, round, client) for client in record.whole_clients(round))]


def _limit(corrected: Sequence[int]) -> str | None:
    """Why a failure in some round is no evidence; ``None``: it is evidence."""
    if not corrected:
        return None
    which = ", ".join(map(str, corrected))
    return f"in round {which} the clients' steps had a term from their earlier local updates, which simulated clients lack"


def _judged(
    results: Sequence[Membership], last: int, refused: dict[int, Reason], corrected: Sequence[int]
) -> tuple[MembershipOutcome, ...]:
    """The outcomes of all rounds, with their status.

    Args:
        last: the round whose lower bounds of epsilon are shown.
    """
    count = sum(len(result.attacks) for result in results)
    outcomes = [outcome for result in results for outcome in _outcomes(result, count, bounds=result.round == last)]
    limit = None if (why := _limit(corrected)) is None else Reason("differs from controls", why)
    judged = [
        replace(outcome, status=status_of(outcome, outcomes, limit if outcome.round in corrected else None))
        if outcome.status.was_run
        else outcome
        for outcome in outcomes
    ]
    judged += [
        MembershipOutcome(attack="every membership attack", status=Status.not_run(why), round=round)
        for round, why in refused.items()
    ]
    return tuple(sorted(judged, key=lambda outcome: outcome.round))


def _outcomes(result: Membership, count: int, bounds: bool) -> Iterator[MembershipOutcome]:
    """The outcomes of a round; whether an attack that was run found members is decided once all rounds are known.

    Args:
        count: attacks of all rounds, for all of which ``together`` holds at once.
        bounds: whether the lower bounds of epsilon are shown.
    """
    shown = {} if result.epsilon is None or not bounds else dict(zip(result.likelihoods, result.epsilon.each, strict=True))
    together = result.together(count)
    for name in (*result.attacks, *result.not_tried):
        uses, use = result.kinds[name]
        outcome = MembershipOutcome(
            attack=name, status=Status("resisted"), round=result.round, senders=result.senders, uses=uses, use=use
        )
        if name in result.not_tried:
            yield replace(outcome, status=Status.not_run(result.not_tried[name]))
        else:
            yield replace(
                outcome,
                knows=result.threat,
                extent=result.extent(name),
                points=result.attacks[name],
                together=together[name],
                epsilon_lower=shown.get(name),
            )
