"""Conditions under which an audit fails."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit import report
from fedpriv.audit.conditions import conditions, first_met
from fedpriv.audit.judge import texts as of_texts
from fedpriv.audit.judge.measures import known_recovered, recovered
from fedpriv.audit.results.audit import Answer, Audit, AuditedRun
from fedpriv.audit.results.epsilon import Epsilon
from fedpriv.audit.run_audit import Audited
from fedpriv.audit.sentences.verdict import verdict
from fedpriv.cli import main
from fedpriv.errors import UnknownName, UsageError
from tests.audit import built
from tests.audit.built import (
    CUT,
    NO_CONTROL,
    because,
    epsilon,
    image,
    images,
    labels,
    member,
    no_image,
    no_member,
    point,
    shadows,
    statistic,
    text,
    texts,
)

ALTERED = because("the client trained on altered copies")
NO_RULE = labels(rule=None)
EVERY_CLASS = labels(true=tuple(range(10)))


def run(**changes: Any) -> AuditedRun:
    """A run of which everything was measured."""
    fields: dict[str, Any] = {
        "images": (images(image("analytic", 13)),),
        "membership": (member(0.57, 0.5, 0.65, asked=200), member(0.76, 0.7, 0.82, "loss threshold", asked=200)),
        "labels": (labels(exact=True), labels()),
        "epsilon": epsilon(7.9, 3.1),
    }
    return built.run(**(fields | changes))


def met(audited: AuditedRun, condition: str) -> str:
    return first_met([audited], conditions(condition)) or ""


def holds(audited: AuditedRun, condition: str) -> bool:
    (target,) = conditions(condition)
    return target.holds(audited)


def share_of_labels(**changes: Any) -> float | None:
    (measure,) = conditions("labels<=0.5")
    return measure.value(run(**changes))


def test_classes_by_any_way_count_and_no_way_is_not_known() -> None:
    assert share_of_labels(labels=(NO_RULE,)) is None and not holds(run(labels=(NO_RULE,)), "labels<=0.5")
    assert share_of_labels(labels=(NO_RULE,), shadow_labels=shadows(3, 3, 0.1, 0.001)) == 1.0
    guessed = shadows(3, 3, 0.1, 0.2)
    assert share_of_labels(labels=(NO_RULE,), shadow_labels=guessed) == 0.0, "mounted, and as good as guessing"
    assert share_of_labels(shadow_labels=guessed) == 0.5
    some = shadows(100, 45, 0.02, 1e-40)  # far beyond guessing, if not of most
    assert share_of_labels(labels=(NO_RULE,), shadow_labels=some) == 0.45
    assert share_of_labels(labels_over_rounds=(labels(exact=True),)) == 1.0


def test_classes_that_guessing_would_find_do_not_count() -> None:
    result = tuple(labels(client < 6, client, guess=0.5) for client in range(10))
    assert share_of_labels(labels=result) == 0.0
    assert share_of_labels(labels=tuple(replace(item, guess=0.05) for item in result)) == 0.6
    assert share_of_labels(labels=result[:3]) == 1.0, "too few to exclude guessing, and none found otherwise"


def test_labels_are_open_for_clients_with_more_classes_than_shadows() -> None:
    def shown(exact: int = 0, p: float = 1.0, wider: int = 0, unlearned: int = 0) -> AuditedRun:
        return run(labels=(), shadow_labels=shadows(10, exact, 0.1, p, wider, unlearned))

    (target,) = conditions("labels<=0.5")
    assert target.value(shown(wider=10)) is None and not target.holds(shown(wider=10))
    assert target.holds(shown(wider=4))
    assert not target.holds(shown(unlearned=10))
    assert not target.holds(shown(wider=4, unlearned=1)), "half of them"
    assert target.value(shown(9, 1e-8, wider=10)) == 0.9, "what was found counts all the same"


def test_labels_are_open_for_clients_with_kept_state() -> None:
    assert holds(run(labels=(), shadow_labels=shadows(10, 0, 0.1, 1.0, later=5)), "labels<=0.5")
    kept = run(labels=(), shadow_labels=shadows(10, 0, 0.1, 1.0, later=6))
    assert not holds(kept, "labels<=0.5") and "as most clients began with something that they kept" in met(kept, "labels>0.5")


def test_clients_with_every_class_do_not_dilute_labels() -> None:
    assert share_of_labels(labels=(labels(exact=True), EVERY_CLASS, EVERY_CLASS)) == 1.0
    assert share_of_labels(labels=(EVERY_CLASS,)) == 0.0, "nothing to find"
    assert share_of_labels(labels=(), shadow_labels=shadows(3, 3, 0.1, 0.001)) == 1.0


def test_too_few_clients_for_a_classifier_are_no_guarantee() -> None:
    """Of two clients with different classes, guessing is right for both in one case of four."""
    few = run(labels=(), shadow_labels=shadows(2, 2, 0.5, 0.25))
    (target,) = conditions("labels<=0.5")
    assert target.value(few) is None and not target.holds(few)
    assert "labels is not known, as with so few clients" in met(few, "labels>0.5")


@pytest.mark.parametrize(
    ("condition", "why"),
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
def test_the_first_condition_that_holds_is_named(condition: str, why: str | None) -> None:
    assert first_met([run()], conditions(condition)) == why


def test_epsilon_is_infinite_without_dp_or_if_contradicted() -> None:
    contradicted = run(epsilon=epsilon(7.9, 8.4))
    for item in (run(epsilon=None), contradicted):
        assert met(item, "epsilon>1e9") and not holds(item, "epsilon<=8")
    assert met(contradicted, "epsilon_excess>0") == "a run: epsilon_excess is 0.5 (epsilon_excess>0)"


@pytest.mark.parametrize(
    "cut",
    [
        {"images": (images(image()), images(no_image("dlg", CUT)))},
        {"images": (images(image(), no_image("dlg", CUT)),)},
        {"images": (images(image(cut=CUT)),)},
        {"images": (images(image()),), "not_run": {"texts": CUT}},
    ],
    ids=["a target", "an attacker", "images", "texts"],
)
def test_none_recovered_beside_what_the_budget_cut_is_not_known(cut: dict[str, Any]) -> None:
    some, all_of_it = run(**cut), run(images=(images(image()),))
    assert "recovered is not known, as attacks on samples were cut" in met(some, "recovered>0")
    assert not holds(some, "recovered<=0")
    assert not met(all_of_it, "recovered>0") and holds(all_of_it, "recovered<=0")
    leaks = run(images=(*some.images, *run().images))
    assert met(leaks, "recovered>0") == "a run: recovered is 0.181 (recovered>0)", "what was found stays found"


def test_inconclusive_recoveries_are_no_bound() -> None:
    some = image("analytic", 13, 72, ALTERED)
    augmented, (target,) = run(images=(images(some),)), conditions("recovered<=0.5")
    assert target.value(augmented) == pytest.approx(13 / 72) and not target.holds(augmented)
    reason = "recovered is not known, as a failure is no evidence: the client trained on altered copies (recovered>0.5)"
    assert reason in met(augmented, "recovered>0.5")
    assert met(augmented, "recovered>0.1") == "a run: recovered is 0.181 (recovered>0.1)"
    assert target.holds(run(images=(images(some, image()),))), "another attack's failure is evidence"


def test_labels_beside_a_classifier_that_was_cut_are_not_known() -> None:
    cut = run(not_run={"shadow clients": CUT})
    assert "labels is not known, as inference of classes was cut" in met(cut, "labels>0.6")
    assert met(cut, "labels>0.4") == "a run: labels is 0.5 (labels>0.4)"


def test_membership_tpr_is_measured_at_a_low_false_positive_rate() -> None:
    """Of 1,000 members and 1,000 others, with a single other above the threshold."""
    item = member(asked=1000)
    assert item.points is not None
    result = [replace(item, points=replace(item.points, at={0.001: point(hits, 1000, 0.5)})) for hits in (7, 120)]
    many = run(membership=tuple(result))
    assert met(many, "membership_tpr>0.1") == "a run: membership_tpr is 0.12 (membership_tpr>0.1)"
    assert not met(many, "membership_tpr>0.2")
    assert holds(many, "membership_tpr<=0.2") and not holds(many, "membership_tpr<0.12")
    fewer = run(membership=(member(asked=30),) * 2)
    assert "a false-positive rate of 0.1 % needs 1,000 non-members" in met(fewer, "membership_tpr>0")
    assert not holds(fewer, "membership_tpr<=1")


def test_an_area_that_no_attack_could_have_shown_is_no_guarantee() -> None:
    few = run(membership=(member(asked=3),) * 8)
    assert "not even a perfect attack" in met(few, "membership_auc>0.6") and not holds(few, "membership_auc<=0.6")
    enough = (member(asked=30),) * 8
    assert holds(run(membership=enough), "membership_auc<=0.6")
    one_round = run(membership=(*enough, member(round=9, asked=3)))
    assert not holds(one_round, "membership_auc<=0.6"), "each round must have enough"


def test_unattacked_round_leaves_membership_open() -> None:
    attacked = member(asked=30)
    cut = run(membership=(attacked, no_member("every membership attack", "an upload is missing", round=1, uses=None, use=None)))
    assert "membership attack was mounted on messages of round 1" in met(cut, "membership_auc>0.6")
    assert not holds(cut, "membership_auc<=0.6")
    assert holds(run(membership=(attacked,)), "membership_auc<=0.6")


def test_membership_is_open_where_shadows_differ_from_clients() -> None:
    unlike = run(membership=(member(),), membership_limit="in round 3 the clients' gradients had a term")
    assert not holds(unlike, "membership_auc<=0.6")
    assert "as in round 3 the clients' gradients had a term (membership_auc>0.6)" in met(unlike, "membership_auc>0.6")


def test_words_of_texts_have_a_measure() -> None:
    (measure,) = conditions("words>0.5")
    named = text("tokens", recall=0.9, precision=1.0)
    assert measure.value(run()) is None
    assert measure.value(run(texts=(texts(named, chance=0.4),))) == 0.9
    assert measure.value(run(texts=(texts(named, chance=1.0),))) == 0.0, "random words do as well"


def test_sentences_are_open_without_a_conclusive_attack() -> None:
    tokens, dropout = text("tokens"), because("dropout")

    def read(*outcomes: Any) -> AuditedRun:
        return run(texts=(texts(*outcomes, kind="single text"),))

    unlike = text("tag", wilson(0, 4), dropout, rouge_l=0.1)
    assert holds(read(tokens, text("tag", wilson(0, 4), rouge_l=0.1)), "recovered<=0.5")
    assert not holds(read(tokens, unlike), "recovered<=0.5")
    assert "a failure is no evidence: dropout" in met(read(tokens, unlike), "recovered>0.5")
    assert holds(read(tokens, text("tag", wilson(1, 4), rouge_l=0.1)), "recovered<=0.5")
    best = of_texts.best(texts(tokens, unlike))
    assert best is not None and best.outcome is tokens and of_texts.best(texts(unlike)) is None
    assert "tag: dropout" in verdict(built.run(texts=(texts(unlike),)))[0]


@pytest.mark.parametrize(("measure", "key"), [("recovered", "images"), ("membership_auc", "membership"), ("labels", "labels")])
def test_what_is_not_known_never_passes(measure: str, key: str) -> None:
    assert f"{measure} is not known" in met(run(**{key: ()}), f"{measure}>0.99")


@pytest.mark.parametrize("without", [None, epsilon(7.9)])
@pytest.mark.parametrize("measure", ["epsilon_measured", "epsilon_excess"])
def test_without_canaries_no_epsilon_is_measured(without: Epsilon | None, measure: str) -> None:
    text = f"a run: {measure} is not known, as the run has no canaries (fedpriv train --canaries) ({measure}>0)"
    assert met(run(epsilon=without), f"{measure}>0") == text


def test_an_attack_whose_controls_do_not_cover_it_is_not_known() -> None:
    assert recovered(run(images=(images(image("analytic", 0, 72, NO_CONTROL)),))) is None


@pytest.mark.parametrize("form", ["", "recovered", "recovered>", "recovered=0", "recovered>0,", "recovered>1e", "recovered>nan"])
def test_another_form_is_refused(form: str) -> None:
    with pytest.raises(UsageError, match="such as recovered>0"):
        conditions(form)


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"unknown measure of --fail-if 'recoverd'; did you mean 'recovered'\?"):
        conditions("recoverd>0")


@pytest.mark.parametrize(("condition", "code"), [("recovered>0", 3), ("recovered>0.9", 0), ("recovered", 2)])
def test_the_command_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, condition: str, code: int) -> None:
    audited = run(verdict=("A sentence.",), answer=Answer("Nothing was found", 7, "None was.", change="A change."))
    result = Audit(created="", seconds=1.0, fedpriv="", command="", options={}, controls=(), runs=(audited,))
    written: list[Path] = []
    command = sys.modules["fedpriv.cli.audit"]  # the package's name is its command
    monkeypatch.setattr(command, "run_folders", lambda *of, **more: [tmp_path])
    monkeypatch.setattr(command, "send", lambda *of: None)
    monkeypatch.setattr(report, "audit", lambda *of: Audited(result, {}))
    monkeypatch.setattr(report, "write", lambda audited, place: written.append(place))
    ended = CliRunner().invoke(main, ["audit", "a-run", "--fail-if", condition])
    assert ended.exit_code == code
    assert bool(written) == (code != 2)  # the report is there either way, and a condition is read before any work
    if code == 3:
        assert "a run: recovered is 0.181 (recovered>0); the report is" in ended.output


def test_what_was_not_attacked_of_pairs_is_not_known() -> None:
    """That no sentence was found says nothing of the images, nor the reverse; nor do words of sentences."""
    read = texts(text("span", wilson(0, 4), recall=0.0, precision=0.0))
    both = run(images=(images(image()),), texts=(read,), modalities=("image", "text"))
    assert holds(both, "recovered<=0") and not met(both, "recovered>0")
    missing: list[tuple[dict[str, Any], str]] = [
        ({"images": ()}, "images can be recovered"),
        ({"texts": ()}, "texts can be recovered"),
        ({"texts": (texts(text("tokens", recall=0.0, precision=0.0)),)}, "sentences can be recovered"),
        ({"statistics": (statistic("odd", known=False),)}, "what was sent as odd gives samples away"),
        ({"not_run": {"single images": NO_CONTROL}}, "single images can be recovered"),
    ]
    for change, what in missing:
        assert not holds(replace(both, **change), "recovered<=0")
        reason = met(replace(both, **change), "recovered>0")
        assert (
            reason == f"a run: recovered is not known, as no attack whose failure is evidence shows whether {what} (recovered>0)"
        )


def test_most_exact_sentences_of_several_messages_are_recorded() -> None:
    """Not those of the message of which most words were found."""
    read = texts(text("span", wilson(0, 4), recall=0.95, precision=1.0, rouge_l=0.0))
    spans = texts(text("span", wilson(2, 4), recall=0.6, precision=1.0, rouge_l=0.0))
    best = of_texts.best_of(run(texts=(read, spans)), "message")
    assert best is not None and best.figures.recall == 0.95
    assert of_texts.most_exact((read, spans), "message") == wilson(2, 4)
    unlike = texts(text("span", wilson(0, 4), because("dropout"), recall=0.95, precision=1.0))
    assert of_texts.best_of(run(texts=(unlike,)), "message") is not None
    assert of_texts.most_exact((unlike,), "message") is None, "their failure is no evidence"


def test_failing_rule_leaves_labels_open_without_shadows() -> None:
    failed = run(labels=(labels(),) * 3)
    assert share_of_labels(labels=failed.labels) == 0.0 and not holds(failed, "labels<=0.5")
    assert "no classifier was trained on messages of shadow clients" in met(failed, "labels>0.5")
    tried = replace(failed, shadow_labels=shadows(3, 0, 0.1, 1.0))
    assert holds(tried, "labels<=0.5") and not met(tried, "labels>0.5")
    assert holds(run(labels=(EVERY_CLASS,)), "labels<=0.5"), "where every client holds every class there is nothing to infer"


def test_an_area_far_below_one_half_is_one_far_above() -> None:
    (target,) = conditions("membership_auc<=0.6")
    turned = run(membership=(member(0.2, 0.14, 0.27, asked=200),))
    assert target.value(turned) == 0.8 and not target.holds(turned)
    assert target.value(run(membership=(member(0.2, 0.1, 0.55, asked=200),))) == 0.2


@pytest.mark.parametrize("percentage", ["recovered<=5", "membership_auc>60", "labels>1.5", "words<-1"])
def test_shares_are_no_percentages(percentage: str) -> None:
    with pytest.raises(UsageError, match=r"is a share from 0 to 1, such as 0\.05 for 5 %|a measure, one of"):
        conditions(percentage)


def test_zero_recovered_is_not_known_without_an_attack() -> None:
    message = images(image())
    assert known_recovered(run(images=(message,))) == 0.0
    single = images(image("analytic", 0, 72, Reason("control failed", "its control failed")), kind="single image")
    assert known_recovered(run(images=(message, single))) is None
