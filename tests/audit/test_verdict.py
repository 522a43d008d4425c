"""The sentences that a report ends with."""

from __future__ import annotations

from typing import Any

from attacks.scores import wilson
from fedpriv.audit.verdict import best_attempt, verdict


def attempt(name: str, hits: int, n: int = 50, median: float = 0.05, **more: Any) -> dict[str, Any]:
    rate = {"successes": hits, "n": n, "low": 0.01, "high": 0.07, "share": hits / n}
    said = {"attacker": name, "inapplicable": None, "success": {"0.01": rate}, "mse_median": median, "is_evidence": True}
    return said | more


def run(*attempts: dict[str, Any], kind: str = "message", **more: Any) -> dict[str, Any]:
    attack = {"kind": kind, "round": 3, "client": 7, "attempts": list(attempts), "baselines": {}}
    return {"attacks": [attack], "labels": [], "membership": [], "epsilon": None, **more}


def test_nothing_found_is_about_the_attacks_and_their_budgets() -> None:
    said = verdict(run(attempt("dlg", 0), attempt("analytic", 0)))[0]
    assert "None of the 50" in said and "dlg, analytic within their budgets" in said and "up to 7%" in said
    assert "each recovered its control" in said


def test_what_attackers_without_a_positive_control_do_not_find_is_no_evidence() -> None:
    unproven = {"is_evidence": False}
    found = run(attempt("dlg", 0), attempt("joint-head", 0, **unproven))
    assert "reconstructed by dlg within" in verdict(found)[0]
    assert "what joint-head did not recover either is no evidence" in verdict(found)[0]
    for kind in ("message", "single image"):
        alone = run(attempt("joint-head", 0, **unproven), {"attacker": "dlg", "inapplicable": "not tried: why"}, kind=kind)
        (said, *_) = verdict(alone)
        assert said.startswith("No attack whose controls show that it could succeed was mounted") and "says nothing" in said
        assert "dlg: not tried: why" in said and "joint-head: recovered none, and nothing is promised of it" in said
        assert best_attempt(alone["attacks"][0]) is None, "nothing was measured"
    lucky = verdict(run(attempt("joint-head", 3, **unproven)))[0]
    assert lucky.startswith("3 of 50 training images were reconstructed") and "by joint-head" in lucky


def test_every_rate_of_the_easiest_case_has_its_interval() -> None:
    """0 of 24 leaves 14 % open, and the sentence says so; the number looked at depends on what was found."""
    some = {"successes": 0, "n": 24, "low": 0.0, "high": wilson(0, 24).high, "share": 0.0}
    few = attempt("dlg", 0, success={"0.01": some})
    said = verdict(run(attempt("analytic", 0, n=72), few, kind="single image"))[0]
    assert "0 of 72 by analytic (up to 7% is not excluded), 0 of 24 by dlg (up to 14% is not excluded)" in said
    assert "for the number looked at, which depends on what was found" in said
    said = verdict(run(attempt("analytic", 6, n=6), kind="single image"))[0]
    assert "analytic reconstructed 6 of 6 (MSE < 0.01; 95 % interval 1% to 7%; the interval is for the number looked at" in said


def test_the_best_attacker_is_named_beside_what_copying_reaches() -> None:
    found = run(attempt("dlg", 2), attempt("analytic", 9))
    found["attacks"][0]["baselines"] = {"nearest public": {"success": {"0.01": {"successes": 1}}}}
    said = verdict(found)[0]
    assert said.startswith("9 of 50 training images") and "by analytic" in said and "passes for 1 of them" in said


def test_an_attack_that_could_not_be_mounted_is_no_defence() -> None:
    none = {"attacker": "dlg", "inapplicable": "no layer is shared"}
    said = verdict(run(none))[0]
    assert said.startswith("No attack was mounted") and "says nothing" in said and "no layer is shared" in said
    assert "analytic" in verdict(run(none, attempt("analytic", 3)))[0]


def test_images_that_were_not_attacked_are_named_only_where_none_was() -> None:
    reason = {"not_tried": {"images": "the image encoder is frozen"}}
    assert "No attack was mounted on the images" in verdict({**run(), "attacks": [], **reason})[0]
    assert not any("No attack was mounted on the images" in said for said in verdict(run(attempt("dlg", 0), **reason)))


def test_membership_that_guessing_equals_is_not_called_found() -> None:
    one = {"attack": "LiRA", "auc": 0.55, "auc_low": 0.48, "auc_high": 0.61, "members": 70, "non_members": 70}
    sentences = verdict(run(attempt("dlg", 0), membership=[one]))
    assert any("No membership attack tried told" in said and "0.48 to 0.61" in said for said in sentences)
    sentences = verdict(run(attempt("dlg", 0), membership=[one | {"auc": 0.8, "auc_low": 0.7}]))
    assert any(said.startswith("LiRA, the best of 1 attacks, tells") for said in sentences)


def test_a_run_without_differential_privacy_has_no_guarantee() -> None:
    assert "no guarantee" in verdict(run(attempt("dlg", 0)))[-1]
    private = {"level": "sample", "upper": 3.21, "delta": 1e-5}
    assert "3.21 at delta 1e-05" in verdict(run(attempt("dlg", 0), epsilon=private))[-1]


def test_no_sentence_promises_anything() -> None:
    found = run(attempt("dlg", 0), epsilon={"level": "client", "upper": 1.0, "delta": 1e-5})
    text = " ".join(verdict(found)).lower()
    assert not any(word in text for word in (" safe", "secure", "is private", "anonymous", "cannot be"))
