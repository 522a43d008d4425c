"""Conditions under which an audit fails."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedpriv.audit import report
from fedpriv.audit.conditions import MEASURES, conditions, first_met, known_recovered
from fedpriv.audit.findings import best_of_texts
from fedpriv.audit.membership.classes import NO_RULE
from fedpriv.audit.run_audit import Audited
from fedpriv.audit.text.verdict import best_reading, of_texts
from fedpriv.cli import main
from fedpriv.errors import UnknownName, UsageError


def inferred(**changes: Any) -> dict[str, Any]:
    return {"how": "bias", "true": [1, 2], "of": 10, "exact": False} | changes


def run(**changes: Any) -> dict[str, Any]:
    attempt = {"attacker": "analytic", "inapplicable": None, "is_evidence": True, "mse_median": 0.1}
    rate = {"successes": 13, "n": 72, "share": 13 / 72, "low": 0.1, "high": 0.3}
    found = {
        "name": "a run",
        "attacks": [{"attempts": [attempt | {"success": {"0.01": rate}}]}],
        "texts": [],
        "membership": [{"auc": value, "round": 3} for value in (0.57, 0.76, None)],
        "labels": [inferred(exact=True), inferred(exact=False)],
        "epsilon": {"upper": 7.9, "canaries": {"lower": 3.1}},
    }
    return found | changes


def test_classes_by_any_way_count_and_no_way_is_not_known() -> None:
    none = inferred(how=NO_RULE)
    (labels,) = conditions("labels<=0.5")
    assert labels.value(run(labels=[none])) is None and not labels.holds(run(labels=[none]))
    shadow = {"exact": 1.0, "lacking": 3, "lacking_exact": 3, "guess": 0.1, "p": 0.001}
    assert labels.value(run(labels=[none], label_shadow=shadow)) == 1.0
    assert labels.value(run(labels=[none], label_shadow=shadow | {"p": 0.2})) == 0.0  # mounted, and as good as guessing
    assert labels.value(run(label_shadow=shadow | {"p": 0.2})) == 0.5
    some = shadow | {"lacking": 100, "lacking_exact": 45, "guess": 0.02, "p": 1e-40}  # far beyond guessing, if not of most
    assert labels.value(run(labels=[none], label_shadow=some)) == 0.45
    assert labels.value(run(labels_over_rounds=[inferred(exact=True)])) == 1.0


def test_classes_that_guessing_would_find_do_not_count() -> None:
    (labels,) = conditions("labels<=0.5")
    found = [inferred(client=client, exact=client < 6, guess=0.5) for client in range(10)]
    assert labels.value(run(labels=found)) == 0.0
    assert labels.value(run(labels=[one | {"guess": 0.05} for one in found])) == 0.6
    assert labels.value(run(labels=found[:3])) == 1.0, "too few to exclude guessing, and none found otherwise"


def test_clients_of_more_classes_than_simulated_ones_are_not_known_to_be_safe() -> None:
    (target,) = conditions("labels<=0.5")
    shadow = {"exact": 0.0, "lacking": 10, "lacking_exact": 0, "guess": 0.1, "p": 1.0, "wider": 10}
    assert target.value(run(labels=[], label_shadow=shadow)) is None and not target.holds(run(labels=[], label_shadow=shadow))
    assert target.holds(run(labels=[], label_shadow=shadow | {"wider": 4}))
    assert not target.holds(run(labels=[], label_shadow=shadow | {"wider": 0, "unlearned": 10}))
    assert not target.holds(run(labels=[], label_shadow=shadow | {"wider": 4, "unlearned": 1})), "half of them"
    found = shadow | {"lacking_exact": 9, "p": 1e-8}
    assert target.value(run(labels=[], label_shadow=found)) == 0.9, "what was found counts all the same"


def test_clients_that_hold_every_class_do_not_dilute_what_is_found_of_the_others() -> None:
    whole = inferred(true=list(range(10)))
    (labels,) = conditions("labels<=0.5")
    assert labels.value(run(labels=[inferred(exact=True), whole, whole])) == 1.0
    assert labels.value(run(labels=[whole])) == 0.0, "nothing to find"
    shadow = {"exact": 0.3, "lacking": 3, "lacking_exact": 3, "guess": 0.1, "p": 0.001}
    assert labels.value(run(labels=[], label_shadow=shadow)) == 1.0


def test_too_few_clients_for_a_classifier_are_no_guarantee() -> None:
    """Of two clients with different classes, guessing is right for both in one case of four."""
    few = run(labels=[], label_shadow={"exact": 1.0, "lacking": 2, "lacking_exact": 2, "guess": 0.5, "p": 0.25})
    (labels,) = conditions("labels<=0.5")
    assert labels.value(few) is None and not labels.holds(few)
    assert "labels is not known, as with so few clients" in (first_met([few], conditions("labels>0.5")) or "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("recovered>0", "a run: recovered is 0.181 (recovered>0)"),
        ("recovered > 0.2", None),
        ("recovered>=0.2,membership_auc>0.7", "a run: membership_auc is 0.76 (membership_auc>0.7)"),
        ("epsilon>8", None),
        ("epsilon>7.5", "a run: epsilon is 7.9 (epsilon>7.5)"),
        ("epsilon_measured>3", "a run: epsilon_measured is 3.1 (epsilon_measured>3)"),
        ("epsilon_excess>-5", "a run: epsilon_excess is -4.8 (epsilon_excess>-5)"),
        ("epsilon_excess>1", None),
        ("labels>=0.5", "a run: labels is 0.5 (labels>=0.5)"),
        ("labels<0.5", None),
        ("recovered<=1e-3", None),
    ],
)
def test_the_first_condition_that_holds_is_named(text: str, why: str | None) -> None:
    assert first_met([run()], conditions(text)) == why


def test_without_differential_privacy_or_where_canaries_contradict_it_epsilon_is_infinite() -> None:
    contradicted = {"upper": 7.9, "canaries": {"lower": 8.4}}
    for epsilon in (None, contradicted):
        assert first_met([run(epsilon=epsilon)], conditions("epsilon>1e9")) is not None
        assert not conditions("epsilon<=8")[0].holds(run(epsilon=epsilon))
    assert (
        first_met([run(epsilon=contradicted)], conditions("epsilon_excess>0"))
        == "a run: epsilon_excess is 0.5 (epsilon_excess>0)"
    )


CUT = "cut: the audit's budget of 1 s was spent"
NONE = {"successes": 0, "n": 72, "share": 0.0, "low": 0.0, "high": 0.05}


def attempted(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = run()["attacks"][0]["attempts"][0]
    return made | {"success": {"0.01": NONE}} | changes


@pytest.mark.parametrize(
    "cut",
    [
        {"attacks": [{"attempts": [attempted()]}, {"attempts": [{"attacker": "dlg", "inapplicable": CUT}]}]},
        {"attacks": [{"attempts": [attempted(), {"attacker": "dlg", "inapplicable": CUT}]}]},
        {"attacks": [{"attempts": [attempted(cut=CUT)]}]},
        {"attacks": [{"attempts": [attempted()]}], "not_tried": {"texts": CUT}},
    ],
    ids=["a target", "an attacker", "images", "texts"],
)
def test_none_recovered_beside_what_the_budget_cut_is_not_known(cut: dict[str, Any]) -> None:
    some, all_of_it = run(**cut), run(attacks=[{"attempts": [attempted()]}])
    assert "recovered is not known, as attacks on samples were cut" in (first_met([some], conditions("recovered>0")) or "")
    assert not conditions("recovered<=0")[0].holds(some)
    assert first_met([all_of_it], conditions("recovered>0")) is None and conditions("recovered<=0")[0].holds(all_of_it)
    leaks = run(attacks=[*some["attacks"], *run()["attacks"]])
    assert first_met([leaks], conditions("recovered>0")) == "a run: recovered is 0.181 (recovered>0)", (
        "what was found stays found"
    )


def test_few_recovered_where_a_failure_is_no_evidence_are_no_bound() -> None:
    attempt = attempted(
        is_evidence=False,
        no_evidence="the client trained on altered copies",
        success=run()["attacks"][0]["attempts"][0]["success"],
    )
    augmented = run(attacks=[{"attempts": [attempt]}])
    (target,) = conditions("recovered<=0.5")
    assert target.value(augmented) == pytest.approx(13 / 72) and not target.holds(augmented)
    said = "recovered is not known, as a failure is no evidence: the client trained on altered copies (recovered>0.5)"
    assert said in (first_met([augmented], conditions("recovered>0.5")) or "")
    assert first_met([augmented], conditions("recovered>0.1")) == "a run: recovered is 0.181 (recovered>0.1)"
    assert target.holds(run(attacks=[{"attempts": [attempt, attempted()]}])), "another attack's failure is evidence"


def test_labels_beside_a_classifier_that_was_cut_are_not_known() -> None:
    cut = run(not_tried={"label_shadow": CUT})
    assert "labels is not known" in (first_met([cut], conditions("labels>0.6")) or "")
    assert first_met([cut], conditions("labels>0.4")) == "a run: labels is 0.5 (labels>0.4)"


def test_an_area_that_no_attack_could_have_shown_is_no_guarantee() -> None:
    row = {"auc": 0.5, "round": 3}
    few = run(membership=[row | {"members": 3, "non_members": 3}] * 8)
    assert "not even a perfect attack" in (first_met([few], conditions("membership_auc>0.6")) or "")
    assert not conditions("membership_auc<=0.6")[0].holds(few)
    enough = [row | {"members": 30, "non_members": 30}] * 8
    assert conditions("membership_auc<=0.6")[0].holds(run(membership=enough))
    one_round = [*enough, {"auc": 0.5, "round": 9, "members": 3, "non_members": 3}]
    assert not conditions("membership_auc<=0.6")[0].holds(run(membership=one_round)), "each round must have enough"


def test_a_round_in_which_membership_was_not_attacked_is_no_guarantee() -> None:
    rows = [{"auc": 0.5, "round": 3, "members": 30, "non_members": 30}]
    cut = run(membership=rows, membership_rounds=[1, 3])
    assert "membership attack was mounted on messages of round 1" in (first_met([cut], conditions("membership_auc>0.6")) or "")
    assert not conditions("membership_auc<=0.6")[0].holds(cut)
    assert conditions("membership_auc<=0.6")[0].holds(run(membership=rows, membership_rounds=[3]))


def test_words_of_texts_have_a_measure() -> None:
    read = {
        "attempts": [
            {"attacker": "tokens", "inapplicable": None, "exact": None, "rouge_l": None, "recall": 0.9, "precision": 1.0}
        ]
    }
    (measure,) = conditions("words>0.5")
    assert measure.value(run()) is None
    assert measure.value(run(texts=[read | {"baseline": {"precision": 0.4}}])) == 0.9
    assert measure.value(run(texts=[read | {"baseline": {"precision": 1.0}}])) == 0.0, "random words do as well"


def test_sentences_that_no_attack_could_have_found_are_no_guarantee() -> None:
    tokens = {"attacker": "tokens", "inapplicable": None, "exact": None, "rouge_l": None, "recall": 0.1, "precision": 0.1}
    exact = {"successes": 0, "n": 4, "share": 0.0, "high": 0.49}
    tag = {**tokens, "attacker": "tag", "rouge_l": 0.1, "exact": exact, "no_evidence": "dropout"}
    read = {"kind": "single text", "attempts": [tokens, tag], "baseline": {"precision": 0.1}}
    (target,) = conditions("recovered<=0.5")
    assert target.holds(run(texts=[read | {"attempts": [tokens, {**tag, "no_evidence": None}]}]))
    assert not target.holds(run(texts=[read]))
    assert "a failure is no evidence: dropout" in (first_met([run(texts=[read])], conditions("recovered>0.5")) or "")
    found = {**tag, "exact": {"successes": 1, "n": 4, "share": 0.25, "high": 0.7}, "no_evidence": None}
    assert target.holds(run(texts=[read | {"attempts": [tokens, found]}]))
    assert best_reading(read) == tokens and best_reading(read | {"attempts": [tag]}) is None
    assert "tag: dropout" in of_texts([read | {"attempts": [{**tag, "left_says": None}], "round": 1}])[0]


@pytest.mark.parametrize(("measure", "key"), [("recovered", "attacks"), ("membership_auc", "membership"), ("labels", "labels")])
def test_what_is_not_known_never_passes(measure: str, key: str) -> None:
    unknown = deepcopy(run(**{key: []}))
    assert f"{measure} is not known" in (first_met([unknown], conditions(f"{measure}>0.99")) or "")


@pytest.mark.parametrize("epsilon", [None, {"upper": 7.9}, {"upper": 7.9, "canaries": None}])
@pytest.mark.parametrize("measure", ["epsilon_measured", "epsilon_excess"])
def test_without_canaries_no_epsilon_is_measured(epsilon: dict[str, Any] | None, measure: str) -> None:
    assert f"{measure} is not known" in (first_met([run(epsilon=epsilon)], conditions(f"{measure}>0")) or "")


def test_an_attack_whose_controls_do_not_cover_it_is_not_known() -> None:
    blind = run()
    blind["attacks"][0]["attempts"][0] |= {"is_evidence": False, "success": {"0.01": {"successes": 0, "n": 72, "share": 0.0}}}
    assert MEASURES["recovered"](blind) is None


@pytest.mark.parametrize("text", ["", "recovered", "recovered>", "recovered=0", "recovered>0,", "recovered>1e", "recovered>nan"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as recovered>0"):
        conditions(text)


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"unknown measure of --fail-if 'recoverd'; did you mean 'recovered'\?"):
        conditions("recoverd>0")


@pytest.mark.parametrize(("condition", "code"), [("recovered>0", 3), ("recovered>0.9", 0), ("recovered", 2)])
def test_the_command_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, condition: str, code: int) -> None:
    made = Audited(
        {
            "runs": [
                run(
                    verdict=["A sentence."],
                    answer={"words": "Nothing was found", "change": {"sentence": "A change.", "command": None}},
                )
            ]
        },
        {},
    )
    written: list[Path] = []
    command = sys.modules["fedpriv.cli.audit"]  # the package's name is its command
    monkeypatch.setattr(command, "run_folders", lambda *of: [tmp_path])
    monkeypatch.setattr(command, "send", lambda *of: None)
    monkeypatch.setattr(report, "audit", lambda *of: made)
    monkeypatch.setattr(report, "write", lambda audited, place: written.append(place))
    ended = CliRunner().invoke(main, ["audit", "a-run", "--fail-if", condition])
    assert ended.exit_code == code
    assert bool(written) == (code != 2)  # the report is there either way, and a condition is read before any work
    if code == 3:
        assert "a run: recovered is 0.181 (recovered>0); the report is" in ended.output


def test_what_was_not_attacked_of_pairs_is_not_known() -> None:
    """That no sentence was found says nothing of the images, nor the reverse; nor do words of sentences."""
    exact = {"successes": 0, "n": 4, "share": 0.0, "low": 0.0, "high": 0.5}
    span = {"attacker": "span", "inapplicable": None, "exact": exact, "rouge_l": 0.0, "recall": 0.0, "precision": 0.0}
    tokens = span | {"attacker": "tokens", "exact": None, "rouge_l": None}
    read = {"kind": "message", "attempts": [span], "baseline": {"precision": 0.1}}
    both, (target,) = (
        run(attacks=[{"attempts": [attempted()]}], texts=[read], modalities=["image", "text"]),
        conditions("recovered<=0"),
    )
    assert target.holds(both) and first_met([both], conditions("recovered>0")) is None
    for missing, what in (
        ({"attacks": []}, "images can be recovered"),
        ({"texts": []}, "texts can be recovered"),
        ({"texts": [read | {"attempts": [tokens]}]}, "sentences can be recovered"),
        ({"statistics": {"listed": [{"what": "odd", "known": False}]}}, "what was sent as odd gives samples away"),
    ):
        assert not target.holds(both | missing)
        said = first_met([both | missing], conditions("recovered>0"))
        assert said == f"a run: recovered is not known, as no attack whose failure is evidence shows whether {what} (recovered>0)"


def test_of_several_messages_the_most_exact_sentences_are_recorded() -> None:
    """Not those of the message of which most words were found."""
    exact = {"successes": 0, "n": 4, "share": 0.0, "low": 0.0, "high": 0.5}
    span = {"attacker": "span", "inapplicable": None, "exact": exact, "rouge_l": 0.0, "recall": 0.95, "precision": 1.0}
    read = {"kind": "message", "target": "", "attempts": [span], "baseline": {"precision": 0.1, "recall": 0.1}}
    found = span | {"recall": 0.6, "exact": exact | {"successes": 2, "share": 0.5}}
    best = best_of_texts([read, read | {"attempts": [found]}], "message")
    assert best is not None and best["recall"] == 0.95 and best["exact"]["share"] == 0.5
    unlike = read | {"attempts": [span | {"no_evidence": "dropout"}]}
    best = best_of_texts([unlike], "message")
    assert best is not None and best["exact"] is None, "their failure is no evidence"


def test_a_rule_that_fails_is_no_evidence_without_simulated_clients() -> None:
    (target,), (alarm,) = conditions("labels<=0.5"), conditions("labels>0.5")
    failed = run(labels=[inferred()] * 3)
    assert target.value(failed) == 0.0 and not target.holds(failed)
    assert "no classifier was trained on messages of shadow clients" in (alarm.met(failed) or "")
    shadow = {"exact": 0.0, "lacking": 3, "lacking_exact": 0, "guess": 0.1, "p": 1.0}
    assert target.holds(failed | {"label_shadow": shadow}) and alarm.met(failed | {"label_shadow": shadow}) is None
    whole = run(labels=[inferred(true=list(range(10)))])
    assert target.holds(whole), "where every client holds every class there is nothing to infer"


def test_an_area_far_below_one_half_is_one_far_above() -> None:
    (target,) = conditions("membership_auc<=0.6")
    one = {"auc": 0.2, "round": 3, "members": 200, "non_members": 200, "together": {"low": 0.14, "high": 0.27, "of": 1}}
    assert target.value(run(membership=[one])) == 0.8 and not target.holds(run(membership=[one]))
    one["together"] = {"low": 0.1, "high": 0.55, "of": 1}
    assert target.value(run(membership=[one])) == 0.2


@pytest.mark.parametrize("text", ["recovered<=5", "membership_auc>60", "labels>1.5", "words<-1"])
def test_shares_are_no_percentages(text: str) -> None:
    with pytest.raises(UsageError, match=r"is a share from 0 to 1, such as 0\.05 for 5 %|a measure, one of"):
        conditions(text)


def test_nothing_recovered_is_not_known_where_an_attack_was_not_mounted() -> None:
    found = run(modalities=["image"])
    (attack,) = found["attacks"]
    attack["attempts"][0]["success"]["0.01"] |= {"successes": 0, "share": 0.0}
    assert known_recovered(found) == 0.0
    single = {"kind": "single image", "attempts": [attack["attempts"][0] | {"is_evidence": False}]}
    assert known_recovered(found | {"attacks": [attack, single]}) is None
