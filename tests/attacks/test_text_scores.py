"""Scores of text, against numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.text_reconstruction import TextReconstruction, counts_of
from fedpriv.attacks.scoring.text_scores import random_text, rouge_l, score_text
from fedpriv.attacks.text.victims import PAD
from tests.attacks.text_client import TEXT

WORDS = 20


def made(ids: torch.Tensor, labels: list[int], messages: int = 1) -> TextReconstruction:
    counts = torch.stack([counts_of(part, WORDS, PAD) for part in ids.chunk(messages)])
    return TextReconstruction(ids, counts, torch.tensor(labels), torch.zeros(messages), ("",) * messages)


def test_rouge_l_is_an_f_measure_of_common_subsequences() -> None:
    # "police killed the gunman" and "police kill the gunman" (Lin 2004, section 3.1): 3 words in common of 4 and 4.
    assert rouge_l([1, 2, 3, 4], [1, 9, 3, 4]) == 3 / 4
    assert rouge_l([3, 4, 9, 1], [1, 9, 3, 4]) == 2 / 4
    assert rouge_l([5, 6], [5, 7, 6, 8]) == pytest.approx(2 * 2 / 6)
    assert (rouge_l([], []), rouge_l([], [1]), rouge_l([7], [8])) == (1, 0, 0)


def test_precision_and_recall_leave_special_tokens_out() -> None:
    true, guess = torch.tensor([[1, 5, 5, 6, 2]]), torch.tensor([[1, 5, 7, 8, 2]])
    result = score_text(made(guess, [3]), true, torch.tensor([3]), TEXT)
    assert float(result.precision) == pytest.approx(1 / 3) and float(result.recall) == pytest.approx(1 / 2)
    assert float(result.multiset_precision) == pytest.approx(1 / 3) and float(result.multiset_recall) == pytest.approx(1 / 3)
    assert result.labels is not None and result.labels.share == 1


def test_what_the_vocabulary_lacks_is_no_word_that_is_found() -> None:
    text, labels = replace(TEXT, unknown=3), torch.tensor([0, 0])
    true = torch.tensor([[1, 3, 3, 2], [1, 5, 3, 2]])
    result = score_text(made(true, [0, 0], 2), true, labels, text)
    assert result.exact is not None and result.exact.successes == 1, "of the first, nothing is known"
    assert result.recall.tolist() == [0, 1] and result.named is not None and result.named.n == 1
    elsewhere = score_text(made(true[:, [0, 2, 1, 3]], [0, 0], 2), true, labels, text)
    assert elsewhere.exact is not None and elsewhere.exact.successes == 0 and elsewhere.rouge is not None
    assert float(elsewhere.rouge[1]) == 1, "of the words, the order is right"


def test_sentences_are_matched_within_their_message() -> None:
    true = torch.tensor([[1, 5, 6, 2, 0], [1, 7, 8, 9, 2], [1, 3, 4, 2, 0], [1, 10, 11, 2, 0]])
    result = score_text(made(true[[1, 0, 2, 3]], [4, 3, 1, 1], 2), true, torch.tensor([3, 4, 1, 0]), TEXT)
    assert result.exact is not None and result.exact.share == 1 and result.rouge is not None and bool((result.rouge == 1).all())
    assert result.labels is not None and result.labels.successes == 3
    apart = score_text(made(true[[2, 1, 0, 3]], [-1] * 4, 2), true, torch.zeros(4, dtype=torch.long), TEXT)
    assert apart.exact is not None and apart.exact.successes == 2 and apart.labels is None


def test_exact_sentences_are_matched_before_similar_ones() -> None:
    """By the sum of ROUGE-L alone, the other assignment has 2/3 twice, and this one 1 and 0."""
    true, guess = torch.tensor([[1, 5, 6, 2], [1, 6, 2, 0]]), torch.tensor([[1, 5, 6, 2], [1, 5, 2, 0]])
    result = score_text(made(guess, [-1, -1]), true, torch.zeros(2, dtype=torch.long), TEXT)
    assert result.exact is not None and result.exact.successes == 1


def test_the_baseline_draws_by_frequency_and_is_as_long() -> None:
    true = torch.tensor([[1, 5, 6, 2, 0], [1, 7, 8, 9, 2]])
    drawn = random_text(true, 2, TEXT, WORDS, None, 0)
    assert drawn.ids is not None and (drawn.ids != PAD).sum(1).tolist() == [2, 3] and drawn.counts.sum(1).tolist() == [2, 3]
    only = torch.zeros(WORDS)
    only[[1, 5]] = 1.0
    assert set(random_text(true, 1, TEXT, WORDS, only, 0).ids.flatten().tolist()) == {0, 5}  # type: ignore[union-attr]
