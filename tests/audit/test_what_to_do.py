"""What to do about an answer, and how thorough the audit behind it was."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import nn

from fedpriv.attacks.core.status import Reason, ReasonKind
from fedpriv.audit.answer import CONTRADICTED, MEMBERS, NOT_KNOWN, NOTHING, SAMPLES, WORDS, answer
from fedpriv.audit.conditions import conditions
from fedpriv.audit.judge.coverage import coverage
from fedpriv.audit.page.change import changes
from fedpriv.audit.results.audit import Answer, AuditedRun, Coverage
from fedpriv.audit.sentences.overview import WHY_NOT_RUN, thoroughness
from fedpriv.cli.frontier import frontier
from fedpriv.config import parse_assignment
from fedpriv.frontier.grid import Defence
from fedpriv.frontier.search import BY_REPLAY
from tests.audit import built
from tests.audit.built import CUT, epsilon, image, images, member, no_image, point, statistic
from tests.audit.fictitious import by_rule, harmless, read, sent, undefended, with_members, without_images, without_members, words


def with_answer(run: AuditedRun, level: int, **cost: Any) -> AuditedRun:
    return replace(run, cost=replace(run.cost, **cost), answer=Answer(WORDS[level], level, ""))


def defended(level: int, at_chance: bool = False) -> AuditedRun:
    defence = ("mask(last=1)", "gaussian(variance=0.001)", "client-level DP")
    return with_answer(built.run(name="mp-dp", defence=defence), level, accuracy=0.941, at_chance=at_chance)


def test_what_would_change_it() -> None:
    leaks = with_answer(undefended(name="mp"), SAMPLES)
    sentence, command = changes(leaks, [])
    assert command == (
        "fedpriv frontier --config runs/mp/config.yaml --defenses 'mask:last=2 prune:fraction=0.01 gaussian:variance=1e-10..1e-4 "
        "dp-sample:target_epsilon=8+mask:names=[\"statistic.*\"]' --target 'recovered<=0' --output frontier-mp"
    ), "the head stays with the clients, and no noise covers class centres"
    assert "defence that meets recovered<=0:" in sentence
    assert "membership_auc" in (changes(with_answer(undefended(), MEMBERS), [])[1] or "")
    assert changes(leaks, [defended(NOTHING)]) == (
        "Measured with mask(last=1), gaussian(variance=0.001), client-level DP (mp-dp): “Nothing was found”, "
        "at an accuracy of 94.1 % in place of 96.4 %.",
        None,
    )


def test_commands_name_a_folder_of_the_run_and_the_data() -> None:
    """Else two runs' searches meet in one folder, and the data are looked for on the hub."""
    leaks = with_answer(undefended(name="my run", data_dir="/my data"), SAMPLES)
    command = changes(leaks, [])[1] or ""
    given = frontier.make_context("frontier", shlex.split(command)[2:]).params
    assert given["output"] == Path("frontier-my run")
    assert [parse_assignment(text) for text in given["assignments"]] == [("data.dir", "/my data")]
    trained = changes(with_answer(leaks, NOTHING), [])[1] or ""
    assert shlex.split(trained)[1] == "train" and shlex.split(trained)[-2:] == ["--set", "data.dir=/my data"]
    of_other = changes(replace(leaks, name="other"), [])[1] or ""
    assert frontier.make_context("frontier", shlex.split(of_other)[2:]).params["output"] == Path("frontier-other")


NO_STATISTICS = 'mask:names=["statistic.*"]'


def asked(run: AuditedRun) -> dict[str, str]:
    """The options of the command that is suggested for a run, by its own answer; none where there is no command."""
    _, command = changes(replace(run, answer=answer(run)), [])
    options = shlex.split(command or "")[2:]
    return dict(zip(options[::2], options[1::2], strict=True))


def with_classes() -> AuditedRun:
    return by_rule(*[True] * 9, False, guess=0.5)


@pytest.mark.parametrize(
    ("run", "target"),
    [
        (undefended(), "recovered<=0"),
        (without_members(without_images(undefended(), "message")), "recovered<=0"),
        (harmless(**read("message", 0.4)), "words<=0"),
        (harmless(**read("single text", 0.4)), "words<=0"),
        (with_members(member(0.8, 0.7, 0.9)), "membership_auc<=0.6"),
        (with_members(member(0.57, 0.52, 0.62)), "membership_auc<=0.53"),
        (with_members(member(0.51, 0.505, 0.515)), "membership_auc<=0.5"),
        (with_members(member(0.25, 0.18, 0.33)), "membership_auc<=0.6"),  # reversed
        (with_classes(), "labels<=0.5"),
    ],
)
def test_suggested_target_is_not_met_by_the_run(run: AuditedRun, target: str) -> None:
    assert answer(run).level not in (NOT_KNOWN, NOTHING)
    options = asked(run)
    assert options["--target"] == target
    (condition,) = conditions(options["--target"], "--target")
    assert not condition.holds(run)
    searched = ".." in options["--defenses"]
    assert searched == (condition.measure in BY_REPLAY), "other measures need real runs, so values are listed"


def test_no_target_is_suggested_that_misses_the_finding() -> None:
    """Members that are found at a low false-positive rate alone need not show in the area."""
    run = with_members(member(0.51, 0.4, 0.6, few=point(20, 72, 1e-9)))
    sentence, command = changes(replace(run, answer=answer(run)), [])
    assert words(run) == "Members were identified" and command is None
    assert sentence == "Treat its messages as unsafe. No target of fedpriv frontier measures this."


def test_no_range_is_suggested_for_sums() -> None:
    """A search replays single uploads; and what is pruned has no sum."""
    options = asked(undefended(defence=("secure aggregation",), summed=True))
    assert options["--target"] == "recovered<=0"
    assert options["--defenses"].split() == [
        "mask:last=2", "gaussian:variance=1e-6", "gaussian:variance=1e-4", f"dp-sample:target_epsilon=8+{NO_STATISTICS}"
    ]  # fmt: skip


def test_what_a_message_names_in_clear_is_left_out_of_it() -> None:
    every = asked(with_classes())["--defenses"].split()
    assert every[0] == NO_STATISTICS and len(every) == 5 and all(defence.endswith(NO_STATISTICS) for defence in every)
    for defence in every:
        Defence.read(defence)


@pytest.mark.parametrize(
    "change",
    [
        {"statistics": (statistic("variate", gradient=True),)},  # SCAFFOLD needs them
        {"batch_norm": True},
        {"epsilon": epsilon(8.0, level="client")},
    ],
)
def test_no_defence_is_suggested_that_the_run_cannot_have(change: dict[str, Any]) -> None:
    assert "dp-sample" in asked(undefended())["--defenses"]
    assert "dp-sample" not in asked(undefended(**change))["--defenses"]


def test_no_mask_is_suggested_that_leaves_nothing() -> None:
    assert "mask:last" not in asked(undefended(wire=sent("projector.0.weight")))["--defenses"]


def test_the_command_that_is_suggested_can_be_pasted() -> None:
    assert asked(undefended(run_dir="my runs/it's $HOME"))["--config"] == "my runs/it's $HOME/config.yaml"


def test_a_model_at_chance_or_an_unknown_leakage_is_no_remedy() -> None:
    leaks = with_answer(undefended(), SAMPLES)
    assert "no better than guessing" in changes(leaks, [defended(NOTHING, at_chance=True)])[0]
    nothing, open_one = "None of the other defences that were audited here (1) changes that.", "(mp-dp) it is not known."
    defence = "Of mask(last=1), gaussian(variance=0.001), client-level DP "
    for others, tried in (
        ([SAMPLES], nothing),
        ([NOT_KNOWN], defence + open_one),
        ([NOT_KNOWN, SAMPLES], f"{nothing} {defence}{open_one}"),
    ):
        sentence, command = changes(leaks, list(map(defended, others)))
        assert sentence.startswith(f"Treat its messages as unsafe. {tried} This command searches")
        assert command


def test_what_to_do_where_nothing_was_found_or_known() -> None:
    trained = "fedpriv train --config runs/mp/config.yaml --dp sample --target-epsilon 8 --executor auto"
    plain = undefended(statistics=())
    for level, word in ((NOT_KNOWN, "could not be mounted"), (NOTHING, "a stronger one may find more")):
        sentence, command = changes(with_answer(plain, level), [])
        assert word in sentence and sentence.endswith("this command trains the same with one:") and command == trained
        sentence, command = changes(with_answer(undefended(), level), [])
        assert command == f"{trained} --defense '{NO_STATISTICS}'", "no noise covers class centres"
        for refused in ({"no_dp": True}, {"batch_norm": True}, {"epsilon": epsilon(8.0, level="client")}):
            sentence, command = changes(with_answer(replace(plain, **refused), level), [])
            assert word in sentence and sentence.endswith(".") and command is None
    sentence, command = changes(with_answer(plain, CONTRADICTED), [])
    assert "accountant" in sentence and command is None


def test_an_audit_that_its_budget_cut_is_run_to_the_end() -> None:
    cut = Coverage(("analytic",), (), {"dlg": Reason("budget spent", "cut: the audit's budget of 60 s was spent")})
    run = undefended(run_dir="my runs/a", answer=Answer(WORDS[NOT_KNOWN], NOT_KNOWN, "", coverage=cut))
    sentence, command = changes(run, [])
    assert "The budget left attacks out" in sentence and command == "fedpriv audit 'my runs/a'"
    assert changes(run, [], "nets:Net") == (sentence, command), "a run names its net"
    record = replace(run, source="record")
    assert changes(record, []) == (sentence, command)
    assert changes(record, [], "nets:Net") == (sentence, f"{command} --model nets:Net")
    assert changes(record, [], Path("my runs/a/net.pt2")) == (sentence, f"{command} --model 'my runs/a/net.pt2'")
    sentence, command = changes(record, [], nn.Linear(1, 1))
    assert "fedpriv.audit with the same net (model=) and no budget" in sentence and command is None


def test_how_thorough_it_was() -> None:
    """Each attack counts once, on however many messages; what was not run is counted by its reason."""
    cut, many = Reason("budget spent", "cut"), Reason("too many samples", "72 images behind one message")
    on_messages = images(image("analytic", 1, 8), no_image("dlg", many))
    on_singles = images(image("analytic", 1, 8), image("dlg", 1, 8), no_image("idlg", cut), kind="single image")
    run = built.run(
        images=(on_messages, on_singles), not_run={"membership": cut, "class centres": Reason("not available", "none was kept")}
    )
    found = coverage(run)
    assert found.run == ("analytic", "dlg") and set(found.not_run) == {"idlg", "membership inference", "class centres"}
    assert thoroughness(found, 60.0) == (
        "2 of 5 attacks were begun within the budget of 60 s. Not run: 2 as the budget was spent; "
        "1 as what they need was not sent or kept."
    )
    assert thoroughness(Coverage(("a",), ("a",)), 60.0) == (
        "1 of 1 attacks were begun within the budget of 60 s, 1 of them on fewer messages or samples, as it was spent."
    )
    assert thoroughness(Coverage(("a", "b")), None) == "2 of 2 attacks were run without a limit of time."


def test_every_reason_of_an_attack_that_was_not_run_is_named() -> None:
    many, needless = Reason("too many samples", "72 images behind one message"), Reason("not needed", "another recovered all")
    messages = images(image("analytic", 8, 8), no_image("dlg", many), no_image("idlg", many))
    singles = images(image("analytic", 8, 8), no_image("dlg", needless), no_image("idlg", CUT), kind="single image")
    found = coverage(built.run(images=(messages, singles)))
    assert found.not_run == {"dlg": many, "idlg": CUT} and found.also == {"dlg": (needless,), "idlg": (many,)}
    samples = "as too many samples or steps are behind a message"
    assert thoroughness(found, None) == (
        f"1 of 3 attacks were run without a limit of time. Not run: 1 {samples}, and on others "
        "as other attacks had recovered all; "
        f"1 as the budget was spent, and on others {samples}."
    )


def test_a_client_without_kept_messages_is_named() -> None:
    def line(clients: int, *names: str) -> str:
        run = built.run(clients=clients, not_kept=names)
        return thoroughness(coverage(run), None).removeprefix("0 of 0 attacks were run without a limit of time.")

    assert line(4, "switzerland") == " Messages of 3 of 4 clients were kept; switzerland was not examined."
    assert line(4, "a", "b") == " Messages of 2 of 4 clients were kept; a and b were not examined."
    assert line(100, *map(str, range(97))) == " Messages of 3 of 100 clients were kept; the other 97 were not examined."
    assert not line(4)


def test_every_reason_has_words_on_the_first_screen() -> None:
    assert set(WHY_NOT_RUN) == set(get_args(ReasonKind))
