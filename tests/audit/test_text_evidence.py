"""What attacks on texts find by chance, and when their failure is evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedpriv.attacks.attack import text_attack
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.attacks.scoring.text_scores import random_text, score_text
from fedpriv.attacks.text.controls import positive_control, sized_control
from fedpriv.attacks.text.span import SpanAttack
from fedpriv.attacks.text.tag import Tag
from fedpriv.attacks.text.tokens import TokenSet
from fedpriv.attacks.text.victims import Size, facts, observe_text, sentences, small_bert
from fedpriv.audit.answer import answer
from fedpriv.audit.judge.measures import MEASURES
from fedpriv.audit.judge.texts import beyond_chance
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.results.texts import TextFigures, TextOutcome, TextScoreMeans, TextTargetResult
from fedpriv.audit.text.attempts import TextAttempt
from fedpriv.audit.text.figures import score_figures, status_of
from fedpriv.audit.text.target import Steps, made_up

LARGE = Size(words=1000)
MEANS = ("recall", "precision", "multiset_recall", "multiset_precision", "rouge_l", "exact", "labels", "named")


def means(**scores: Any) -> TextScoreMeans:
    return TextScoreMeans(**(dict.fromkeys(MEANS) | scores))


def figures(**scores: Any) -> TextFigures:
    others: dict[str, Any] = {
        "by_frequency": None,
        "messages": 1,
        "refused": 0,
        "loss_median": None,
        "notes": (),
        "examples": (),
        "cpu_seconds": 1,
    }
    return TextFigures(**{**dict.fromkeys(MEANS), **others, **scores})


def run(outcome: TextOutcome) -> AuditedRun:
    """A run with one attack on one message."""
    cost = Cost(accuracy=None, worst_tenth=None, chance=None, at_chance=False, bytes_up=1, bytes_down=None, seconds=None)
    target = TextTargetResult(
        title="", kind="message", round=1, sender=Sender(0), samples=1, outcomes=(outcome,), baseline=means(precision=0.1)
    )
    return AuditedRun(
        name="run", run_id="1", method="fedavg", title="", dataset="requests", model="tiny", modalities=("text",), seed=0,
        cost=cost, texts=(target,),
    )  # fmt: skip


def test_words_that_noise_raises_are_not_found() -> None:
    """A row now and then stands out of noise by chance, and its word may be among the client's many."""
    text, ids, labels = facts(LARGE), sentences([12] * 40, 0, LARGE), torch.arange(40) % 6
    seen = observe_text(small_bert(0, LARGE), ids[:1], labels[:1], text)
    chance = score_figures(score_text(random_text(ids, 1, text, LARGE.words, None, 0), ids, labels, text))
    right = 0
    for seed in range(60):
        noise = torch.randn(seen.shared[text.words].shape, generator=torch.Generator().manual_seed(seed))
        found = TokenSet().run([replace(seen, shared={text.words: noise})])
        scores = score_figures(score_text(replace(found, labels=torch.full((40,), -1)), ids, labels, text))
        right += scores.precision == 1
        assert not beyond_chance(figures(**vars(scores)), chance), scores
    assert right, "by chance all that was named was right"


def test_naming_the_most_frequent_words_is_no_find() -> None:
    named = wilson(12, 12)
    assert beyond_chance(figures(precision=1.0, recall=0.1, named=named, by_frequency=0.5), means(precision=0.4))
    assert not beyond_chance(figures(precision=1.0, recall=0.1, named=named, by_frequency=1.0), means(precision=0.4))


def test_a_text_without_words_is_not_recovered_by_finding_nothing() -> None:
    text, ids = facts(), torch.tensor([[1, 2, 0], [1, 7, 2]])
    nothing = TextReconstruction(torch.zeros(2, 1).long(), torch.zeros(2, 200), torch.full((2,), -1), torch.zeros(2), ("", ""))
    scores = score_text(nothing, ids, torch.zeros(2).long(), text)
    assert scores.exact is not None and scores.exact.successes == 0


@pytest.mark.slow
def test_a_failure_on_more_than_an_attack_finds_undefended_is_no_evidence() -> None:
    tag = Tag(**Tag.audit_options)
    assert positive_control(tag).passed
    beyond = sized_control(replace(tag, steps=1, sweeps=0), 2, 20, width=48)
    assert not beyond.passed and "of 2 sentences of 20 tokens" in beyond.sentence
    assert sized_control(SpanAttack(**SpanAttack.audit_options), 2, 20, width=384).passed


def test_too_large_a_message_has_no_control() -> None:
    assert not sized_control(text_attack("tag")(), 4, 100, width=384).passed


def test_words_beside_those_that_an_estimate_names_are_not_known() -> None:
    why = Reason("differs from controls", "the rows of unused words changed, too")
    some = TextOutcome(attack="tokens", status=Status("found"), figures=figures(precision=1.0, recall=0.1))
    assert MEASURES["words"].left_open(run(replace(some, status=Status("found", (why,))))) is not None
    assert MEASURES["words"].left_open(run(some)) is None


def test_messages_with_different_numbers_of_sentences_are_not_listed_apart() -> None:
    tag, made = Attacker(text_attack("tag")()), []
    for size in (24, 5):
        attempt = made_up(Steps(1, size)).run(tag)
        status = status_of(attempt, None, means())
        assert status.why == f"not tried: {size} sentences behind one message, and the budget is for 4 at once"
        made.append(run(TextOutcome(attack="tag", status=status)))
    both = replace(made[0], texts=(*made[0].texts, *made[1].texts))
    listed = [one for one in answer(both).not_tried if one.startswith("tag")]
    assert listed == ["tag on real messages (too many samples behind a message for a budget with a positive control)"]


def test_that_the_net_takes_images_too_is_listed_as_the_reason() -> None:
    attempt = replace(made_up(Steps(1, 1)), beside="an image").run(Attacker(text_attack("span")()))
    status, why = (
        status_of(attempt, None, means()),
        "the net also takes an image with each text, which this attack cannot reconstruct",
    )
    assert status.why == f"not tried: {why}"
    assert f"span on real messages ({why})" in answer(run(TextOutcome(attack="span", status=status))).not_tried


@pytest.mark.parametrize(("exact", "word"), [(wilson(1, 4), "found"), (wilson(0, 4), "inconclusive"), (None, "found")])
def test_who_looks_for_sentences_must_find_one(exact: Rate | None, word: str) -> None:
    """Words suffice of who finds no order."""
    attempt = TextAttempt(Attacker(text_attack("tokens")()), reasons=(Reason("no control", "there is none"),))
    made = figures(precision=1.0, recall=0.5, named=wilson(12, 12), exact=exact)
    assert status_of(attempt, made, means(precision=0.1)).word == word
    if exact is None:
        assert status_of(attempt, made, means(precision=0.9)).word == "inconclusive"


def test_labels_of_a_clipped_message_are_guessed_from_random_words() -> None:
    """Clipping makes the attack ask for the model's mean prediction, which for images is that on random pixels."""
    ids, labels = sentences([8, 6, 7], 0), torch.tensor([0, 1, 1])
    seen: Observation = observe_text(small_bert(0), ids, labels)
    clipped = {name: 0.1 * tensor for name, tensor in seen.shared.items()}
    altered = replace(seen, shared=clipped, altered=replace(seen.altered, rescaled=True))
    assert sorted(TokenSet().run([altered]).labels.tolist()) == [0, 1, 1]
