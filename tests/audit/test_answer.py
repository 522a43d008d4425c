"""The rules behind an audit's answer: which holds, and that none says more than the attacks did."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import pytest

from fedpriv.audit.answer import CONTRADICTED, MEMBERS, NOT_KNOWN, NOTHING, SAMPLES, WORDS, answer
from fedpriv.audit.conditions import conditions
from fedpriv.audit.membership.classes import NO_RULE, STATED
from fedpriv.audit.page.change import changes
from fedpriv.audit.verdict import verdict
from fedpriv.frontier.grid import Defence
from fedpriv.frontier.search import BY_REPLAY
from tests.audit.sample_findings import findings, rate


def undefended() -> dict[str, Any]:
    """Images recovered from a real message, members found, classes found."""
    run: dict[str, Any] = findings()["runs"][0]
    for one in run["labels"]:
        one["of"] = 10
    return run


def without_images(run: dict[str, Any], kind: str) -> dict[str, Any]:
    """Its attacks of a kind recovered none, as attacks with positive controls."""
    for attack in run["attacks"]:
        if attack["kind"] == kind:
            for attempt in attack["attempts"]:
                attempt["is_evidence"] = not attempt.get("inapplicable")
                attempt["success"] = {limit: rate(0, one["n"]) for limit, one in attempt["success"].items()}
    return run


def without_members(run: dict[str, Any]) -> dict[str, Any]:
    for one in run["membership"]:
        one["together"] = {"low": 0.4, "high": 0.6, "of": 2}
        one["tpr"] = dict.fromkeys(one["tpr"])
    return run


def words(run: dict[str, Any]) -> str:
    return str(answer(run)["words"])


def test_each_rule_in_turn() -> None:
    run = undefended()
    assert words(run) == "Samples were recovered"
    assert words(without_images(run, "message")) == "Members were identified"
    assert words(without_members(run)) == "Single samples leak"
    assert words(without_images(run, "single image")) == "Classes were inferred"
    for one in (*run["labels"], *run["labels_over_rounds"]):
        one["exact"] = False
    assert words(run) == "Nothing was found"


def harmless() -> dict[str, Any]:
    """Nothing was found: no sample, no member, and no class by a rule."""
    run = without_members(without_images(without_images(undefended(), "message"), "single image"))
    for one in run["labels"]:
        one.update({"how": NO_RULE, "exact": False})
    return run | {"labels_over_rounds": []}


def test_simulated_clients_that_show_the_classes_are_a_finding() -> None:
    run = harmless()
    assert words(run) == "Nothing was found"
    run["label_shadow"] |= {"lacking": 3, "lacking_exact": 3, "guess": 0.06, "p": 0.06**3}
    found = answer(run)
    assert found["words"] == "Classes were inferred"
    assert (
        "identified exactly the classes of 3 of 3 clients that do not hold all (round 1); the most common set is right for 6 %"
        in (found["finding"]["sentence"].replace("%", " %"))
    )


@pytest.mark.parametrize(
    "shadow",
    [
        {"lacking": 3, "lacking_exact": 1, "guess": 0.01, "p": 0.03},  # not most of them
        {"lacking": 4, "lacking_exact": 3, "guess": 0.5, "p": 0.31},  # as guessing
        {"lacking": 0, "lacking_exact": 0, "guess": 1.0, "p": 1.0},  # every client holds every class
    ],
)
def test_simulated_clients_that_may_have_guessed_are_none(shadow: dict[str, Any]) -> None:
    run = harmless()
    run["label_shadow"] |= shadow
    assert words(run) == "Nothing was found"


def read(kind: str, *attempts: dict[str, Any], chance: float) -> dict[str, Any]:
    target = {"kind": kind, "client": 1, "round": 1, "texts": 6, "baseline": {"precision": chance, "recall": chance}}
    return target | {"attempts": [{"inapplicable": None, "left_says": "", **one} for one in attempts]}


TOKENS = {"attacker": "tokens", "precision": 1.0, "recall": 1.0, "exact": None, "rouge_l": None}
ORDER = {"attacker": "tag", "precision": 0.95, "recall": 0.95, "exact": rate(0, 4), "rouge_l": 0.6}


@pytest.mark.parametrize(
    ("kind", "chance", "expected"),
    [
        ("message", 0.4, "Words were found"),
        ("message", 0.9, "Words were found"),  # all right where random words miss one in ten
        ("message", 1.0, "Nothing was found"),  # the messages hold every word there is
        ("single text", 0.4, "Single samples leak"),
    ],
)
def test_words_are_a_finding_wherever_they_are_far_more_than_chance(kind: str, chance: float, expected: str) -> None:
    run = harmless() | {"modalities": ["text"], "texts": [read(kind, ORDER, TOKENS, chance=chance)]}
    found = answer(run)
    assert found["words"] == expected
    if expected != "Nothing was found":
        assert "tokens found" in found["finding"]["sentence"], "the attack that named most of them"


def test_what_the_budget_cut_is_not_said_to_have_failed() -> None:
    run = harmless()
    single = next(one for one in run["attacks"] if one["kind"] == "single image")
    for attempt in single["attempts"]:
        attempt["inapplicable"] = "cut: the audit's budget of 1 s was spent"
    found = answer(run)
    assert found["words"] == "Leakage not known" and "images can be recovered" in found["finding"]["sentence"]


def test_centres_that_the_budget_cut_are_not_known() -> None:
    run = harmless()
    cut = run | {"not_tried": {"centers": "cut: the audit's budget of 1 s was spent"}}
    assert words(run) == "Nothing was found" and words(cut) == "Leakage not known"
    assert "class centres give images away" in answer(cut)["finding"]["sentence"]
    assert not conditions("recovered<=0")[0].holds(cut) and conditions("recovered<=0")[0].holds(run)


def test_sentences_that_no_attack_could_have_found_are_not_known() -> None:
    tokens = {"attacker": "tokens", "inapplicable": None, "exact": None, "rouge_l": None, "recall": 0.1, "precision": 0.1}
    tag = {**tokens, "attacker": "tag", "exact": rate(0, 4), "no_evidence": "dropout"}
    read = {"kind": "message", "attempts": [tokens, tag], "baseline": {"precision": 0.1, "recall": 0.1}}
    read |= {"round": 1, "client": 3, "texts": 4}
    run = harmless() | {"texts": [read], "modalities": ["text"], "attacks": []}
    assert words(run) == "Leakage not known" and "sentences can be recovered" in answer(run)["finding"]["sentence"]
    assert "that no sentence was found is no evidence: dropout" in " ".join(verdict(run))
    known = run | {"texts": [read | {"attempts": [tokens, tag | {"no_evidence": None}]}]}
    assert words(known) == "Nothing was found"
    words_by_tag = tag | {"recall": 0.9, "precision": 0.9}
    assert "tag found" in " ".join(verdict(run | {"texts": [read | {"attempts": [words_by_tag]}]}))


def test_membership_is_not_known_where_not_even_a_perfect_attack_could_show_it() -> None:
    run = harmless()
    for one in run["membership"]:
        one |= {"members": 3, "non_members": 3}
    found = answer(run)
    assert found["words"] == "Leakage not known" and "members can be identified" in found["finding"]["sentence"]


def test_membership_is_not_known_where_a_round_was_not_attacked() -> None:
    run = harmless()
    run["membership_rounds"] = sorted({one["round"] for one in run["membership"]} | {1})
    found = answer(run)
    assert found["words"] == "Leakage not known" and "members can be identified" in found["finding"]["sentence"]


def test_class_centres_as_evidence_of_membership_are_named_where_they_were_not_tried() -> None:
    run, line = undefended(), "membership inference from class centres"
    assert line in answer(run)["not_tried"]
    run["membership_not_tried"]["class centres"] = "a centre is 3 numbers, and a projection 128"
    assert [one for one in answer(run)["not_tried"] if "class centres" in one and "member" in one] == []
    del run["membership_not_tried"]["class centres"]
    run["membership"].append(run["membership"][0] | {"attack": "class centres"})
    assert line not in answer(run)["not_tried"]
    del run["membership"][-1]
    run["statistics"]["listed"] = []
    assert line not in answer(run)["not_tried"]


def test_an_inference_that_no_attack_made_is_not_said_to_have_failed() -> None:
    run = harmless()
    assert "inference of classes" in answer(run)["finding"]["sentence"]
    run["label_shadow"] = None
    assert "classes" not in answer(run)["finding"]["sentence"]
    said = "inference of classes by shadow clients (none were simulated)"
    assert said in answer(run)["not_tried"]
    run["not_tried"] = {"label_shadow": "no data"}
    assert said not in answer(run)["not_tried"]


def test_classes_from_all_messages_of_a_client_are_a_finding() -> None:
    run = harmless()
    one = {"client": 1, "how": "bias", "true": [1], "found": [1], "of": 10, "exact": True}
    run["labels_over_rounds"] = [one, one | {"client": 2}, one | {"client": 3, "exact": False}]
    found = answer(run)
    assert found["words"] == "Classes were inferred" and "for 2 of 3 clients" in found["finding"]["sentence"]


def by_rule(*exact: bool, guess: float, how: str = "bias") -> dict[str, Any]:
    """Nothing else was found; a message of each client, whose set of classes was found or not."""
    run = harmless()
    one = {"round": 1, "how": how, "true": [1], "found": [1], "of": 2, "guess": guess, "note": None}
    run["labels"] = [one | {"client": client, "exact": hit} for client, hit in enumerate(exact)]
    return run


def test_classes_that_guessing_would_find_are_no_finding() -> None:
    """With two classes, half of the clients that lack one hold the same set."""
    assert words(by_rule(*[True] * 6, *[False] * 4, guess=0.5)) == "Nothing was found"
    found = answer(by_rule(*[True] * 9, False, guess=0.5))
    assert found["words"] == "Classes were inferred"
    said = "always guessing the most common set would be right for 50% of the clients that lack one."
    assert found["finding"]["sentence"].endswith(said)


def test_classes_of_too_few_clients_to_exclude_guessing_are_not_known() -> None:
    few = answer(by_rule(True, True, True, guess=0.5))
    assert few["words"] == "Leakage not known" and "guessing could have found as many" in few["finding"]["sentence"]
    assert words(by_rule(True, True, True, guess=0.05)) == "Classes were inferred"
    assert words(by_rule(True, guess=0.5, how=STATED)) == "Classes were inferred", "read in clear, not guessed"
    assert words(by_rule(False, False, guess=0.5)) == "Nothing was found"


def test_messages_of_one_client_are_one_guess() -> None:
    run = by_rule(*[True] * 8, guess=0.5)
    for one in run["labels"]:
        one["client"] %= 2
    assert words(run) == "Leakage not known"


def test_the_worst_finding_has_its_picture() -> None:
    found = answer(undefended())["finding"]
    assert found["picture"] == "mp-r1-c0.png"
    assert "13 of 72" in found["sentence"]
    members = answer(without_images(undefended(), "message"))["finding"]
    assert members["roc"] and members["picture"] is None


def test_copies_of_public_images_are_no_recovery() -> None:
    run = undefended()
    run["attacks"][0]["baselines"]["nearest public"] = {"success": {limit: rate(13, 72) for limit in ("0.01", "0.001", "0.0001")}}
    assert words(run) != "Samples were recovered"


def test_flat_images_are_no_recovery() -> None:
    """Without public images, an image of little contrast would count as recovered from a message that tells nothing."""
    run = undefended()
    attack = run["attacks"][0]
    attack["baselines"] = {"own mean colour": {"success": {limit: rate(13, 72) for limit in ("0.01", "0.001", "0.0001")}}}
    assert words(run) != "Samples were recovered"
    assert "13 of 72 training images were reconstructed" in verdict(run)[0]
    assert "; flat images of the right colour would count for 13 of them" in verdict(run)[0]
    attack["baselines"]["own mean colour"]["success"]["0.001"] = rate(1, 72)
    assert words(run) == "Samples were recovered" and "where guesses would count for 1" in verdict(run)[0]


@pytest.mark.parametrize("kind", ["message", "single image"])
def test_as_many_as_guesses_count_for_show_nothing_where_no_failure_is_evidence(kind: str) -> None:
    """Neither that images can be recovered, nor that they cannot."""
    run = harmless()
    for attack in run["attacks"]:
        of, n = attack["kind"] == kind, attack["images"]
        for attempt in attack["attempts"] if of or kind == "message" else ():
            attempt["is_evidence"] = False
            attempt["success"] = {limit: rate(int(of), n) for limit in attempt["success"]}
        attack["baselines"]["nearest public"] = {"success": {limit: rate(2, n) for limit in ("0.01", "0.001", "0.0001")}}
    found = answer(run)
    assert found["words"] == "Leakage not known" and "images can be recovered" in found["finding"]["sentence"]
    for attempt in (one for attack in run["attacks"] for one in attack["attempts"]):
        attempt["is_evidence"] = not attempt.get("inapplicable")
    assert words(run) == "Nothing was found"


def test_images_that_copies_come_near_to_are_recovered_where_an_attack_comes_closer() -> None:
    """Some images are so alike that copies of public ones count for more at a loose threshold than what an attack really read."""
    run = undefended()
    copies = {"0.01": rate(20, 72), "0.001": rate(0, 72), "0.0001": rate(0, 72)}
    run["attacks"][0]["baselines"]["nearest public"] = {"success": copies}
    for attempt in run["attacks"][0]["attempts"]:
        if "success" in attempt:
            attempt["success"] = {"0.01": rate(7, 72), "0.001": rate(3, 72), "0.0001": rate(0, 72)}
    found = answer(run)
    assert found["words"] == "Samples were recovered"
    assert "7 of 72 training images" in found["finding"]["sentence"]
    assert "copies of the nearest public image would count for 20 of them; 3 by " in found["finding"]["sentence"]
    assert "with MSE < 0.001, where copies would count for none" in found["finding"]["sentence"]
    copies["0.001"] = rate(3, 72)
    assert words(run) != "Samples were recovered"
    del copies["0.001"], copies["0.0001"]  # audits of earlier versions
    assert words(run) != "Samples were recovered"


@pytest.mark.parametrize("missing", ["evidence", "membership"])
def test_what_could_not_be_tried_is_not_known(missing: str) -> None:
    run = without_members(without_images(without_images(undefended(), "message"), "single image"))
    run |= {"labels": [], "labels_over_rounds": []}
    if missing == "membership":
        run["membership"] = []
    else:
        for attack in run["attacks"]:
            for attempt in attack["attempts"]:
                attempt["is_evidence"] = False
    found = answer(run)
    assert found["words"] == "Leakage not known"
    assert ("members can be identified" if missing == "membership" else "images can be recovered") in found["finding"]["sentence"]


def test_canaries_above_the_ledger_come_first() -> None:
    run = undefended()
    run["epsilon"] = {"upper": 2.0, "canaries": {"lower": 1.9, "sentences": ["They show 1.9."]}}
    assert words(run) == "Samples were recovered"
    run["epsilon"]["canaries"] = {"lower": 6.0, "sentences": ["Bounds.", "They show 6."]}
    found = answer(run)
    assert (found["words"], found["finding"]["sentence"]) == ("Claimed epsilon contradicted", "They show 6.")


def test_clients_that_hold_every_class_reveal_none() -> None:
    run = without_members(without_images(without_images(undefended(), "message"), "single image"))
    for one in (*run["labels"], *run["labels_over_rounds"]):
        one.update({"true": list(range(10)), "found": list(range(10)), "exact": True})
    assert words(run) == "Nothing was found"


def test_what_was_not_tried_is_said() -> None:
    found = answer(undefended())["not_tried"]
    assert any(one.startswith("class centres on real messages") for one in found)
    assert any("no linear layer" in one for one in found)
    assert any("breaks the protocol" in one for one in found)


def with_answer(run: dict[str, Any], level: int, **cost: Any) -> dict[str, Any]:
    return {**run, "cost": {**run["cost"], **cost}, "answer": {"level": level, "words": WORDS[level]}}


def test_what_would_change_it() -> None:
    run, other = findings()["runs"][:2]
    leaks, holds = with_answer(run, SAMPLES), with_answer(other, NOTHING, at_chance=False)
    command = changes(leaks, [])["command"]
    assert command == (
        "fedpriv frontier --config runs/mp/config.yaml --defenses 'mask:last=2 prune:fraction=0.01 gaussian:variance=1e-10..1e-4 "
        "dp-sample:target_epsilon=8+mask:names=[\"statistic.*\"]' --target 'recovered<=0'"
    ), "the head stays with the clients, and no noise covers class centres"
    assert "defence that meets `recovered<=0`" in (changes(leaks, [])["sentence"] or "")
    assert "membership_auc" in (changes(with_answer(run, MEMBERS), [])["command"] or "")
    assert changes(leaks, [holds]) == {
        "sentence": "Measured with mask(last=1), gaussian(variance=0.001), client-level DP (mp-dp): “Nothing was found”, "
        "at an accuracy of 94.1 % in place of 96.4 %.",
        "command": None,
    }


NO_STATISTICS = 'mask:names=["statistic.*"]'


def asked(run: dict[str, Any]) -> dict[str, str]:
    """The options of the command that is suggested for a run, by its own answer; none where there is no command."""
    command = changes(run | {"answer": answer(run)}, [])["command"]
    options = shlex.split(command or "")[2:]
    return dict(zip(options[::2], options[1::2], strict=True))


def with_area(auc: float, low: float, high: float) -> dict[str, Any]:
    """Members, and nothing else, were found, with an interval of the area."""
    run = harmless()
    run["membership"] = [run["membership"][0] | {"auc": auc, "together": {"low": low, "high": high, "of": 1}}]
    return run


def with_words(kind: str) -> dict[str, Any]:
    return harmless() | {"modalities": ["text"], "texts": [read(kind, ORDER, TOKENS, chance=0.4)]}


def with_classes() -> dict[str, Any]:
    return by_rule(*[True] * 9, False, guess=0.5)


@pytest.mark.parametrize(
    ("run", "target"),
    [
        (undefended(), "recovered<=0"),
        (without_members(without_images(undefended(), "message")), "recovered<=0"),
        (with_words("message"), "words<=0"),
        (with_words("single text"), "words<=0"),
        (with_area(0.8, 0.7, 0.9), "membership_auc<=0.6"),
        (with_area(0.57, 0.52, 0.62), "membership_auc<=0.53"),
        (with_area(0.51, 0.505, 0.515), "membership_auc<=0.5"),
        (with_area(0.25, 0.18, 0.33), "membership_auc<=0.6"),  # reversed
        (with_classes(), "labels<=0.5"),
    ],
)
def test_the_target_that_is_suggested_is_not_met_by_the_run_itself(run: dict[str, Any], target: str) -> None:
    assert answer(run)["level"] not in (NOT_KNOWN, NOTHING)
    options = asked(run)
    assert options["--target"] == target
    (condition,) = conditions(options["--target"], "--target")
    assert not condition.holds(run)
    searched = ".." in options["--defenses"]
    assert searched == (condition.measure in BY_REPLAY), "other measures need real runs, so values are listed"


def test_no_target_is_suggested_that_does_not_show_what_was_found() -> None:
    """Members that are found at a low false-positive rate alone need not show in the area."""
    run = with_area(0.51, 0.4, 0.6)
    run["membership"][0]["tpr"] = {"0.01": rate(20, 72) | {"by_chance": 1e-9}}
    found = changes(run | {"answer": answer(run)}, [])
    assert words(run) == "Members were identified" and found["command"] is None
    assert found["sentence"] == "Not measured. `fedpriv frontier` has no target that measures this, so no command is suggested."


def test_no_range_is_suggested_for_sums() -> None:
    """A search replays single uploads; and what is pruned has no sum."""
    run = undefended()
    run["defence"] = ["secure aggregation"]
    options = asked(run)
    assert options["--target"] == "recovered<=0"
    assert options["--defenses"].split() == [
        "mask:last=2", "gaussian:variance=1e-6", "gaussian:variance=1e-4", f"dp-sample:target_epsilon=8+{NO_STATISTICS}"
    ]  # fmt: skip


def test_what_a_message_names_in_clear_is_left_out_of_it() -> None:
    every = asked(with_classes())["--defenses"].split()
    assert every[0] == NO_STATISTICS and len(every) == 5 and all(one.endswith(NO_STATISTICS) for one in every)
    for one in every:
        Defence.read(one)


@pytest.mark.parametrize(
    "change",
    [
        {"statistics": {"listed": [{"what": "variate", "attacked": True, "how": "as a gradient"}]}},  # SCAFFOLD needs them
        {"conditions": ["no dropout", "BatchNorm: clients and attacks normalise by the batch"]},
        {"epsilon": {"upper": 8.0, "level": "client", "sentences": []}},
    ],
)
def test_no_defence_is_suggested_that_the_run_cannot_have(change: dict[str, Any]) -> None:
    assert "dp-sample" in asked(undefended())["--defenses"]
    assert "dp-sample" not in asked(undefended() | change)["--defenses"]


def test_no_mask_is_suggested_that_leaves_nothing() -> None:
    run = undefended()
    for tensor in run["wire"]["tensors"]:
        tensor["up"] = tensor["name"] == "projector.0.weight"
    assert "mask:last" not in asked(run)["--defenses"]


def test_the_command_that_is_suggested_can_be_pasted() -> None:
    run = undefended() | {"run_dir": "my runs/it's $HOME"}
    assert asked(run)["--config"] == "my runs/it's $HOME/config.yaml"


def test_a_model_at_chance_or_an_unknown_leakage_is_no_remedy() -> None:
    run, other = findings()["runs"][:2]
    leaks = with_answer(run, SAMPLES)
    assert "no better than guessing" in changes(leaks, [with_answer(other, NOTHING, at_chance=True)])["sentence"]
    for level in (SAMPLES, NOT_KNOWN):
        found = changes(leaks, [with_answer(other, level, at_chance=False)])
        assert found["sentence"].startswith("None of the other defences that were audited here (1)")
        assert found["command"]


@pytest.mark.parametrize(
    ("level", "word"), [(NOT_KNOWN, "why this one could not"), (NOTHING, "epsilon"), (CONTRADICTED, "accountant")]
)
def test_no_change_where_nothing_was_found_or_known(level: int, word: str) -> None:
    found = changes(with_answer(findings()["runs"][0], level), [])
    assert word in found["sentence"] and found["command"] is None


def test_what_was_tried_over_several_rounds_is_not_said_to_be_missing() -> None:
    run = undefended()
    assert "reconstruction of samples from messages of several rounds together" in answer(run)["not_tried"]
    del run["labels_over_rounds"]
    line = "reconstruction of samples, inference of classes from messages of several rounds together"
    assert line in answer(run)["not_tried"]
    run["membership"] = [one for one in run["membership"] if "FedMIA" not in one["attack"]]
    missing = next(one for one in answer(run)["not_tried"] if "several rounds" in one)
    assert missing.startswith("reconstruction of samples, membership inference, inference of classes")
    run["membership_not_tried"]["FedMIA"] = "it needs the messages of 2 other clients of a round, and 0 were kept"
    found = answer(run)["not_tried"]
    assert line in found and "FedMIA (it needs the messages of 2 other clients of a round, and 0 were kept)" in found


def test_a_statistic_that_the_audit_does_not_know_is_not_nothing() -> None:
    run = harmless()
    odd = {"what": "odd", "attacked": False, "how": "", "known": False}
    loss = {"what": "loss", "attacked": False, "how": "", "known": True}
    found = answer(run | {"statistics": {"listed": [odd, loss], "exposed": []}})
    assert found["words"] == "Leakage not known" and "what was sent as odd gives samples away" in found["finding"]["sentence"]
    assert "what the statistics sent with the model reveal (odd, loss)" in found["not_tried"]
    assert words(run | {"statistics": {"listed": [loss], "exposed": []}}) == "Nothing was found"


def test_too_few_clients_for_simulated_ones_are_said() -> None:
    run = harmless()
    run["label_shadow"] |= {"lacking": 2, "lacking_exact": 2, "guess": 0.5, "p": 0.25}
    found = answer(run)
    assert found["finding"]["sentence"].endswith("each that counts had recovered its positive control.")
    assert any(one.startswith("inference of classes by shadow clients (with so few clients") for one in found["not_tried"])
    run["label_shadow"] |= {"lacking": 3, "lacking_exact": 0, "guess": 0.1, "p": 1.0}
    assert "Nor did the inference of classes, which has no control." in answer(run)["finding"]["sentence"]


def test_simulated_clients_of_fewer_classes_show_nothing_by_failing() -> None:
    """Of clients with five of ten classes they named none; those with as many classes named nine of ten."""
    run = harmless()
    run["label_shadow"] |= {"lacking": 10, "lacking_exact": 0, "guess": 0.1, "p": 1.0, "wider": 10}
    assert "inference of classes" not in answer(run)["finding"]["sentence"]
    said = "inference of classes by shadow clients (most clients hold more classes than the shadow clients)"
    assert said in answer(run)["not_tried"]
    run["label_shadow"] |= {"wider": 4}
    assert "Nor did the inference of classes" in answer(run)["finding"]["sentence"] and said not in answer(run)["not_tried"]


def unknown(run: dict[str, Any], kind: str) -> dict[str, Any]:
    """Attacks of a kind recovered none, and that is no evidence."""
    for attack in without_images(run, kind)["attacks"]:
        for attempt in attack["attempts"] if attack["kind"] == kind else ():
            attempt.update(is_evidence=False, no_evidence="its control failed")
    return run


def test_single_samples_that_were_not_measured_are_not_known() -> None:
    """They are the easiest case: what fails on a message of many says nothing of them. The reverse does."""
    found = answer(unknown(harmless(), "single image"))
    assert found["words"] == "Leakage not known" and "single images can be recovered" in found["finding"]["sentence"]
    found = answer(unknown(harmless(), "message"))
    assert found["words"] == "Nothing was found" and "of the messages themselves it is not known" in found["finding"]["sentence"]


def test_single_samples_are_known_of_each_round_in_which_they_were_looked_at() -> None:
    run = harmless()
    last = copy.deepcopy(next(one for one in run["attacks"] if one["kind"] == "single image")) | {"round": 9}
    run["attacks"].append(last)
    assert answer(run)["words"] == "Nothing was found"
    for attempt in last["attempts"]:
        attempt.update(is_evidence=False, no_evidence="its control failed")
    assert "whether single images can be recovered from messages of round 9" in answer(run)["finding"]["sentence"]


def beside(run: dict[str, Any], kind: str, **made: Any) -> dict[str, Any]:
    """With a statistic that is a gradient, and an attempt on it in the messages of a kind."""
    run["statistics"]["listed"].append({"what": "variate", "known": True, "attacked": True, "how": "as a gradient"})
    for attack in run["attacks"]:
        if attack["kind"] == kind:
            like = next(one for one in attack["attempts"] if not one.get("inapplicable"))
            attack["attempts"].append(like | {"attacker": "dlg on variate", "statistic": "variate"} | made)
    return run


def test_a_gradient_beside_the_model_is_not_known_by_attacks_on_the_model() -> None:
    """Noise may be on the model alone."""
    of_variate = "images can be recovered from variate"
    refused = {"inapplicable": "it needs another net", "is_evidence": False}
    for kind, made, known in (
        ("single image", {}, True),
        ("single image", {"is_evidence": False, "no_evidence": "its control failed"}, False),
        ("single image", refused, False),
        ("message", {}, False),  # the single ones, which are easier, decide
    ):
        found = answer(beside(harmless(), kind, **made))
        assert (of_variate in found["finding"]["sentence"]) is not known, (kind, made)
        assert found["words"] == ("Nothing was found" if known else "Leakage not known")
    run = beside(unknown(harmless(), "single image"), "single image", is_evidence=True)
    sentence = answer(run)["finding"]["sentence"]
    assert "single images can be recovered" in sentence and of_variate not in sentence, "nor the other way round"
    (condition,) = conditions("recovered>0.5")
    assert of_variate in str(condition.met(beside(harmless(), "single image", **refused)))
    assert condition.met(beside(harmless(), "single image")) is None


def test_members_that_are_ordered_last_are_identified() -> None:
    run = harmless()
    run["membership"][0] |= {"auc": 0.2, "together": {"low": 0.14, "high": 0.27, "of": 2}}
    found = answer(run)
    assert found["words"] == "Members were identified"
    assert "gives members lower scores than non-members" in found["finding"]["sentence"]
    run["membership"][0]["together"] = {"low": 0.14, "high": 0.51, "of": 2}
    assert words(run) == "Nothing was found"
