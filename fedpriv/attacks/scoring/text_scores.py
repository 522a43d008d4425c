"""Scores of reconstructed text, on the token ids of words.

Special tokens, which every sentence has, do not count, nor does the unknown-word token, which stands for words that the
vocabulary lacks. An exact sentence must nevertheless have the unknown-word token wherever the true one has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.core.observation import TextFacts
from fedpriv.attacks.core.text_reconstruction import TextReconstruction, counts_of
from fedpriv.attacks.scoring.scores import Rate, wilson


@dataclass(frozen=True)
class TextScores:
    """Scores of ``N`` messages with ``n`` sentences.

    Attributes:
        precision, recall: of the set of tokens of each message ``(N,)``; precision is NaN where the attack found none.
        multiset_precision, multiset_recall: the same with tokens counted as often as they occur ``(N,)``.
        rouge: ROUGE-L of each sentence ``(n,)``; ``None`` where the attack finds no order.
        exact: how many sentences are right in every token; ``None`` where the attack finds no order.
        labels: how many labels are right; ``None`` where the attack guesses none.
        named: how many of the words that the attack found are right, over all messages; ``None`` where it found none.
    """

    precision: Tensor
    recall: Tensor
    multiset_precision: Tensor
    multiset_recall: Tensor
    rouge: Tensor | None
    exact: Rate | None
    labels: Rate | None
    named: Rate | None


def score_text(result: TextReconstruction, true: Tensor, labels: Tensor, text: TextFacts) -> TextScores:
    """All scores of a reconstruction of messages whose sentences were ``true`` ``(n, L)`` with ``labels`` ``(n,)``.

    A gradient does not determine the order of the sentences in a message. They are matched first (:func:`match_sentences`); where
    no order of tokens was found, labels are compared as multisets.
    """
    messages = len(result.counts)
    size = len(true) // messages
    truth = torch.stack([counts_of(part, result.counts.shape[1], text.pad) for part in torch.split(true, size)])
    counts, truth = _without(result.counts, text), _without(truth, text)
    hits, sets = torch.minimum(counts, truth).sum(1), ((counts > 0) & (truth > 0)).sum(1)
    rouge, exact, right = None, None, None
    if result.ids is not None:
        ids, labels_in_order = match_sentences(result, true, text)
        result = replace(result, labels=labels_in_order)
        pairs = list(zip(plain(ids, text), plain(true, text), strict=True))
        rouge = torch.tensor([rouge_l(words_of(a, text), words_of(b, text)) for a, b in pairs])
        # An empty result for a text without words is no success.
        exact = wilson(sum(a == b and bool(words_of(b, text)) for a, b in pairs), len(pairs))
    if bool((result.labels >= 0).any()):
        right = wilson(_right_labels(result.labels, labels, size, ordered=result.ids is not None), len(labels))
    named = int((counts > 0).sum())
    return TextScores(
        precision=sets / (counts > 0).sum(1), recall=sets / (truth > 0).sum(1).clamp(min=1),
        multiset_precision=hits / counts.sum(1), multiset_recall=hits / truth.sum(1).clamp(min=1),
        rouge=rouge, exact=exact, labels=right, named=wilson(int(sets.sum()), named) if named else None,
    )  # fmt: skip


def rouge_l(words: Sequence[int], true: Sequence[int]) -> float:
    """ROUGE-L (Lin 2004): the F measure of the longest common subsequence, 1 for equal sentences."""
    if not words or not true:
        return float(list(words) == list(true))
    row = [0] * (len(true) + 1)
    for a in words:
        diagonal = 0  # the entry to the upper left
        for j, b in enumerate(true, 1):
            diagonal, row[j] = row[j], diagonal + 1 if a == b else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(words) + len(true))


def plain(ids: Tensor, text: TextFacts) -> list[list[int]]:
    """Sentences ``(n, L)`` as lists, without padding and special tokens."""
    dropped = {text.pad, *text.special}
    return [[token for token in row if token not in dropped] for row in ids.tolist()]


def words_of(sentence: Sequence[int], text: TextFacts) -> list[int]:
    """The tokens that stand for words."""
    return [token for token in sentence if token not in text.no_words]


def match_sentences(result: TextReconstruction, true: Tensor, text: TextFacts) -> tuple[Tensor, Tensor]:
    """Ids and labels in the order of ``true``, within each message: with as many exact sentences as possible, and among these
    assignments the one with the greatest sum of ROUGE-L.

    Raises:
        ValueError: the attack found no order of tokens, or another number of sentences.
    """
    if result.ids is None or len(result.ids) != len(true):
        raise ValueError("sentences can be matched only if the attack returns as many as there are, with their tokens in order")
    size, order = len(true) // len(result.counts), []
    rows, there = plain(result.ids, text), plain(true, text)
    for begin in range(0, len(true), size):
        within = range(begin, begin + size)
        # An exact sentence has more weight than the similarity of all others.
        worth = torch.tensor([[rouge_l(rows[i], there[j]) + size * (rows[i] == there[j]) for i in within] for j in within])
        order += [begin + int(i) for i in linear_sum_assignment(worth.numpy(), maximize=True)[1]]
    return result.ids[order], result.labels[order]


def random_text(
    true: Tensor, messages: int, text: TextFacts, words: int, frequency: Tensor | None, seed: int
) -> TextReconstruction:
    """The baseline: sentences as long as the true ones ``(n, L)``, of words drawn by ``frequency`` ``(V,)`` (default: uniform).

    That it knows the lengths makes the baseline stronger, and so errs on the safe side.
    """
    weight = word_weights(torch.ones(words) if frequency is None else frequency, text)
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(1, len(words_of(row, text))) for row in plain(true, text)]
    rows = [weight.multinomial(length, replacement=True, generator=generator) for length in lengths]
    ids = pad_sequence(rows, batch_first=True, padding_value=text.pad)
    counts = torch.stack([counts_of(part, words, text.pad) for part in torch.split(ids, len(true) // messages)])
    nothing = torch.full((len(true),), -1)
    return TextReconstruction(ids, counts, nothing, torch.full((messages,), torch.nan), ("random words",) * messages)


def word_weights(frequency: Tensor, text: TextFacts) -> Tensor:
    """The weights for drawing words, by their frequency ``(V,)``: 0 for ids that are no words, uniform where no word occurs."""
    weight = frequency.double().clone()
    weight[text.no_words] = 0
    if not bool(weight.any()):
        weight = torch.ones_like(weight)
        weight[text.no_words] = 0
    return weight


def _without(counts: Tensor, text: TextFacts) -> Tensor:
    counts = counts.clone()
    counts[:, text.no_words] = 0
    return counts


def _right_labels(guessed: Tensor, true: Tensor, size: int, ordered: bool) -> int:
    if ordered:
        return int((guessed == true).sum())
    right = 0
    for a, b in zip(torch.split(guessed, size), torch.split(true, size), strict=True):
        right += (Counter(a.tolist()) & Counter(b.tolist())).total()
    return right
