"""Pairs of token and place in the span of the first layer's gradient, and what ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.rank import rank
from fedpriv.attacks.scoring.text_scores import TextScores, score_text
from fedpriv.attacks.text.descent import _reordered, whole_sentences
from fedpriv.attacks.text.gradient_span import first_span, later_span, word_distances
from fedpriv.attacks.text.rank import CLEAR, lengths, longest, total_tokens
from fedpriv.attacks.text.span import SpanAttack
from fedpriv.attacks.text.victims import PAD, Size, facts, observe_text, sentences, small_bert
from tests.attacks.sent import noised
from tests.attacks.text_client import adapted, message, scores, trained, without
from tests.marks import quick_first

HIDDEN = "embeddings"
WIDE = Size(words=300, width=96)


def batch(n: int, length: int = 8) -> tuple[Observation, Tensor, Tensor]:
    """A gradient on ``n`` sentences of a net that is wide enough for them."""
    ids, labels = sentences([length] * n, 0, WIDE), torch.arange(n) % WIDE.classes
    return observe_text(small_bert(0, WIDE), ids, labels, facts(WIDE)), ids, labels


def read(observation: Observation, ids: Tensor, labels: Tensor) -> TextScores:
    return score_text(SpanAttack().run([observation]), ids, labels, facts(WIDE))


@pytest.mark.parametrize("sizes", [[9], [10, 6], [8, 7, 5]])
def test_span_holds_true_pairs_and_their_combinations_only(sizes: list[int]) -> None:
    observation, ids, _ = message(sizes)
    hidden = without(observation, HIDDEN)
    span = first_span(hidden)
    assert {layer.rpartition(".")[2] for layer in span.layers} == {"query", "key", "value"}
    off = word_distances(hidden, span, max(sizes))
    true = torch.zeros_like(off, dtype=torch.bool)
    for row in ids:
        true[row[row != PAD], torch.arange(int((row != PAD).sum()))] = True
    true = true.double()
    made_of_three = true @ true.T @ true > 0
    assert float(off[true > 0].max()) < 1e-3 < 0.1 < float(off[~made_of_three].min())


@pytest.mark.parametrize("sizes", quick_first([[8], [9, 6]]))
def test_sentences_without_the_embedding_layer(sizes: list[int]) -> None:
    observation, ids, labels = message(sizes, seed=1)
    result = scores(SpanAttack(), without(observation, HIDDEN), ids, labels)
    assert float(result.recall) == 1 and result.exact is not None and result.exact.share == 1


@pytest.mark.parametrize("hidden", quick_first([HIDDEN, "layer.0.output", "layer.1", "layer.0.intermediate"]))
def test_every_sentence_of_a_batch_and_its_label(hidden: str) -> None:
    observation, ids, labels = batch(5)
    result = read(without(observation, hidden), ids, labels)
    assert result.exact is not None and result.exact.share == 1 and result.labels is not None and result.labels.share == 1


def test_a_batch_without_its_head_has_no_labels() -> None:
    observation, ids, labels = batch(6)
    result = read(without(observation, "top"), ids, labels)
    assert result.exact is not None and result.exact.share == 1 and result.labels is None


def test_repeated_sentences_are_counted() -> None:
    ids = sentences([7] * 4, 0, WIDE)[[0, 1, 1, 2, 1, 3]]
    labels = torch.tensor([0, 1, 1, 2, 4, 2])
    observation = observe_text(small_bert(0, WIDE), ids, labels, facts(WIDE))
    result = read(without(observation, HIDDEN), ids, labels)
    assert result.exact is not None and result.exact.share == 1 and result.labels is not None and result.labels.share == 1


@pytest.mark.slow
def test_it_ends_where_the_tokens_fill_the_layer() -> None:
    observation, _, _ = batch(12)
    with pytest.raises(Inapplicable, match="12 sentences are too many for gradient matching"):
        SpanAttack().run([observation])


@pytest.mark.slow
def test_no_sentence_lies_in_a_random_span() -> None:
    observation, _, _ = batch(6)
    first, later = first_span(observation), later_span(observation)
    assert later is not None
    torch.manual_seed(0)
    random = replace(later, basis=torch.linalg.qr(torch.randn_like(later.basis))[0])
    hits = word_distances(observation, first, 8) <= 0.01
    assert not whole_sentences(observation, random, hits, 6, 0.01, 5_000, 0).sentences
    assert len(whole_sentences(observation, later, hits, 6, 0.01, 5_000, 0).sentences) == 6


def test_neighbours_swap_or_move_words_to_possible_places() -> None:
    ids, every = torch.tensor([1, 5, 6, 7, 2]), torch.tensor([5, 6, 7])
    free = [torch.tensor([1]), every, every, every, torch.tensor([2])]
    swapped, moved = [(6, 5, 7), (7, 6, 5), (5, 7, 6)], [(6, 7, 5), (7, 5, 6)]
    assert {tuple(neighbour[1:-1].tolist()) for neighbour in _reordered(ids, free)} == {*swapped, *moved}
    assert not len(_reordered(ids, [ids[place, None] for place in range(5)]))


def test_where_no_order_is_told_no_sentence_counts_as_found() -> None:
    """Without positions all orders of the words are equally close to the span."""
    ids, labels, net = sentences([7], 0, WIDE), torch.tensor([0]), small_bert(0, WIDE)
    with torch.no_grad():
        net.get_parameter(str(facts(WIDE).positions)).zero_()
    observation = observe_text(net, ids, labels, facts(WIDE))
    first, later = first_span(observation), later_span(observation)
    assert later is not None
    hits = word_distances(observation, first, 7) <= 0.01
    assert not whole_sentences(observation, later, hits, 1, 0.01, 5_000, 0).sentences


def test_adapters_with_more_ranks_than_tokens_give_them_away() -> None:
    observation, ids, labels = message([6], net=adapted(0, rank=12))
    result = scores(SpanAttack(), observation, ids, labels)
    assert result.exact is not None and result.exact.share == 1
    with pytest.raises(Inapplicable, match="full rank"):
        first_span(message([6], net=adapted(0, rank=2))[0])


@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_the_rounding_of_a_change_is_known(lr: float) -> None:
    """Rounding of the small gradients of queries and keys does not hide what the values show."""
    observation, ids, _ = trained([8], Schedule(lr=lr))
    span = first_span(without(observation, HIDDEN))
    assert span.basis.shape[1] == total_tokens(observation) == 8
    assert float(word_distances(observation, span, 8)[ids[0], torch.arange(8)].max()) < 0.01


def test_the_rounding_of_a_small_change_ends_it() -> None:
    observation, _, _ = trained([8], Schedule(lr=1e-4))
    with pytest.raises(Inapplicable, match="rounding"):
        first_span(without(observation, HIDDEN))


def test_noise_ends_it() -> None:
    observation, _, _ = message([8])
    faint = noised(observation, 1e-4 * float(observation.shared["top.weight"].std()))
    with pytest.raises(Inapplicable, match="noise"):
        SpanAttack().run([faint])
    assert total_tokens(faint) is None and longest(faint) is None and lengths(faint) is None


def test_lengths_and_when_they_are_certain() -> None:
    single, pair, triple = (message(sizes)[0] for sizes in ([7], [9, 4], [8, 6, 4]))
    assert lengths(single) == lengths(without(single, HIDDEN)) == ([7], True)
    assert lengths(pair) == ([9, 4], True)
    assert lengths(without(pair, HIDDEN)) == ([7, 6], False)
    assert lengths(triple) == ([8, 5, 5], False)
    assert lengths(replace(triple, shared={n: t for n, t in triple.shared.items() if "position" in n})) == ([8, 8, 8], False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rank_of_a_sum_of_outer_products(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    low = torch.randn(30, 7, dtype=dtype) @ torch.randn(7, 20, dtype=dtype)
    assert rank(low) == 7
    assert rank(torch.randn(30, 20, dtype=dtype)) is None and rank(torch.zeros(4, 4, dtype=dtype)) is None


def test_errors_alone_have_no_clear_rank() -> None:
    noise = torch.diag(torch.logspace(0, -7.5, 20))  # passes the level of rounding by chance
    assert rank(noise) is not None and rank(noise, clear=CLEAR) is None
    assert rank(torch.diag(torch.cat([torch.ones(7), torch.full((13,), 1e-7)])), clear=CLEAR) == 7
