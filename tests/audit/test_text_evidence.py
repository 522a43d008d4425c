"""What attacks on texts find by chance, and when their failure is evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.core.text_registry import text_attack
from fedpriv.attacks.scoring.text_scores import random_text, score_text
from fedpriv.attacks.text.controls import positive_control, sized_control
from fedpriv.attacks.text.tokens import TokenSet
from fedpriv.attacks.text.victims import Size, facts, observe_text, sentences, small_bert
from fedpriv.audit.conditions import _UNSETTLED
from fedpriv.audit.text.figures import score_figures
from fedpriv.audit.text.recovery import BUDGET
from fedpriv.audit.text.verdict import naming_words

LARGE = Size(words=1000)


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
        right += scores["precision"] == 1
        read = {"baseline": chance, "attempts": [{"inapplicable": None, **scores}]}
        assert naming_words(read) is None, scores
    assert right, "by chance all that was named was right"


def test_naming_the_most_frequent_words_is_no_find() -> None:
    one = {"inapplicable": None, "precision": 1.0, "recall": 0.1, "named": {"successes": 12, "n": 12}}
    baseline = {"precision": 0.4}
    assert naming_words({"baseline": baseline, "attempts": [one | {"by_frequency": 0.5}]}) is not None
    assert naming_words({"baseline": baseline, "attempts": [one | {"by_frequency": 1.0}]}) is None


def test_a_text_without_words_is_not_recovered_by_finding_nothing() -> None:
    text, ids = facts(), torch.tensor([[1, 2, 0], [1, 7, 2]])
    nothing = TextReconstruction(torch.zeros(2, 1).long(), torch.zeros(2, 200), torch.full((2,), -1), torch.zeros(2), ("", ""))
    scores = score_text(nothing, ids, torch.zeros(2).long(), text)
    assert scores.exact is not None and scores.exact.successes == 0


@pytest.mark.slow
def test_a_failure_on_more_than_an_attack_finds_undefended_is_no_evidence() -> None:
    tag = text_attack("tag")(**BUDGET["tag"])
    assert positive_control(tag).passed
    beyond = sized_control(replace(tag, steps=1, sweeps=0), 2, 20, width=48)
    assert not beyond.passed and "of 2 sentences of 20 tokens" in beyond.sentence
    assert sized_control(text_attack("span")(**BUDGET["span"]), 2, 20, width=384).passed


def test_too_large_a_message_has_no_control() -> None:
    assert not sized_control(text_attack("tag")(), 4, 100, width=384).passed


def test_words_beside_those_that_an_estimate_names_are_not_known() -> None:
    why = "the rows of unused words changed, too"
    some = {"attacker": "tokens", "inapplicable": None, "exact": None, "rouge_l": None, "precision": 1.0, "recall": 0.1}
    read = {"kind": "message", "baseline": {"precision": 0.1}, "attempts": [some | {"no_evidence": why}]}
    run = {"texts": [read], "attacks": [], "not_tried": {}}
    opened = _UNSETTLED["words"]
    assert opened(run) is not None
    assert opened(run | {"texts": [read | {"attempts": [some]}]}) is None


def test_labels_of_a_clipped_message_are_guessed_from_random_words() -> None:
    """Clipping makes the attack ask for the model's mean prediction, which for images is that on random pixels."""
    ids, labels = sentences([8, 6, 7], 0), torch.tensor([0, 1, 1])
    seen: Observation = observe_text(small_bert(0), ids, labels)
    clipped = {name: 0.1 * tensor for name, tensor in seen.shared.items()}
    altered = replace(seen, shared=clipped, altered=replace(seen.altered, rescaled=True))
    assert sorted(TokenSet().run([altered]).labels.tolist()) == [0, 1, 1]
