"""Tokens off the word embedding's gradient, against the sentences that made it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.observation import Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.text_reconstruction import counts_of
from fedpriv.attacks.text.rank import total_tokens
from fedpriv.attacks.text.rows import used_rows
from fedpriv.attacks.text.tokens import TokenSet, estimated_counts, find_tokens, fitted_counts
from fedpriv.attacks.text.victims import FIRST, LAST, PAD, SMALL, observe_text
from tests.attacks.client import mlp, observe
from tests.attacks.sent import each, noised
from tests.attacks.text_client import TEXT, message, scores, trained, whole, without


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_one_gradient_names_exactly_the_tokens_of_its_batch(batch: int) -> None:
    observation, ids, labels = message([5 + i % 6 for i in range(batch)])
    tokens, true = find_tokens(observation), counts_of(ids, SMALL.words, PAD)
    assert torch.equal(tokens.present, true > 0) and tokens.exact
    assert not tokens.present[PAD] and tokens.counts[FIRST] == tokens.counts[LAST] == batch
    score = scores(TokenSet(), observation, ids, labels)
    assert float(score.recall) == float(score.precision) == 1 and score.rouge is None
    assert score.labels is not None and score.labels.share >= 0.75


def test_a_gradient_of_zero_names_no_word_and_is_no_failure() -> None:
    """Noise that hides all rows is one."""
    observation, _, _ = message([6])
    nothing = each(observation, torch.zeros_like)
    with pytest.raises(Inapplicable, match="gradient of the word embedding is zero"):
        TokenSet().run([nothing])
    assert not TokenSet().run([noised(nothing, 1.0)]).counts.sum() > SMALL.words // 2


def test_counts_follow_the_estimator() -> None:
    present = torch.tensor([False, True, True, True, True])
    norms = torch.tensor([0.0, 9.0, 2.0, 2.0, 4.0])
    assert estimated_counts(norms, present, TEXT, 1).tolist() == [0, 1, 1, 1, 2]
    assert estimated_counts(norms, present, TEXT, 3).tolist() == [0, 3, 3, 3, 12]
    assert estimated_counts(norms, present, TEXT, None).tolist() == [0, 1, 1, 1, 1]


def test_a_repeated_word_of_one_sentence_is_counted() -> None:
    observation, ids, _ = message([9])
    ids[0, 5] = ids[0, 2]
    tokens = find_tokens(observe_text(whole(observation), ids, torch.tensor([1])))
    assert torch.equal(tokens.counts, counts_of(ids, SMALL.words, PAD))


@pytest.mark.parametrize("decay", [0.0, 1e-2])
@pytest.mark.parametrize("known", [True, False])
def test_a_change_with_weight_decay_gives_the_same_tokens(decay: float, known: bool) -> None:
    observation, ids, _ = trained([8, 6, 5], Schedule(lr=0.1, steps=5, batch_size=3, momentum=0.5, weight_decay=decay))
    seen = observation if known else replace(observation, schedule=None)
    tokens = find_tokens(seen)
    assert torch.equal(tokens.present, counts_of(ids, SMALL.words, PAD) > 0) and tokens.exact
    assert ("decayed" in tokens.how) == (decay > 0)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_known_decay_finds_tokens_even_if_most_words_occur(momentum: float) -> None:
    """A client's sentences can hold most of a small vocabulary, so that the median row is a used one."""
    schedule = Schedule(lr=0.05, steps=40, batch_size=24, momentum=momentum, weight_decay=1e-4)
    observation, ids, _ = trained([16] * 24, schedule)
    true = counts_of(ids, SMALL.words, PAD) > 0
    assert float(true.double().mean()) > 0.6
    assert torch.equal(find_tokens(observation).present, true) and find_tokens(observation).exact
    unknown = find_tokens(replace(observation, schedule=None))  # three unused rows show what decay did
    assert torch.equal(unknown.present, true) and unknown.exact
    assert not find_tokens(noised(observation, 1e-3)).exact


def test_tokens_under_noise_are_an_estimate() -> None:
    observation, ids, labels = message([8, 6])
    norms = observation.shared[TEXT.words].norm(dim=1)
    least = float(norms[norms > 0].min()) / SMALL.width**0.5
    quiet, loud = noised(observation, least / 2), noised(observation, 100 * least)
    assert not find_tokens(quiet).exact and "estimate" in find_tokens(quiet).how
    assert float(scores(TokenSet(), quiet, ids, labels).recall) == 1
    assert float(scores(TokenSet(), quiet, ids, labels).precision) > 0.9
    assert float(scores(TokenSet(), loud, ids, labels).recall) < 0.2


def test_random_rows_raise_hardly_a_word() -> None:
    observation, _, _ = message([8])
    alarms = [int(used_rows(noised(observation, 1e3, seed), TEXT.words).used.sum()) for seed in range(20)]
    assert sum(alarms) <= 10


def test_without_the_embedding_it_says_what_is_left() -> None:
    observation, _, _ = message([8, 6])
    with pytest.raises(Inapplicable, match=r"not sent: what is left: the longest sentence has 8 .* 14 .* labels are \[0, 1\]"):
        TokenSet().run([without(observation, "word_embeddings")])
    with pytest.raises(Inapplicable, match=r"left: all together have 14 "):
        find_tokens(without(without(observation, "embeddings"), "top."))
    with pytest.raises(Inapplicable, match="nothing else is left"):
        find_tokens(replace(observation, shared={}))


def test_a_frozen_embedding_sends_nothing() -> None:
    frozen = whole(message([8])[0])
    frozen.get_parameter(TEXT.words).requires_grad_(False)
    with pytest.raises(Inapplicable, match="not sent"):
        find_tokens(message([8], net=frozen)[0])


def test_images_have_no_tokens() -> None:
    net = mlp()
    with pytest.raises(Inapplicable, match="has other inputs"):
        find_tokens(observe(net, {name: p.detach() for name, p in net.named_parameters()}))


@pytest.mark.parametrize("total", [11, 16])
def test_counts_add_up_to_a_known_total(total: int) -> None:
    counts, norms = torch.tensor([0, 3, 9, 9, 3, 0]), torch.tensor([0.0, 1.0, 2.0, 4.0, 1.0, 0.0])
    fitted = fitted_counts(counts, norms, replace(TEXT, special=(1, 4)), total)
    assert int(fitted.sum()) == total and fitted[1] == fitted[4] == 3
    assert 1 <= int(fitted[2]) <= int(fitted[3]) and fitted[0] == fitted[5] == 0
    assert torch.equal(fitted_counts(counts, norms, replace(TEXT, special=(1, 4)), 7), counts)  # fewer than there are words


@pytest.mark.parametrize("batch", [4, 16])
def test_the_total_betters_the_counts_of_a_message(batch: int) -> None:
    observation, ids, _ = message([5 + i % 6 for i in range(batch)])
    tokens, true = find_tokens(observation), counts_of(ids, SMALL.words, PAD)
    assert total_tokens(observation) is None or int(tokens.counts.sum()) == int(true.sum())
