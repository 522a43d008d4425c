"""The rules behind an audit's answer: which holds, and that none says more than the attacks did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.answer import answer
from fedpriv.audit.conditions import conditions
from fedpriv.audit.page.overview import _labels_found
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.images import ImageOutcome
from fedpriv.audit.results.labels import ShadowLabels
from fedpriv.audit.results.outcome import Sender, TargetKind
from fedpriv.audit.results.texts import TextTargetResult
from fedpriv.audit.sentences.verdict import verdict
from tests.audit.built import (
    CUT,
    baseline,
    because,
    epsilon,
    image,
    images,
    labels,
    member,
    no_image,
    no_member,
    shadows,
    statistic,
    text,
    texts,
)
from tests.audit.fictitious import (
    FAILED,
    by_rule,
    harmless,
    read,
    remade,
    undefended,
    unknown,
    with_members,
    with_outcomes,
    without_images,
    without_members,
    words,
)


def test_rules_apply_in_order_worst_first() -> None:
    run = undefended()
    assert words(run) == "Samples were recovered"
    run = without_images(run, "message")
    assert words(run) == "Members were identified"
    run = without_members(run)
    assert words(run) == "Single samples leak"
    run = without_images(run, "single image")
    assert words(run) == "Classes were inferred"
    assert words(replace(run, labels=(labels(),) * 3, labels_over_rounds=(labels(),))) == "Nothing was found"


def test_simulated_clients_that_show_the_classes_are_a_finding() -> None:
    assert words(harmless()) == "Nothing was found"
    answered = answer(harmless(shadow_labels=shadows(3, 3, 0.06, 0.06**3)))
    assert answered.words == "Classes were inferred"
    assert (
        "identified exactly the classes of 3 of 3 clients that do not hold all (round 1); the most common set is right for 6%"
        in answered.sentence
    )


@pytest.mark.parametrize(
    "shadow",
    [
        shadows(3, 1, 0.01, 0.03),  # not most of them
        shadows(4, 3, 0.5, 0.31),  # as guessing
        shadows(0, 0, 1.0, 1.0),  # every client holds every class
    ],
)
def test_simulated_clients_that_may_have_guessed_are_none(shadow: ShadowLabels) -> None:
    assert words(harmless(shadow_labels=shadow)) == "Nothing was found"


@pytest.mark.parametrize(
    ("kind", "chance", "expected"),
    [
        ("message", 0.4, "Words were found"),
        ("message", 0.9, "Words were found"),  # all right where random words miss one in ten
        ("message", 1.0, "Nothing was found"),  # the messages hold every word there is
        ("single text", 0.4, "Single samples leak"),
    ],
)
def test_named_words_count_where_far_beyond_chance(kind: TargetKind, chance: float, expected: str) -> None:
    answered = answer(harmless(**read(kind, chance)))
    assert answered.words == expected
    if expected != "Nothing was found":
        assert "tokens found" in answered.sentence, "the attack that named most of them"


def test_a_sentence_word_for_word_is_a_sample() -> None:
    def found(kind: TargetKind) -> AuditedRun:
        return harmless(texts=(texts(text("span", wilson(1, 4), recall=0.5, precision=1.0, rouge_l=0.4), kind=kind),))

    assert words(found("message")) == "Samples were recovered" and words(found("single text")) == "Single samples leak"
    assert answer(found("message")).sentence == (
        "span found from client 3's message of round 1, 4 training texts behind it: 50% of the tokens, with a precision of 100% "
        "(random words: 10% of the tokens, with a precision of 10%); 1 of 4 sentences are right word for word (95 % interval 4.6 "
        "to 69.9 %)."
    )


def test_what_the_budget_cut_is_not_said_to_have_failed() -> None:
    run = with_outcomes(harmless(), "single image", lambda item: no_image(item.attack, CUT))
    answered = answer(run)
    assert answered.words == "Leakage not known" and "images can be recovered" in answered.sentence


def test_centres_that_the_budget_cut_are_not_known() -> None:
    run, (target,) = harmless(), conditions("recovered<=0")
    cut = replace(run, not_run={"class centres": CUT})
    assert words(run) == "Nothing was found" and words(cut) == "Leakage not known"
    assert "class centres give images away" in answer(cut).sentence
    assert not target.holds(cut) and target.holds(run)


def test_sentences_that_no_attack_could_have_found_are_not_known() -> None:
    tokens, dropout = text("tokens"), because("dropout")

    def read(*outcomes: Any) -> AuditedRun:
        return harmless(images=(), modalities=("text",), texts=(texts(*outcomes),))

    run = read(tokens, text("tag", wilson(0, 4), dropout))
    assert words(run) == "Leakage not known" and "sentences can be recovered" in answer(run).sentence
    assert "that no sentence was found is no evidence: dropout" in " ".join(verdict(run))
    assert words(read(tokens, text("tag", wilson(0, 4)))) == "Nothing was found"
    words_by_tag = text("tag", wilson(0, 4), dropout, recall=0.9, precision=0.9)
    assert "tag found" in " ".join(verdict(read(words_by_tag)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"membership": (member(asked=3), member(asked=3))}, ""),
        ({"membership": (member(), no_member("every attack", "an upload is missing", round=1, uses=None, use=None))}, ""),
        ({"membership_limit": "in round 30 the gradients had a term"}, " (in round 30 the gradients had a term)"),
    ],
    ids=["too few candidates", "a round that was not attacked", "shadows unlike clients"],
)
def test_membership_is_not_known(change: dict[str, Any], why: str) -> None:
    answered = answer(harmless(**change))
    assert answered.words == "Leakage not known" and f"whether members can be identified{why}: no attack" in answered.sentence


def test_untried_membership_attack_on_class_centres_is_listed() -> None:
    run, line = undefended(), "membership inference from class centres"
    assert line in answer(run).not_tried
    refused = no_member("class centres", "a centre is 3 numbers, and a projection 128", 30, "class centre")
    answered = answer(replace(run, membership=(*run.membership, refused))).not_tried
    assert [item for item in answered if "class centres" in item and "member" in item] == []
    tried = member(attack="class centres", round=30, uses="class centre", use="alone")
    assert line not in answer(replace(run, membership=(*run.membership, tried))).not_tried
    assert line not in answer(replace(run, statistics=())).not_tried


def test_inference_that_was_not_tried_is_no_failure() -> None:
    assert "Inference of classes" in answer(harmless()).sentence
    run, text = harmless(shadow_labels=None), "inference of classes by shadow clients (none were simulated)"
    assert "classes" not in answer(run).sentence
    assert text in answer(run).not_tried
    without = answer(replace(run, not_run={"shadow clients": because("no data")})).not_tried
    assert text not in without and "label shadow (no data)" in without


def test_classes_from_all_messages_of_a_client_are_a_finding() -> None:
    answered = answer(harmless(labels_over_rounds=(labels(True, 1), labels(True, 2), labels(False, 3))))
    assert answered.words == "Classes were inferred" and "for 2 of 3 clients" in answered.sentence


@pytest.mark.parametrize(("client", "whose"), [(0, "client"), (None, "sum")])
def test_where_every_client_holds_all_classes_there_is_nothing_to_infer(client: int | None, whose: str) -> None:
    """To name all classes is right for every message, and tells nothing."""
    every = tuple(range(10))
    exact = tuple(
        replace(labels(true=every, inferred=every, stated=True), sender=replace(Sender(0), client=client)) for _ in range(9)
    )
    shadow = shadows(lacking=0, exact=0, guess=0.0, p=1.0)
    said = f"every {whose} holds all classes: nothing to infer"
    for found in (None, shadow):
        run = harmless(labels=exact, labels_over_rounds=exact, shadow_labels=found)
        assert words(run) == "Nothing was found" and "classes" not in answer(run).sentence
        assert _labels_found(run) == said and not conditions("labels>0")[0].holds(run)
        sentences = verdict(run)
        assert f"{said.capitalize()}." in sentences and not any("found exactly" in sentence for sentence in sentences)
    one_lacks = harmless(labels=(*exact, labels(True, 9)), labels_over_rounds=(), shadow_labels=None)
    assert "messages" in str(_labels_found(one_lacks))
    assert _labels_found(harmless(labels=(), shadow_labels=None)) is None


def test_classes_that_guessing_would_find_are_no_finding() -> None:
    """With two classes, half of the clients that lack a class hold the same set."""
    assert words(by_rule(*[True] * 6, *[False] * 4, guess=0.5)) == "Nothing was found"
    answered = answer(by_rule(*[True] * 9, False, guess=0.5))
    assert answered.words == "Classes were inferred"
    end = "always guessing the most common set would be right for 50% of the clients that lack a class."
    assert answered.sentence.endswith(end)


def test_classes_of_too_few_clients_are_not_known() -> None:
    few = answer(by_rule(True, True, True, guess=0.5))
    assert few.words == "Leakage not known" and "guessing could have found as many" in few.sentence
    assert words(by_rule(True, True, True, guess=0.05)) == "Classes were inferred"
    assert words(by_rule(True, guess=0.5, stated=True)) == "Classes were inferred", "read in clear, not guessed"
    assert words(by_rule(False, False, guess=0.5)) == "Nothing was found"


def test_the_best_of_several_rules_is_held_to_what_holds_for_all() -> None:
    """Five of five are right by chance once in 32 times, and the best of two rules twice as often."""
    run = by_rule(*[True] * 5, guess=0.5)
    assert words(run) == "Classes were inferred"
    assert words(replace(run, labels=tuple(replace(result, rules=2) for result in run.labels))) == "Leakage not known"


def test_messages_of_one_client_are_one_guess() -> None:
    run = by_rule(*[True] * 8, guess=0.5)
    two = tuple(replace(item, sender=Sender(client % 2)) for client, item in enumerate(run.labels))
    assert words(replace(run, labels=two)) == "Leakage not known"


def test_a_rule_whose_failure_is_no_evidence_leaves_classes_open() -> None:
    answered = answer(harmless(labels=(labels(limit="the message is the sum of several steps"),)))
    assert answered.words == "Leakage not known"
    assert "classes can be inferred (the message is the sum of several steps)" in answered.sentence
    assert words(harmless(labels=(labels(limit="steps", true=tuple(range(10))),))) == "Nothing was found", "nothing to infer"


def test_the_worst_finding_has_its_picture() -> None:
    answered = answer(undefended())
    assert answered.picture == "mp-r1-c0.png"
    assert "13 of 72" in answered.sentence
    members = answer(without_images(undefended(), "message"))
    assert members.roc and members.picture is None


def compared(*outcomes: ImageOutcome, **baselines: Any) -> AuditedRun:
    """With a message, and what guesses count for in it."""
    named = {name.replace("_", " "): item for name, item in baselines.items()}
    target = images(*outcomes or (image("analytic", (13, 2, 1)),), baselines=named)
    return undefended(images=(target, undefended().images[1]))


def test_copies_of_public_images_are_no_recovery() -> None:
    assert words(compared(nearest_public=baseline((13, 13, 13)))) != "Samples were recovered"


def test_flat_images_are_no_recovery() -> None:
    """Without public images, an image of little contrast would count as recovered from a message that tells nothing."""
    run = compared(own_mean_colour=baseline((13, 13, 13)))
    assert words(run) != "Samples were recovered"
    assert "13 of 72 training images were reconstructed" in verdict(run)[0]
    assert "; flat images of the right colour would recover 13 of them" in verdict(run)[0]
    run = compared(own_mean_colour=baseline((13, 1, 13)))
    assert words(run) == "Samples were recovered" and "where guesses would recover 1" in verdict(run)[0]


@pytest.mark.parametrize("kind", ["message", "single image"])
def test_as_many_images_as_guesses_recover_are_not_known(kind: TargetKind) -> None:
    """Neither that images can be recovered, nor that they cannot."""
    run = unknown(unknown(harmless(), "single image"), kind, hits=1)
    public = {target.kind: {"nearest public": baseline((2, 2, 2), target.samples)} for target in run.images}
    run = replace(run, images=tuple(replace(target, baselines=public[target.kind]) for target in run.images))
    answered = answer(run)
    assert answered.words == "Leakage not known" and "images can be recovered" in answered.sentence
    evidence = Status("found")
    run = with_outcomes(run, "message", lambda item: replace(item, status=evidence))
    run = with_outcomes(run, "single image", lambda item: replace(item, status=evidence))
    assert words(run) == "Nothing was found"


def test_images_count_at_a_threshold_that_copies_miss() -> None:
    """Some images are so alike that copies of public ones count for more at a loose threshold than what an attack really read."""
    answered = answer(compared(image("analytic", (7, 3, 0)), nearest_public=baseline((20, 0, 0))))
    assert answered.words == "Samples were recovered"
    assert "7 of 72 training images" in answered.sentence
    text = "copies of the nearest public image would recover 20 of them; 3 by analytic with MSE < 0.001, where copies would "
    assert text + "recover none)" in answered.sentence
    assert words(compared(image("analytic", (7, 3, 0)), nearest_public=baseline((20, 3, 0)))) != "Samples were recovered"


def test_what_could_not_be_tried_is_not_known() -> None:
    run = harmless(labels=())
    for item, what in (
        (answer(replace(run, membership=())), "members can be identified"),
        (answer(unknown(unknown(run, "message"), "single image")), "images can be recovered"),
    ):
        assert item.words == "Leakage not known" and what in item.sentence


def test_canaries_above_the_ledger_come_first() -> None:
    assert words(undefended(epsilon=epsilon(2.0, 1.9))) == "Samples were recovered"
    run = undefended(epsilon=epsilon(2.0, 6.0))
    answered = answer(run)
    assert (answered.words, answered.sentence) == (
        "Claimed epsilon contradicted",
        "By one run the canaries show an epsilon of at least 6, above the 2 of the privacy accountant: noise or clipping is not "
        "what the accountant assumes. By chance alone, at least one of the four bounds exceeds even a correct, tight epsilon in "
        "up to 20 % of runs.",
    )
    assert verdict(run)[-2:] == [
        "Lower bounds of epsilon from 1,000 canaries, 500 of them used, at delta 1e-05 and 95 % confidence: one run 6, assuming "
        "nothing.",
        answered.sentence,
    ]


def test_what_was_not_tried_is_said() -> None:
    answered = answer(undefended()).not_tried
    assert "class centres on real messages (the message carries no counts)" in answered
    assert "row distance (no linear layer with a bias was shared)" in answered
    assert "reconstruction from class centres" in answered
    assert answered[-1] == "a server that breaks the protocol, such as one that sends altered models"


def test_equal_reasons_why_attacks_were_not_tried_are_said_once() -> None:
    """Those that differ in the number of samples alone count as equal."""

    def many(images: int) -> Reason:
        return Reason("too many samples", f"{images} images behind one message; at this budget its control recovers up to 8")

    texts_too = replace(text("tag"), figures=None, status=Status.not_run(many(24)))
    messages = images(no_image("dlg", many(72)), image()), images(no_image("idlg", many(40)), no_image("dlg", many(40)), image())
    answered = answer(
        harmless(images=messages, texts=(texts(texts_too),), not_run={"single samples": because("no run")})
    ).not_tried
    assert answered[:2] == (
        "dlg, idlg, tag on real messages (too many samples behind a message for a budget with a positive control)",
        "clients with a single sample (no run)",
    )


def test_attacks_over_several_rounds_are_not_listed_as_untried() -> None:
    run = undefended()
    assert "reconstruction of samples from messages of several rounds together" in answer(run).not_tried
    run = replace(run, labels_over_rounds=())
    line = "reconstruction of samples, inference of classes from messages of several rounds together"
    assert line in answer(run).not_tried
    others = tuple(attack for attack in run.membership if attack.use != "FedMIA")
    missing = next(clause for clause in answer(replace(run, membership=others)).not_tried if "several rounds" in clause)
    assert missing.startswith("reconstruction of samples, membership inference, inference of classes")
    why = "it needs the messages of 2 other clients of a round, and 0 were kept"
    answered = answer(replace(run, membership=(*others, no_member("FedMIA", why, 30, use="FedMIA")))).not_tried
    assert line in answered and f"FedMIA ({why})" in answered


def test_a_statistic_that_the_audit_does_not_know_is_not_nothing() -> None:
    odd, loss = statistic("odd", known=False), statistic("loss")
    answered = answer(harmless(statistics=(odd, loss)))
    assert answered.words == "Leakage not known" and "what was sent as odd gives samples away" in answered.sentence
    assert "what the statistics sent with the model reveal (odd, loss)" in answered.not_tried
    assert words(harmless(statistics=(loss,))) == "Nothing was found"


def test_too_few_clients_for_simulated_ones_are_said() -> None:
    answered = answer(harmless(shadow_labels=shadows(2, 2, 0.5, 0.25)))
    assert answered.sentence.endswith("each conclusive one passed its positive control.")
    assert any(clause.startswith("inference of classes by shadow clients (with so few clients") for clause in answered.not_tried)
    enough = answer(harmless(shadow_labels=shadows(3, 0, 0.1, 1.0)))
    assert "Inference of classes did not succeed either; it has no control." in enough.sentence


def test_shadows_with_fewer_classes_are_no_evidence() -> None:
    """Of clients with five of ten classes they named none; those with as many classes named nine of ten."""
    answered = answer(harmless(shadow_labels=shadows(10, 0, 0.1, 1.0, wider=10)))
    assert "Inference of classes" not in answered.sentence
    text = "inference of classes by shadow clients (most clients hold more classes than the shadow clients)"
    assert text in answered.not_tried
    answered = answer(harmless(shadow_labels=shadows(10, 0, 0.1, 1.0, wider=4)))
    assert "Inference of classes did not succeed either" in answered.sentence and text not in answered.not_tried


def test_single_samples_that_were_not_measured_are_not_known() -> None:
    """They are the easiest case: what fails on a message of many says nothing of them. The reverse does."""
    answered = answer(unknown(harmless(), "single image"))
    assert answered.words == "Leakage not known" and "single images can be recovered" in answered.sentence
    answered = answer(unknown(harmless(), "message"))
    assert answered.words == "Nothing was found" and "of the messages themselves it is not known" in answered.sentence


def test_single_samples_must_be_known_in_each_attacked_round() -> None:
    run = harmless()
    last = replace(run.images[1], round=9)
    assert words(replace(run, images=(*run.images, last))) == "Nothing was found"
    failed = last.only([remade(outcome, 0, FAILED) for outcome in last.outcomes])
    answered = answer(replace(run, images=(*run.images, failed)))
    assert "whether single images can be recovered from messages of round 9" in answered.sentence


REFUSED = no_image("dlg on variate", because("it needs another net"), "variate")


def beside(run: AuditedRun, kind: TargetKind, outcome: ImageOutcome) -> AuditedRun:
    """With a statistic that is a gradient, and an attack on it in the messages of a kind."""
    targets = (target.only([*target.outcomes, outcome]) if target.kind == kind else target for target in run.images)
    return replace(run, statistics=(*run.statistics, statistic("variate", gradient=True)), images=tuple(targets))


def on_variate(*reasons: Reason) -> ImageOutcome:
    return image("dlg on variate", 0, 8, *reasons, statistic="variate")


@pytest.mark.parametrize(
    ("kind", "outcome", "known"),
    [
        ("single image", on_variate(), True),
        ("single image", on_variate(FAILED), False),
        ("single image", REFUSED, False),
        ("message", on_variate(), False),  # the single ones, which are easier, decide
    ],
)
def test_gradient_statistic_is_not_known_by_attacks_on_the_model(kind: TargetKind, outcome: ImageOutcome, known: bool) -> None:
    """Noise may be on the model alone."""
    answered = answer(beside(harmless(), kind, outcome))
    assert ("images can be recovered from variate" in answered.sentence) is not known
    assert answered.words == ("Nothing was found" if known else "Leakage not known")


def test_model_is_not_known_by_attacks_on_a_gradient_statistic() -> None:
    of_variate, (condition,) = "images can be recovered from variate", conditions("recovered>0.5")
    sentence = answer(beside(unknown(harmless(), "single image"), "single image", on_variate())).sentence
    assert "single images can be recovered" in sentence and of_variate not in sentence
    assert of_variate in str(condition.met(beside(harmless(), "single image", REFUSED)))
    assert condition.met(beside(harmless(), "single image", on_variate())) is None


def test_gradient_statistic_of_texts_is_not_known_by_attacks_on_the_model() -> None:
    whole = text("tag", wilson(0, 4))

    def of(*outcomes: Any) -> AuditedRun:
        target: TextTargetResult = texts(whole, *outcomes, kind="single text")
        return harmless(images=(), modalities=("text",), texts=(target,), statistics=(statistic("variate", gradient=True),))

    assert "whether texts can be recovered from variate: no attack" in answer(of()).sentence
    assert "texts can be recovered from variate" in answer(of(text("tokens", statistic="variate"))).sentence, "no sentences"
    assert words(of(text("tag", wilson(0, 4), statistic="variate"))) == "Nothing was found"


def test_members_that_are_ordered_last_are_identified() -> None:
    answered = answer(with_members(member(0.2, 0.14, 0.27, of=2), member(of=2)))
    assert answered.words == "Members were identified"
    assert "gives members lower scores than non-members" in answered.sentence
    assert words(with_members(member(0.2, 0.14, 0.51, of=2), member(of=2))) == "Nothing was found"
