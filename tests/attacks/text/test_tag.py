"""Sentences from gradients, against those that made them; what fails where there is nothing to find."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.text.case import WORDS, text_case
from fedpriv.attacks.text.mixture import Match, places
from fedpriv.attacks.text.refine import refine
from fedpriv.attacks.text.tag import Tag
from fedpriv.attacks.text.victims import Size, observe_text, sentences, small_bert
from tests.attacks import text_client
from tests.attacks.sent import clipped, noised, pruned
from tests.attacks.text_client import TEXT, scores, without
from tests.marks import quick_first

ONE_LAYER = Size(layers=1)
message, trained, adapted = (
    partial(victim, size=ONE_LAYER) for victim in (text_client.message, text_client.trained, text_client.adapted)
)


def test_the_gradient_of_given_embeddings_is_that_of_the_words() -> None:
    observation, ids, labels = message([7, 5])
    case = text_case(observation)
    targets = F.one_hot(labels, 6).float()
    gradients = case.gradient(ids, case.table[ids], targets)
    for name in case.layers:
        torch.testing.assert_close(gradients[name], observation.shared[name], rtol=1e-4, atol=1e-7)
    rows = torch.zeros_like(case.table).index_add(0, ids.flatten(), gradients[WORDS].flatten(0, 1))
    torch.testing.assert_close(rows, observation.shared[TEXT.words], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("lengths", "known_tokens"), quick_first([([6], True), ([7, 5], True), ([6], False)]))
def test_sentences_are_found_word_for_word(lengths: list[int], known_tokens: bool) -> None:
    scored = scores(Tag(known_tokens=known_tokens), *message(lengths, seed=3))
    assert scored.exact is not None and scored.exact.share == 1
    assert scored.labels is not None and scored.labels.share == 1


@pytest.mark.slow
def test_one_local_step_is_a_gradient() -> None:
    scored = scores(Tag(), *trained([7], Schedule(lr=0.1, weight_decay=1e-3, weight_decay_bias=1e-3)))
    assert scored.exact is not None and scored.exact.share == 1


@pytest.mark.slow
def test_without_the_embeddings_the_length_comes_from_the_rank() -> None:
    observation, ids, labels = message([7])
    scored = scores(Tag(), without(observation, "embeddings"), ids, labels)
    assert scored.exact is not None and scored.exact.share == 1


@pytest.mark.slow
def test_labels_are_sought_where_the_head_is_hidden_but_known() -> None:
    observation, ids, labels = message([4])
    scored = scores(Tag(starts=2, steps=100), without(observation, "top."), ids, labels)
    assert scored.exact is not None and scored.exact.share == 1 and scored.labels is not None and scored.labels.share == 1


@pytest.mark.slow
def test_adapters_are_enough() -> None:
    observation, ids, labels = message([5], net=adapted(0, rank=4))
    assert all("lora_" in name or name.startswith("top.") for name in observation.shared)
    scored = scores(Tag(length=5), observation, ids, labels)
    assert scored.rouge is not None and float(scored.rouge) >= 0.8


@pytest.mark.slow
def test_an_unknown_length_is_tried() -> None:
    ids, labels = sentences([4], 0), torch.tensor([2])
    observation = replace(observe_text(adapted(0, rank=4), ids, labels), input_shape=(5,))
    result = Tag(probe=20, steps=1, starts=1, sweeps=0).run([observation])
    assert result.ids is not None and result.ids.shape == (1, 4) and "matched best" in result.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["clipped", "pruned"])
def test_what_a_message_went_through_is_known(defence: str) -> None:
    observation, ids, labels = message([5])
    least = float(torch.cat([tensor.abs().flatten() for tensor in observation.shared.values()]).quantile(0.8))
    sent = clipped(observation, 1e-3) if defence == "clipped" else pruned(observation, lambda sizes: least)
    few = Tag(steps=50, starts=1, sweeps=2)
    scored = scores(few, sent, ids, labels)
    assert scored.exact.share == 1
    plain = scores(few, replace(sent, altered=observation.altered), ids, labels)
    assert plain.exact.share == 0


@pytest.mark.slow
def test_noise_leaves_nothing() -> None:
    observation, ids, labels = message([8])
    scored = scores(Tag(steps=50, sweeps=1, length=8), noised(observation, 10.0), ids, labels)
    assert scored.rouge is not None and float(scored.rouge) < 0.3


def test_exchanging_words_repairs_a_sentence() -> None:
    observation, ids, labels = message([8])
    case = text_case(observation)
    where = places(case, [8], ids.unique())
    match, targets = Match(case, where, 0.0), F.one_hot(labels, 6).float()
    right = (ids[0][:, None] == where.words).int().argmax(1)[None]
    wrong = right.clone()
    wrong[0, 1:4] = right[0, [2, 3, 1]]
    chosen, left = refine(match, wrong, targets, 10)
    assert torch.equal(chosen, right) and left < 1e-7
    assert torch.equal(refine(match, wrong, targets, 0)[0], wrong)


def test_what_it_cannot_work_without() -> None:
    observation, _, _ = message([6])
    with pytest.raises(Inapplicable, match="schedule"):
        Tag().run([replace(observation, kind="change")])
    with pytest.raises(Inapplicable, match=r"top\.weight"):
        Tag().run([replace(observation, weights={n: w for n, w in observation.weights.items() if n != "top.weight"})])
    with pytest.raises(Inapplicable, match="no layer behind"):
        Tag().run([replace(observation, shared={TEXT.words: observation.shared[TEXT.words]})])


@pytest.mark.slow
def test_given_labels_are_used() -> None:
    ids, labels = sentences([6], 0), torch.tensor([2])
    observation = observe_text(small_bert(0, ONE_LAYER), ids, labels, threat=ThreatModel(labels=True))
    scored = scores(Tag(), without(observation, "top."), ids, labels)
    assert scored.exact is not None and scored.exact.share == 1
