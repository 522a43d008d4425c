"""Membership inference of several rounds together: what is said of attacks that were not run, and what a failure shows."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.scoring.operating_points import Area, operating_points
from fedpriv.audit.judge.members import FEW, not_run
from fedpriv.audit.membership import rounds
from fedpriv.audit.membership.inference import FEDMIA, LIRA, LOSS, ROWS, Membership
from fedpriv.audit.membership.member_scores import USED_BY
from fedpriv.audit.progress import Progress
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Sender
from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError

HALF = np.arange(400) < 200
AT_CHANCE = np.random.default_rng(0).random(400)
APART = AT_CHANCE + HALF
"""Scores of members and others."""


def made(
    round: int, scores: Mapping[str, Any], not_tried: Mapping[str, str], few: int | None = None, **changes: Any
) -> Membership:
    shown = slice(None) if few is None else slice(200 - few // 2, 200 + few // 2)
    whole: dict[str, Any] = {
        "round": round,
        "senders": (Sender(0), Sender(3)),
        "attacks": {name: operating_points(item[shown], HALF[shown]) for name, item in scores.items()},
        "kinds": {name: USED_BY[name] for name in (*scores, *not_tried)},
        "not_tried": {name: Reason("does not apply", why) for name, why in not_tried.items()},
        "controls": {LOSS: Area(0.5, 0.4, 0.6)},
        "positive": {LOSS: Control("positive", True, "it works", float(round))},
        "epsilon": None,
        "likelihoods": (),
        "shadows": 8,
        "diverged": 0,
        "rounds": ((1, 2), (1, 2, 5)),
        "threat": ("It knows much.",),
    }
    return Membership(**whole | changes)


def in_rounds(
    monkeypatch: pytest.MonkeyPatch,
    result: Mapping[int, Membership | str],
    budget: float | None = None,
    corrected: tuple[int, ...] = (),
) -> rounds.InRounds:
    """Of kept rounds in which so much was found, or which were refused."""

    def membership(evidence: Any, round: int, *given: Any) -> Membership:
        if isinstance(item := result[round], str):
            raise FedprivError(item)
        return item

    objective = SimpleNamespace(corrects=bool(corrected))
    evidence: Any = SimpleNamespace(
        store=SimpleNamespace(rounds=lambda: sorted(result)),
        whole_clients=lambda round: [0],
        federation=SimpleNamespace(method=SimpleNamespace(objective=objective)),
        config=RunConfig(),
    )
    monkeypatch.setattr(rounds, "membership", membership)
    monkeypatch.setattr(rounds, "had_earlier_update", lambda evidence, round, client: round in corrected)
    return rounds.in_rounds(evidence, sorted(result), 8, 0, Progress(lambda text: None, budget))


def test_outcomes_are_in_order_of_rounds_with_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    later = made(5, {LOSS: AT_CHANCE, LIRA: APART, FEDMIA: AT_CHANCE}, {ROWS: "no layer"})
    result = in_rounds(
        monkeypatch, {1: made(1, {LOSS: AT_CHANCE}, {ROWS: "no layer", LIRA: "one class"}), 3: "none left", 5: later}
    )
    assert [(outcome.round, outcome.attack, outcome.status.word) for outcome in result.outcomes] == [
        *((1, LOSS, "resisted"), (1, ROWS, "not run"), (1, LIRA, "not run"), (3, "every membership attack", "not run")),
        *((5, LOSS, "resisted"), (5, LIRA, "found"), (5, FEDMIA, "resisted"), (5, ROWS, "not run")),
    ]
    by_name = {(outcome.round, outcome.attack): outcome for outcome in result.outcomes}
    assert [by_name[5, name].name for name in (LOSS, LIRA, FEDMIA)] == [
        "loss threshold", "LiRA (8 shadow models per client)", "FedMIA (2 to 3 rounds a client)",
    ]  # fmt: skip
    refused = by_name[3, "every membership attack"]
    assert refused.uses is None and refused.status.reasons == (Reason("not available", "none left"),) and result.refused is None
    assert (by_name[1, LIRA].uses, by_name[1, LIRA].use, by_name[1, LIRA].points) == ("confidence", "LiRA", None)
    assert by_name[5, LOSS].knows == ("It knows much.",) and by_name[5, LOSS].senders == (Sender(0), Sender(3))
    assert {outcome.together.of for outcome in result.outcomes if outcome.together is not None} == {4}
    assert [(control.name, control.sentence[:8]) for control in result.controls] == [
        ("positive", "it works"), ("negative", "round 1:"), ("negative", "round 5:"),
    ], "those that differ in their cost alone are one"  # fmt: skip


def test_where_no_round_could_be_attacked_the_part_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    result = in_rounds(monkeypatch, {1: "diverged", 2: "none left", 3: "none left"})
    assert result.refused == Reason("not available", "none left; diverged") and not_run(result.outcomes) == {}
    assert [outcome.round for outcome in result.outcomes] == [1, 2, 3] and result.controls == ()
    cut = in_rounds(monkeypatch, {1: "none left", 2: "none left"}, budget=1e-9)
    assert cut.refused is not None and cut.refused.kind == "budget spent"
    faulty = made(1, {LOSS: APART}, {}, controls={LOSS: Area(0.9, 0.8, 1.0)})
    blamed = in_rounds(monkeypatch, {1: faulty})
    assert blamed.refused is not None and blamed.refused.kind == "control failed"
    assert [(control.name, control.passed) for control in blamed.controls] == [("positive", True), ("negative", False)]


def test_failure_is_no_evidence_with_few_samples_or_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    last = made(3, {LOSS: AT_CHANCE, LIRA: -APART}, {})
    result = in_rounds(
        monkeypatch, {1: made(1, {LOSS: AT_CHANCE}, {}, few=4), 2: made(2, {LOSS: AT_CHANCE}, {}), 3: last}, corrected=(3,)
    )
    assert result.limit is not None and result.limit.startswith("in round 3 ")
    assert [outcome.status for outcome in result.outcomes] == [
        Status("inconclusive", (Reason("too few samples", FEW),)),
        Status("resisted"),
        Status("inconclusive", (Reason("differs from controls", result.limit),)),
        Status("found", (Reason("differs from controls", result.limit),)),
    ], "members with the lower scores are found, too"


def test_members_found_with_few_false_alarms_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many members stand out above all others as below, so that the area is that of guessing."""
    scores = AT_CHANCE.copy()
    scores[:25], scores[25:50] = 2.0, -2.0
    (result,) = in_rounds(monkeypatch, {1: made(1, {LOSS: scores}, {})}).outcomes
    assert result.together is not None and result.together.low < 0.5 < result.together.high and result.status.word == "found"


def row(round: int, attack: str, why: str | None = None) -> MembershipOutcome:
    status = Status("resisted") if why is None else Status.not_run(Reason("does not apply", why))
    uses, use = USED_BY.get(attack, (None, None))
    return MembershipOutcome(attack=attack, status=status, round=round, uses=uses, use=use)


@pytest.mark.parametrize(
    ("outcomes", "reasons"),
    [
        ([row(1, LOSS), row(1, ROWS, "no layer"), row(2, LOSS), row(2, ROWS, "no layer")], {"row distance": "no layer"}),
        (
            [row(1, LOSS), row(1, ROWS, "no layer"), row(2, LOSS), row(2, ROWS, "hidden"), row(2, FEDMIA, "alone")],
            {"row distance, round 2": "hidden", "row distance, round 1": "no layer", "FedMIA, round 2": "alone"},
        ),
        (
            [row(1, LOSS), row(1, ROWS, "a"), row(1, LIRA, "b"), row(3, LOSS), row(3, LIRA, "b"), row(3, FEDMIA, "c")],
            {"LiRA": "b", "FedMIA, round 3": "c", "row distance, round 1": "a"},
        ),
        (
            [row(1, LOSS), row(1, ROWS, "a"), row(2, "every membership attack", "x"), row(3, "every membership attack", "y")],
            {"row distance": "a", "every membership attack, round 3": "y", "every membership attack, round 2": "x"},
        ),
        (
            [row(1, LOSS), row(1, ROWS, "a"), row(2, LOSS), row(2, LIRA, "b"), row(3, "every membership attack", "y")],
            {"row distance, round 1": "a", "LiRA, round 2": "b", "every membership attack, round 3": "y"},
        ),
        ([row(1, "every membership attack", "x")], {}),
    ],
)  # fmt: skip
def test_reasons_not_run_are_given_once_latest_round_first(outcomes: list[MembershipOutcome], reasons: dict[str, str]) -> None:
    assert list(not_run(outcomes).items()) == list(reasons.items())
