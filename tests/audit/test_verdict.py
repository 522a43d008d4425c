"""The sentences that a report ends with."""

from __future__ import annotations

from typing import Any

from fedpriv.audit.verdict import verdict


def attempt(name: str, hits: int, n: int = 50, median: float = 0.05, **more: Any) -> dict[str, Any]:
    rate = {"successes": hits, "n": n, "low": 0.01, "high": 0.07, "share": hits / n}
    return {"attacker": name, "inapplicable": None, "success": {"0.01": rate}, "mse_median": median, **more}


def run(*attempts: dict[str, Any], kind: str = "message", **more: Any) -> dict[str, Any]:
    attack = {"kind": kind, "round": 3, "client": 7, "attempts": list(attempts), "baselines": {}}
    return {"attacks": [attack], "labels": [], "membership": [], "epsilon": None, **more}


def test_nothing_found_is_about_the_attacks_and_their_budgets() -> None:
    said = verdict(run(attempt("dlg", 0), attempt("analytic", 0)))[0]
    assert "None of the 50" in said and "dlg, analytic within their budgets" in said and "up to 7%" in said


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
