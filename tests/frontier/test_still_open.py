"""What the answer says of what may still leak: the widest interval of all attacks, on both seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.scoring.operating_points import Area
from fedpriv.audit.conditions import conditions
from fedpriv.audit.results import (
    Interval,
    MembershipOutcome,
    RecoveryRate,
    Sender,
    TargetKind,
    TextFigures,
    TextOutcome,
    TextScoreMeans,
    TextTargetResult,
)
from fedpriv.frontier.decision import trade
from fedpriv.frontier.show import answer, markdown
from tests.audit.sample_findings import _attack, _attempt, findings, rate

EARLIER = Path(__file__).parent / "earlier.json"
"""Of a frontier that an earlier version made."""
ALONE = (_attack("singles", "single image", 200, [_attempt("dlg", (0, 0, 0), 200, 0.2)], None),)
BOTH = ("recovered<=0.05", "membership_auc<=0.6")


def point(target: Sequence[str] = BOTH[:1], seed: int = 0, single: tuple[int, int] = (0, 200), **changes: Any) -> dict[str, Any]:
    """A trade, as in ``frontier.json``, of a run of which so many single images were recovered, and none of 3 behind a message.

    Args:
        single: how many, of how many.
        changes: of what was found of the run.
    """
    attacks = [
        _attack("message", "message", 3, [_attempt("analytic", (0, 0, 0), 3, 0.3)], None),
        _attack("singles", "single image", single[1], [_attempt("dlg", (single[0],) * 3, single[1], 0.2)], None),
    ]
    run = replace(findings().runs[1], **{"images": tuple(attacks), "seed": seed, **changes})
    made = trade("it", "fedavg", "gaussian:variance=1", run, [0.9, 0.95], conditions(",".join(target), "--target"))
    assert made.holds, made.unmet
    return asdict(made) | {"holds": True, "pareto_optimal": True}


def texts_read(kind: TargetKind) -> TextTargetResult:
    """A target of 8 texts, none of which an attack found."""
    figures = TextFigures(
        recall=0.0, precision=0.0, multiset_recall=0.0, multiset_precision=0.0, rouge_l=0.0, exact=rate(0, 8), labels=None,
        named=None, by_frequency=None, messages=8, refused=0, loss_median=None, notes=(), examples=(), cpu_seconds=1.0,
    )  # fmt: skip
    nothing = TextScoreMeans(
        recall=0.0, precision=0.0, multiset_recall=0.0, multiset_precision=0.0, rouge_l=0.0, exact=None, labels=None, named=None
    )
    span = TextOutcome(attack="span", status=Status("resisted"), figures=figures)
    return TextTargetResult(title="texts", kind=kind, round=1, sender=Sender(0), samples=8, outcomes=(span,), baseline=nothing)


def said(*trades: Mapping[str, Any], target: Sequence[str] = BOTH[:1]) -> str:
    confirmed = [{"label": "it", "seed": trades[-1]["seed"], "holds": True, "accuracy": 0.9}]
    return answer({"trades": trades, "target": target, "chosen": "it", "confirmed": confirmed})


@pytest.mark.parametrize("single", [(2, 200), (1, 72)])
def test_a_message_of_few_samples_leaves_more_open_than_the_attack_that_recovered_most(single: tuple[int, int]) -> None:
    one = point(single=single)
    assert one["recovered"] == single[0] / single[1] and one["recovered_open"] == rate(0, 3).high
    text = said(one)
    assert "up to 56.1 % may be recovered (95 %; analytic, 0 of 3 samples behind a message, seed 0)." in text
    assert "--singles" not in text, "it attacks no more samples of a message"


def test_of_two_attacks_on_the_same_samples_the_one_on_fewer_counts() -> None:
    """Those that optimise are tried on the first six."""
    attempts = [_attempt("analytic", (0, 0, 0), 72, 0.1), _attempt("dlg", (0, 0, 0), 6, 0.2)]
    text = said(point(images=(_attack("singles", "single image", 72, attempts, None),)))
    assert "up to 39.0 % may be recovered (95 %; dlg, 0 of 6 single images, seed 0); --singles attacks more." in text
    unlike = Reason("differs from controls", "it is harder than these")
    attempts[1] = replace(attempts[1], status=Status("inconclusive", (unlike,)))
    text = said(point(images=(_attack("singles", "single image", 72, attempts, None),)))
    assert "up to 5.1 % may be recovered (95 %; analytic, 0 of 72 single images, seed 0)." in text, "all that there are"


def test_sentences_and_class_centres_count_as_samples_do() -> None:
    text = said(point(images=(), texts=(texts_read("single text"),), modalities=("text",)))
    assert "up to 32.4 % may be recovered (95 %; span, 0 of 8 single texts, seed 0)." in text
    centers = (replace(findings().runs[0].centers[0], recovered=RecoveryRate(rate(1, 40), "0.01")),)
    one = point(images=ALONE, centers=centers)
    assert one["recovered_open_by"] == {"attacker": "inversion", "kind": "class centres", "successes": 1, "n": 40}


def test_enough_samples_leave_nothing_open() -> None:
    one = point(images=ALONE)
    assert said(one).endswith("On seed 0 it also met the target: accuracy 94.1 %, recovered 0.0 % (0.0 to 1.9 %), AUC 0.53.")


def test_the_run_that_confirms_counts_too() -> None:
    text = said(point(images=ALONE), point(seed=1000, single=(3, 72)))
    assert "56.1" in text and "seed 1000)" in text
    assert "11.5" in said(point(images=ALONE), {**point(seed=1000, single=(3, 72)), "recovered_open": None}), "an earlier version"


def test_a_frontier_of_an_earlier_version_is_read_with_both_its_seeds() -> None:
    kept = json.loads(EARLIER.read_text())
    text = answer(kept)
    assert "On seed 1000 it also met the target: accuracy 93.7 %, recovered 4.2 % (1.4 to 11.5 %), AUC 0.59." in text
    assert "up to 11.5 % may be recovered (95 %; seed 1000)." in text
    assert "Not known, as the frontier is of an earlier version" in markdown(kept)


def with_auc(auc: float, low: float, high: float) -> dict[str, Any]:
    one = next(one for one in findings().runs[1].membership if one.points is not None)
    assert one.points is not None
    points = replace(one.points, auc=Area(auc, low + 0.05, high - 0.05))
    return {"membership": (replace(one, points=points, together=Interval(low, high, 2)),)}


def test_an_interval_of_membership_beyond_the_target_is_said() -> None:
    wide, tight = with_auc(0.58, 0.36, 0.80), with_auc(0.53, 0.47, 0.59)
    text = said(point(BOTH, **tight), point(BOTH, seed=1000, **wide), target=BOTH)
    assert "A membership AUC of up to 0.80 is not excluded (95 %; seed 1000)." in text
    assert "membership" not in said(point(BOTH, **tight), target=BOTH).removeprefix("fedavg").split("mounted")[1]
    assert "not excluded" not in said(point(**wide)), "the target does not bound it"
    assert "membership" not in text.split("0.80")[1], "nothing was left out"


def test_membership_attacks_that_were_not_tried_are_named() -> None:
    (made,) = with_auc(0.53, 0.47, 0.59)["membership"]
    absent = Status.not_run(Reason("not available", "the encoder was not sent"))
    centre = MembershipOutcome(attack="class centre", status=absent, round=made.round, uses="class centre", use="alone")
    left_out = {"membership": (made, centre)}
    text = said(point(BOTH, **left_out), target=BOTH)
    assert text.endswith("Membership attacks that were not tried: class centre (the encoder was not sent).")
    assert "not tried" not in said(point(**left_out))


def test_an_attack_that_surely_gives_members_the_lower_scores_leaves_open_what_it_reveals_when_turned() -> None:
    assert point(**with_auc(0.45, 0.3, 0.49))["membership_open"] == pytest.approx(0.7)


def test_the_table_shows_what_is_open() -> None:
    one = point(single=(2, 200), **with_auc(0.58, 0.36, 0.80))
    about = {"strengths": [], "not_run": {}, "command": "fedpriv frontier", "seconds": 1.0}
    page = markdown({"trades": [one], "target": ["recovered<=0.05"], "chosen": None, "confirmed": [], "nearest": None, **about})
    assert "| 1.0 % (0.3 to 3.6 %); up to 56.1 % open | 0.58 (up to 0.80) |" in page
    assert "“Open” and “up to”: the largest upper end" in page
