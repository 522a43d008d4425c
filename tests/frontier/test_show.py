"""The page of a frontier: the answer, what may still leak, and the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.scoring.operating_points import Area
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.results.images import RecoveryRate
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval
from fedpriv.frontier.decision import Trade, trade
from fedpriv.frontier.result import Confirmation, DefenceSearch
from fedpriv.frontier.search import Search
from fedpriv.frontier.show import COLUMNS, answer, markdown
from tests.audit.sample_findings import _attack, _attempt, findings, rate
from tests.frontier.made_trades import make_frontier, make_trade, read_target
from tests.frontier.test_search import unread_texts

BOTH = "recovered<=0.05,membership_auc<=0.6"
RECOVERED = "recovered<=0.05"
SINGLES = (_attack("singles", "single image", 200, [_attempt("dlg", (0, 0, 0), 200, 0.2)], None),)


def test_what_a_fresh_seed_refused_is_beside_what_was_chosen() -> None:
    trades = [make_trade("weak"), make_trade("strong", 0.8)]
    trades += [make_trade("weak", recovered=0.17, auc=0.58, unmet=RECOVERED, seed=1000), make_trade("strong", seed=1001)]
    tried = (Confirmation("weak", 1000, False), Confirmation("strong", 1001, True))
    frontier = make_frontier(*trades, chosen="strong", confirmations=tried)
    assert (
        "fedavg with weak met it in the grid, not on seed 1000, where it misses recovered<=0.05: accuracy 90.0 %, "
        "recovered 17.0 % (10.9 to 25.5 %), AUC 0.58."
    ) in answer(frontier)
    rows = [line for line in markdown(frontier).splitlines() if line.startswith("| fedavg |") and "| 0 |" in line]
    assert [row.split("|")[-2].strip() for row in rows] == ["in the grid, not on seed 1000", "yes"]


def test_what_fresh_seeds_refused_where_none_is_chosen() -> None:
    tried = tuple(Confirmation(name, seed, False) for name, seed in (("leaks", 1000), ("guesses", 1001), ("fails", 1002)))
    trades = [make_trade(name) for name in ("leaks", "guesses", "fails")]
    trades += [make_trade("leaks", recovered=0.2, unmet=RECOVERED, seed=1000), make_trade("guesses", at_chance=True, seed=1001)]
    assert answer(make_frontier(*trades, confirmations=tried, nearest="leaks")) == (
        "None meets recovered<=0.05. fedavg with leaks met it in the grid, not on seed 1000, where it misses recovered<=0.05: "
        "accuracy 90.0 %, recovered 20.0 % (13.3 to 28.9 %). fedavg with guesses met it in the grid, not on seed 1001, "
        "where it is no better than guessing: accuracy 90.0 %, recovered 0.0 % (0.0 to 3.7 %). fedavg with fails met it in the "
        "grid, not on seed 1002, where it could not be trained and audited. fedavg with leaks comes nearest: it misses nothing "
        "but the fresh seed, at an accuracy of 90.0 %."
    )


def test_without_a_target_no_point_meets_it() -> None:
    page = markdown(make_frontier(make_trade("none", recovered=1.0), target="", best=["none"]))
    assert "No target was given. Pareto-optimal: none." in page
    assert "meets the target" not in page and f"| {COLUMNS.format(score='accuracy')} |" in page
    assert f"| {COLUMNS.format(score='accuracy')} | meets the target |" in markdown(make_frontier(make_trade("none")))


def test_a_point_within_a_bound_that_misses_it_is_explained() -> None:
    """An attack recovered little, and might have recovered more: a share below the bound is not known to be all."""
    page = markdown(make_frontier(make_trade("quiet", recovered=0.01, unmet=RECOVERED), nearest="quiet"))
    assert "it misses recovered<=0.05 (not known: recovered may be more), at" in page
    assert page.count("| not known: recovered may be more |") == 1
    page = markdown(make_frontier(make_trade("loud", recovered=0.06, unmet=RECOVERED), nearest="loud"))
    assert "not known" not in page


def test_a_point_of_which_it_is_not_known_what_was_recovered() -> None:
    assert "| not known | 0.58 |" in markdown(make_frontier(make_trade("none", recovered=None, auc=0.58)))


def test_searches_and_defences_of_the_config_are_listed() -> None:
    search = DefenceSearch("fedavg", "gaussian:variance=1..2", Search((1.5,), ((1.5, {"recovered": 0.01, "labels": None}),)))
    page = markdown(make_frontier(make_trade("none"), searches=(search,), config_defences=("mask",), not_run={"a-s0": "why"}))
    assert "| fedavg | gaussian:variance=1..2 | 1.5 | 1.5: recovered 0.01, labels – |" in page
    assert "has the defences of the config, too: mask;" in page and "* a-s0: why" in page


def audited(target: str = RECOVERED, seed: int = 0, single: tuple[int, int] = (0, 200), **changes: Any) -> Trade:
    """A trade of a run of which so many single images were recovered, and none of 3 behind a message.

    Args:
        single: how many, of how many.
        changes: of the audited run.
    """
    attacks = [
        _attack("message", "message", 3, [_attempt("analytic", (0, 0, 0), 3, 0.3)], None),
        _attack("singles", "single image", single[1], [_attempt("dlg", (single[0],) * 3, single[1], 0.2)], None),
    ]
    run = replace(findings().runs[1], **{"images": tuple(attacks), "seed": seed, **changes})
    point = trade("it", "fedavg", "gaussian:variance=1", run, [0.9, 0.95], read_target(target))
    assert point.holds, point.unmet
    return point


def answered(*trades: Trade, target: str = RECOVERED) -> str:
    """The answer where a point was chosen, and confirmed by the last trade."""
    return answer(make_frontier(*trades, target=target, chosen="it", confirmations=(Confirmation("it", trades[-1].seed, True),)))


@pytest.mark.parametrize("single", [(2, 200), (1, 72)])
def test_few_samples_of_a_message_leave_more_open(single: tuple[int, int]) -> None:
    point = audited(single=single)
    assert point.recovered == wilson(*single) and point.most_open is not None and point.most_open.rate == rate(0, 3)
    text = answered(point)
    assert "up to 56.1 % may be recovered (95 %; analytic, 0 of 3 samples behind a message, seed 0)." in text
    assert "--singles" not in text, "it attacks no more samples of a message"


def test_of_two_attacks_the_one_on_fewer_samples_is_open() -> None:
    """Those that optimise are tried on the first six."""
    attempts = [_attempt("analytic", (0, 0, 0), 72, 0.1), _attempt("dlg", (0, 0, 0), 6, 0.2)]
    text = answered(audited(images=(_attack("singles", "single image", 72, attempts, None),)))
    assert "up to 39.0 % may be recovered (95 %; dlg, 0 of 6 single images, seed 0); --singles attacks more." in text
    harder = Reason("differs from controls", "it is harder than these")
    attempts[1] = replace(attempts[1], status=Status("inconclusive", (harder,)))
    text = answered(audited(images=(_attack("singles", "single image", 72, attempts, None),)))
    assert "up to 5.1 % may be recovered (95 %; analytic, 0 of 72 single images, seed 0)." in text, "all that there are"


def test_sentences_and_class_centres_are_open_as_samples_are() -> None:
    text = answered(audited(images=(), texts=(unread_texts("single text"),), modalities=("text",)))
    assert "up to 32.4 % may be recovered (95 %; span, 0 of 8 single texts, seed 0)." in text
    centers = (replace(findings().runs[0].centers[0], recovered=RecoveryRate(rate(1, 40), "0.01")),)
    widest = audited(images=SINGLES, centers=centers).most_open
    assert widest is not None and (widest.attack, widest.kind, widest.rate) == ("inversion", "class centres", rate(1, 40))


def test_enough_samples_leave_nothing_open() -> None:
    end = "On seed 0 it also met the target: accuracy 94.1 %, recovered 0.0 % (0.0 to 1.9 %), AUC 0.53."
    assert answered(audited(images=SINGLES)).endswith(end)


def test_the_run_that_confirms_may_leave_more_open() -> None:
    text = answered(audited(images=SINGLES), audited(seed=1000, single=(3, 72)))
    assert "56.1" in text and "seed 1000)" in text


def with_auc(auc: float, low: float, high: float) -> dict[str, Any]:
    outcome = next(outcome for outcome in findings().runs[1].membership if outcome.points is not None)
    assert outcome.points is not None
    points = replace(outcome.points, auc=Area(auc, low + 0.05, high - 0.05))
    return {"membership": (replace(outcome, points=points, together=Interval(low, high, 2)),)}


def test_an_interval_of_membership_beyond_the_target_is_open() -> None:
    wide, tight = with_auc(0.58, 0.36, 0.80), with_auc(0.53, 0.47, 0.59)
    text = answered(audited(BOTH, **tight), audited(BOTH, seed=1000, **wide), target=BOTH)
    assert "A membership AUC of up to 0.80 is not excluded (95 %; seed 1000)." in text
    assert "membership" not in answered(audited(BOTH, **tight), target=BOTH).removeprefix("fedavg").split("mounted")[1]
    assert "not excluded" not in answered(audited(**wide)), "the target does not bound it"
    assert "membership" not in text.split("0.80")[1], "nothing was left out"


def test_membership_attacks_that_were_not_tried_are_named() -> None:
    (outcome,) = with_auc(0.53, 0.47, 0.59)["membership"]
    absent = Status.not_run(Reason("not available", "the encoder was not sent"))
    centre = MembershipOutcome(attack="class centre", status=absent, round=outcome.round, uses="class centre", use="alone")
    left_out = {"membership": (outcome, centre)}
    text = answered(audited(BOTH, **left_out), target=BOTH)
    assert text.endswith("Membership attacks that were not tried: class centre (the encoder was not sent).")
    assert "not tried" not in answered(audited(**left_out))


def test_an_attack_that_orders_members_last_is_open_reversed() -> None:
    assert audited(**with_auc(0.45, 0.3, 0.49)).membership_open == pytest.approx(0.7)


def test_the_table_has_what_is_open() -> None:
    page = markdown(make_frontier(audited(single=(2, 200), **with_auc(0.58, 0.36, 0.80))))
    assert "| 1.0 % (0.3 to 3.6 %); up to 56.1 % open | 0.58 (up to 0.80) |" in page
