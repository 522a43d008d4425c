"""The sentences that a report ends with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge import images as of_images
from fedpriv.audit.judge import texts as of_texts
from fedpriv.audit.judge.measures import recovered
from fedpriv.audit.results.images import ImageOutcome
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Sender, TargetKind
from fedpriv.audit.sentences.verdict import verdict
from tests.audit.built import (
    NO_CONTROL,
    baseline,
    because,
    epsilon,
    image,
    images,
    member,
    no_image,
    no_member,
    point,
    run,
    text,
    texts,
)

LAYER = no_image("dlg", because("no layer is shared"))
WHY = no_image("dlg", Reason("not needed", "why"))


def said_of(*outcomes: ImageOutcome, kind: TargetKind = "message", **changes: Any) -> str:
    """The sentence on a target."""
    return verdict(run(images(*outcomes, kind=kind, **changes)))[0]


def on_members(*attacks: MembershipOutcome, **changes: Any) -> list[str]:
    """The sentences on membership alone: between those on images and on epsilon."""
    return verdict(run(images(image("dlg")), membership=attacks, **changes))[1:-1]


def test_nothing_found_is_about_the_attacks_and_their_budgets() -> None:
    text = said_of(image("dlg", n=50), image("analytic", n=50))
    assert "None of the 50" in text and "dlg, analytic within their budgets" in text and "up to 8%" in text
    assert "each attack passed its positive control" in text


def test_failures_without_a_positive_control_are_no_evidence() -> None:
    unproven = image("joint-head", 0, 50, NO_CONTROL)
    text = said_of(image("dlg", n=50), unproven)
    assert "reconstructed by dlg within" in text and "the failure of joint-head is no evidence" in text
    kinds: tuple[TargetKind, ...] = ("message", "single image")
    for kind in kinds:
        alone = images(unproven, WHY, kind=kind)
        (text, *_) = verdict(run(alone))
        assert text.startswith("No attack whose controls show that it could succeed was mounted") and "is not known" in text
        assert "dlg: not tried: why" in text and "joint-head: recovered none, which is no evidence: no control shows" in text
        assert of_images.best(alone) is None, "nothing was measured"
    assert said_of(image("analytic"), WHY).endswith("; not tried: dlg.")
    lucky = said_of(image("joint-head", 3, 50, NO_CONTROL))
    assert lucky.startswith("3 of 50 training images were reconstructed") and "by joint-head" in lucky
    assert lucky.endswith("; it may be more, as a failure is no evidence: no control shows that it can succeed.")


def test_every_rate_of_the_easiest_case_has_its_interval() -> None:
    """0 of 24 leaves 14 % open, and the sentence says so; the number looked at depends on what was found."""
    text = said_of(image("analytic"), image("dlg", n=24), kind="single image")
    assert "0 of 72 by analytic (up to 6% is not excluded), 0 of 24 by dlg (up to 14% is not excluded)" in text
    assert "for the number of images tried, which depends on the results" in text
    text = said_of(image("analytic", 6, 6), kind="single image")
    assert (
        "analytic reconstructed 6 of 6 (MSE < 0.01; 95 % interval 61.0 to 100.0 %; the interval is for the number of images tried"
        in text
    )


def test_the_best_attacker_is_named_beside_what_copying_reaches() -> None:
    text = said_of(image("dlg", 2, 50), image("analytic", 9, 50), baselines={"nearest public": baseline(1, 50)})
    assert text.startswith("9 of 50 training images") and "by analytic" in text and "would recover 1 of them" in text


def test_an_attack_that_could_not_be_mounted_is_no_defence() -> None:
    text = said_of(LAYER)
    assert text.startswith("No attack was mounted") and "is not known" in text and "no layer is shared" in text
    assert "analytic" in said_of(LAYER, image("analytic", 3))


def test_unattacked_images_are_named_only_if_none_was_attacked() -> None:
    reason = {"images": because("the image encoder is frozen")}
    assert "No attack was mounted on the images" in verdict(run(not_run=reason))[0]
    assert not any("No attack was mounted on the images" in item for item in verdict(run(images(image()), not_run=reason)))


def test_membership_that_guessing_equals_is_not_called_found() -> None:
    (text,) = on_members(member(0.55, 0.48, 0.61))
    assert "cannot be distinguished from guessing on 70 members and 70 non-members" in text and "0.48 to 0.61" in text
    (text,) = on_members(member(0.8, 0.7, 0.9))
    assert text.startswith("The best of 1 membership attacks, LiRA, separates") and "0.70 to 0.90" in text


def test_unattacked_messages_share_a_sentence_by_reason() -> None:
    refused = images(no_image("dlg", because("500 images behind one message")))
    another = images(no_image("dlg", because("no head")), round=10)
    audited = run(refused, replace(refused, round=9, sender=Sender(2)), another)
    assert [sentence for sentence in verdict(audited) if sentence.startswith("No attack")] == [
        "No attack was mounted on client 7's message of round 3 and client 2's message of round 9, so what they reveal is not "
        "known (dlg: 500 images behind one message).",
        "No attack was mounted on client 7's message of round 10, so what it reveals is not known (dlg: no head).",
    ]


def test_the_best_attempt_is_that_with_the_largest_share() -> None:
    """Of clients with one image each, attacks are tried on different numbers."""
    few, many = image("dlg", 6, 6), image("analytic", 27, 72)
    target = images(few, many, kind="single image")
    best = of_images.best(target)
    assert best is not None and best.outcome is few and recovered(run(target)) == 1.0
    assert "dlg reconstructed 6 of 6" in verdict(run(target))[0]


def test_best_attack_has_the_simultaneous_interval() -> None:
    """Its own 95 % interval lies above guessing, and the one that allows for the choice among two does not."""
    (text,) = on_members(member(0.58, 0.49, 0.67, of=2), member(0.5, 0.43, 0.57, of=2))
    assert "cannot be distinguished from guessing" in text and "0.49 to 0.67, which holds for the best of 2" in text


def test_of_several_rounds_the_surest_is_named_with_its_round() -> None:
    """A round with few samples may have the largest area by chance, and must not hide what is found in another."""
    early = member(0.7, 0.6, 0.8, round=1, few=point(28, 70, 1e-9))
    (text,) = on_members(member(0.9, 0.45, 0.99, asked=4), early)
    assert text.startswith("The best of 2 membership attacks, LiRA, round 1, separates") and "LiRA, round 1 finds 40.0 %" in text


def test_reconstructed_images_are_known_members() -> None:
    """Whatever the attacks on membership say: the verdict must not deny what the same messages show."""
    known = tuple(of_images.known_members([images(image("dlg", 2, 50), image("analytic", 9, 50))]))
    (result,) = known
    assert (result.attack, result.rate.successes, result.sender, result.what) == ("analytic", 9, Sender(7), "images")
    first, second = on_members(member(0.5, 0.43, 0.57), known_members=known)
    assert (
        "Reconstructed samples are known members: 9 of 50 training images behind client 7's message of round 3, by analytic"
        in first
    )
    assert second.startswith("Membership attacks") and "nothing beyond that" in second and "0.43 to 0.57" in second
    assert "distinguished from guessing" not in second
    assert on_members(known_members=known) == [first]
    for none in (
        images(image("dlg")),
        images(image("dlg", 2), baselines={"nearest public": baseline(5)}),  # copies of public images would count for as many
        images(image("dlg", 9), kind="single image"),  # simulated by the audit
        images(LAYER),
    ):
        assert list(of_images.known_members([none])) == []


def test_texts_that_were_read_word_for_word_are_known_members() -> None:
    (results,) = of_texts.known_members([texts(text("span", wilson(2, 8), recall=1.0, precision=1.0, rouge_l=0.9))])
    assert results.what == "texts" and results.rate.successes == 2
    assert list(of_texts.known_members([texts(text("tokens", recall=1.0, precision=1.0))])) == []


def test_few_certain_members_are_reported_despite_chance_area() -> None:
    (text,) = on_members(member(0.52, 0.43, 0.6, few=point(12, 70, 1e-4)))
    assert text.startswith(
        "At low false-positive rates, members are found: LiRA finds 17.1 % of the members at a false-positive rate of 1%"
    )
    (text,) = on_members(member(0.52, 0.43, 0.6, few=point(12, 70, 0.2)))
    assert "At low" not in text and "cannot be distinguished from guessing" in text


def test_an_attack_on_membership_that_was_not_tried_is_said() -> None:
    (text,) = on_members(no_member("LiRA", "its control failed: AUC 0.5", use="LiRA"))
    assert "not tried, so that their success is not known" in text and "LiRA (its control failed: AUC 0.5)" in text


def test_reasons_of_single_rounds_name_their_round() -> None:
    """Of a round in which no attack counts there is one reason; where that is so of every round, it is said elsewhere."""
    refused = no_member("every membership attack", "an upload is missing", round=1, uses=None, use=None)
    rows, lira = (no_member("row distance", "no linear layer", round) for round in (2, 3)), no_member("LiRA", "few", 2)
    (text,) = on_members(refused, lira, *rows)
    assert text.endswith(
        ": row distance (no linear layer); LiRA, round 2 (few); every membership attack, round 1 (an upload is missing)."
    )
    assert on_members(refused) == []


def test_a_run_without_differential_privacy_has_no_guarantee() -> None:
    assert "no guarantee" in verdict(run())[-1]
    assert "3.21 at delta 1e-05" in verdict(run(epsilon=epsilon(3.21)))[-1]


def test_no_sentence_promises_anything() -> None:
    text = " ".join(verdict(run(images(image("dlg")), epsilon=epsilon(1.0, level="client")))).lower()
    assert not any(word in text for word in (" safe", "secure", "is private", "anonymous", "cannot be"))
