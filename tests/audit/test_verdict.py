"""The sentences that a report ends with."""

from __future__ import annotations

from typing import Any

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.conditions import MEASURES
from fedpriv.audit.findings import known_members
from fedpriv.audit.verdict import best_attempt, verdict


def attempt(name: str, hits: int, n: int = 50, median: float = 0.05, **more: Any) -> dict[str, Any]:
    rate = {"successes": hits, "n": n, "low": 0.01, "high": 0.07, "share": hits / n}
    said = {"attacker": name, "inapplicable": None, "success": {"0.01": rate}, "mse_median": median, "is_evidence": True}
    return said | more


def run(*attempts: dict[str, Any], kind: str = "message", **more: Any) -> dict[str, Any]:
    attack = {"kind": kind, "round": 3, "client": 7, "attempts": list(attempts), "baselines": {}}
    return {"attacks": [attack], "labels": [], "membership": [], "epsilon": None, **more}


def member(auc: float, low: float, high: float) -> dict[str, Any]:
    """A membership attack, alone in the audit."""
    counts = {"members": 70, "non_members": 70, "tpr": {"0.01": None}}
    return {"attack": "LiRA", "round": 3, "auc": auc, "together": {"low": low, "high": high, "of": 1}, **counts}


def on_members(*attacks: dict[str, Any], **more: Any) -> list[str]:
    """The sentences on membership alone: between those on images and on epsilon."""
    return verdict(run(attempt("dlg", 0), membership=list(attacks), **more))[1:-1]


def test_nothing_found_is_about_the_attacks_and_their_budgets() -> None:
    said = verdict(run(attempt("dlg", 0), attempt("analytic", 0)))[0]
    assert "None of the 50" in said and "dlg, analytic within their budgets" in said and "up to 7%" in said
    assert "each recovered its control" in said


def test_what_attackers_without_a_positive_control_do_not_find_is_no_evidence() -> None:
    unproven = {"is_evidence": False}
    found = run(attempt("dlg", 0), attempt("joint-head", 0, **unproven))
    assert "reconstructed by dlg within" in verdict(found)[0]
    assert "the failure of joint-head is no evidence" in verdict(found)[0]
    for kind in ("message", "single image"):
        alone = run(attempt("joint-head", 0, **unproven), {"attacker": "dlg", "inapplicable": "not tried: why"}, kind=kind)
        (said, *_) = verdict(alone)
        assert said.startswith("No attack whose controls show that it could succeed was mounted") and "is not known" in said
        assert "dlg: not tried: why" in said and "joint-head: recovered none, which is no evidence: no control shows" in said
        assert best_attempt(alone["attacks"][0]) is None, "nothing was measured"
    beside = run(attempt("analytic", 0), {"attacker": "dlg", "inapplicable": "not tried: 50 images behind one message"})
    assert verdict(beside)[0].endswith("; not tried: dlg.")
    lucky = verdict(run(attempt("joint-head", 3, **unproven)))[0]
    assert lucky.startswith("3 of 50 training images were reconstructed") and "by joint-head" in lucky


def test_every_rate_of_the_easiest_case_has_its_interval() -> None:
    """0 of 24 leaves 14 % open, and the sentence says so; the number looked at depends on what was found."""
    some = {"successes": 0, "n": 24, "low": 0.0, "high": wilson(0, 24).high, "share": 0.0}
    few = attempt("dlg", 0, success={"0.01": some})
    said = verdict(run(attempt("analytic", 0, n=72), few, kind="single image"))[0]
    assert "0 of 72 by analytic (up to 7% is not excluded), 0 of 24 by dlg (up to 14% is not excluded)" in said
    assert "for the number of images tried, which depends on the results" in said
    said = verdict(run(attempt("analytic", 6, n=6), kind="single image"))[0]
    assert (
        "analytic reconstructed 6 of 6 (MSE < 0.01; 95 % interval 1% to 7%; the interval is for the number of images tried"
        in said
    )


def test_the_best_attacker_is_named_beside_what_copying_reaches() -> None:
    found = run(attempt("dlg", 2), attempt("analytic", 9))
    found["attacks"][0]["baselines"] = {"nearest public": {"success": {"0.01": {"successes": 1}}}}
    said = verdict(found)[0]
    assert said.startswith("9 of 50 training images") and "by analytic" in said and "would count for 1 of them" in said


def test_an_attack_that_could_not_be_mounted_is_no_defence() -> None:
    none = {"attacker": "dlg", "inapplicable": "no layer is shared"}
    said = verdict(run(none))[0]
    assert said.startswith("No attack was mounted") and "is not known" in said and "no layer is shared" in said
    assert "analytic" in verdict(run(none, attempt("analytic", 3)))[0]


def test_images_that_were_not_attacked_are_named_only_where_none_was() -> None:
    reason = {"not_tried": {"images": "the image encoder is frozen"}}
    assert "No attack was mounted on the images" in verdict({**run(), "attacks": [], **reason})[0]
    assert not any("No attack was mounted on the images" in said for said in verdict(run(attempt("dlg", 0), **reason)))


def test_membership_that_guessing_equals_is_not_called_found() -> None:
    (said,) = on_members(member(0.55, 0.48, 0.61))
    assert "cannot be distinguished from guessing on 70 members and 70 non-members" in said and "0.48 to 0.61" in said
    (said,) = on_members(member(0.8, 0.7, 0.9))
    assert said.startswith("The best of 1 membership attacks, LiRA, separates") and "0.70 to 0.90" in said


def test_messages_on_which_nothing_was_mounted_for_the_same_reasons_have_one_sentence() -> None:
    refused = {"attacker": "dlg", "inapplicable": "500 images behind one message"}
    found = run(refused)
    (attack,) = found["attacks"]
    another = attack | {"attempts": [refused | {"inapplicable": "no head"}], "round": 10}
    found["attacks"] += [attack | {"round": 9, "client": 2}, another]
    assert [sentence for sentence in verdict(found) if sentence.startswith("No attack")] == [
        "No attack was mounted on client 7's message of round 3 and client 2's message of round 9, so what they reveal is not "
        "known (dlg: 500 images behind one message).",
        "No attack was mounted on client 7's message of round 10, so what it reveals is not known (dlg: no head).",
    ]


def test_the_best_attempt_is_that_with_the_largest_share() -> None:
    """Of clients with one image each, attacks are tried on different numbers."""
    few, many = attempt("dlg", 6, n=6), attempt("analytic", 27, n=72)
    found = run(few, many, kind="single image")
    assert best_attempt(found["attacks"][0]) == few and MEASURES["recovered"](found) == 1.0
    assert "dlg reconstructed 6 of 6" in verdict(found)[0]


def test_the_best_of_several_attacks_is_held_to_what_holds_for_all() -> None:
    """Its own 95 % interval lies above guessing, and the one that allows for the choice among two does not."""
    chosen = member(0.58, 0.51, 0.65) | {"together": {"low": 0.49, "high": 0.67, "of": 2}}
    (said,) = on_members(chosen, member(0.5, 0.43, 0.57))
    assert "cannot be distinguished from guessing" in said and "0.49 to 0.67, which holds for the best of 2" in said


def test_of_several_rounds_the_surest_is_named_with_its_round() -> None:
    """A round with few samples may have the largest area by chance, and must not hide what is found in another."""
    chance = member(0.9, 0.45, 0.99) | {"members": 4, "non_members": 4}
    early = member(0.7, 0.6, 0.8) | {"round": 1, "tpr": {"0.01": {"by_chance": 1e-9, "share": 0.4, "low": 0.3, "high": 0.5}}}
    (said,) = on_members(chance, early)
    assert said.startswith("The best of 2 membership attacks, LiRA, round 1, separates") and "LiRA, round 1 finds 40%" in said


def test_reconstructed_images_are_known_members() -> None:
    """Whatever the attacks on membership say: the verdict must not deny what the same messages show."""
    known = known_members(run(attempt("dlg", 2), attempt("analytic", 9))["attacks"], [])
    (found,) = known
    assert (found["attacker"], found["known"]["successes"], found["client"], found["what"]) == ("analytic", 9, 7, "images")
    first, second = on_members(member(0.5, 0.43, 0.57), known_members=known)
    assert (
        "Reconstructed samples are known members: 9 of 50 training images behind client 7's message of round 3, by analytic"
        in first
    )
    assert second.startswith("Membership attacks") and "nothing beyond that" in second and "0.43 to 0.57" in second
    assert "distinguished from guessing" not in second
    assert on_members(known_members=known) == [first]
    assert known_members(run(attempt("dlg", 0))["attacks"], []) == []
    alike = run(attempt("dlg", 2))
    alike["attacks"][0]["baselines"] = {"nearest public": {"success": {"0.01": attempt("copies", 5)["success"]["0.01"]}}}
    assert known_members(alike["attacks"], []) == [], "copies of public images would count for as many"
    assert known_members(run(attempt("dlg", 9), kind="single image")["attacks"], []) == []  # simulated by the audit
    assert known_members(run({"attacker": "dlg", "inapplicable": "no layer"})["attacks"], []) == []


def test_texts_that_were_read_word_for_word_are_known_members() -> None:
    exact = {"successes": 2, "n": 8, "share": 0.25, "low": 0.07, "high": 0.6}
    read = {"attacker": "span", "inapplicable": None, "exact": exact, "recall": 1.0, "precision": 1.0, "rouge_l": 0.9}
    (found,) = known_members([], [{"kind": "message", "round": 1, "client": 2, "attempts": [read]}])
    assert found["what"] == "texts" and found["known"]["successes"] == 2
    tokens_alone = read | {"exact": None, "rouge_l": None}
    assert known_members([], [{"kind": "message", "round": 1, "client": 2, "attempts": [tokens_alone]}]) == []


def test_a_few_sure_members_are_not_passed_over_for_an_area_at_chance() -> None:
    found = {"successes": 12, "n": 70, "low": 0.1, "high": 0.28, "share": 12 / 70}
    few = member(0.52, 0.43, 0.6) | {"tpr": {"0.01": found | {"by_chance": 1e-4}, "0.001": None}}
    (said,) = on_members(few)
    assert said.startswith(
        "At low false-positive rates, members are found: LiRA finds 17% of the members at a false-positive rate of 1%"
    )
    (said,) = on_members(few | {"tpr": {"0.01": found | {"by_chance": 0.2}, "0.001": None}})
    assert "At low" not in said and "cannot be distinguished from guessing" in said


def test_an_attack_on_membership_that_was_not_tried_is_said() -> None:
    (said,) = on_members(membership_not_tried={"LiRA": "its control failed: AUC 0.5"})
    assert "not tried, so that their success is not known" in said and "LiRA (its control failed: AUC 0.5)" in said


def test_a_run_without_differential_privacy_has_no_guarantee() -> None:
    assert "no guarantee" in verdict(run(attempt("dlg", 0)))[-1]
    private = {"level": "sample", "upper": 3.21, "delta": 1e-5}
    assert "3.21 at delta 1e-05" in verdict(run(attempt("dlg", 0), epsilon=private))[-1]


def test_no_sentence_promises_anything() -> None:
    found = run(attempt("dlg", 0), epsilon={"level": "client", "upper": 1.0, "delta": 1e-5})
    text = " ".join(verdict(found)).lower()
    assert not any(word in text for word in (" safe", "secure", "is private", "anonymous", "cannot be"))
