"""Scores of reconstructed text, on token ids and without those that are no words: special ones, which every sentence has, and the
one for what the vocabulary lacks, which tells nothing. A sentence that is exact has the latter at its places, too."""

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
        multiset_precision, multiset_recall: the same where a token counts as often as it occurs ``(N,)``.
        rouge: ROUGE-L of each sentence ``(n,)``; ``None`` where the attack finds no order.
        exact: number of sentences that are right in every token; ``None`` likewise.
        labels: how many are right; ``None`` where the attack guesses none.
        named: how many of the words that it named are right, over all messages.
    """

    precision: Tensor
    recall: Tensor
    multiset_precision: Tensor
    multiset_recall: Tensor
    rouge: Tensor | None
    exact: Rate | None
    labels: Rate | None
    named: Rate | None


def score_text(found: TextReconstruction, true: Tensor, labels: Tensor, text: TextFacts) -> TextScores:
    """All scores of a reconstruction of messages whose sentences were ``true`` ``(n, L)`` with ``labels`` ``(n,)``.

    A gradient does not determine the order of the sentences in a message. They are matched first (:func:`match_sentences`); where
    no order of tokens was found, labels are compared as multisets.
    """
    messages = len(found.counts)
    size = len(true) // messages
    truth = torch.stack([counts_of(part, found.counts.shape[1], text.pad) for part in torch.split(true, size)])
    made, truth = _without(found.counts, text), _without(truth, text)
    hits, sets = torch.minimum(made, truth).sum(1), ((made > 0) & (truth > 0)).sum(1)
    rouge, exact, right = None, None, None
    if found.ids is not None:
        made_ids, made_labels = match_sentences(found, true, text)
        found = replace(found, labels=made_labels)
        pairs = list(zip(plain(made_ids, text), plain(true, text), strict=True))
        rouge = torch.tensor([rouge_l(words_of(a, text), words_of(b, text)) for a, b in pairs])
        # To find nothing in a text without words is no success.
        exact = wilson(sum(a == b and bool(words_of(b, text)) for a, b in pairs), len(pairs))
    if bool((found.labels >= 0).any()):
        right = wilson(_right_labels(found.labels, labels, size, ordered=found.ids is not None), len(labels))
    return TextScores(
        sets / (made > 0).sum(1),
        sets / (truth > 0).sum(1).clamp(min=1),
        hits / made.sum(1),
        hits / truth.sum(1).clamp(min=1),
        rouge,
        exact,
        right,
        wilson(int(sets.sum()), named) if (named := int((made > 0).sum())) else None,
    )


def rouge_l(made: Sequence[int], true: Sequence[int]) -> float:
    """ROUGE-L (Lin 2004): the F measure of the longest common subsequence, 1 for equal sentences."""
    if not made or not true:
        return float(list(made) == list(true))
    row = [0] * (len(true) + 1)
    for a in made:
        diagonal = 0  # the entry to the upper left
        for j, b in enumerate(true, 1):
            diagonal, row[j] = row[j], diagonal + 1 if a == b else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(made) + len(true))


def plain(ids: Tensor, text: TextFacts) -> list[list[int]]:
    """Sentences ``(n, L)`` as lists, without padding and special tokens."""
    dropped = {text.pad, *text.special}
    return [[token for token in row if token not in dropped] for row in ids.tolist()]


def words_of(sentence: Sequence[int], text: TextFacts) -> list[int]:
    """The tokens that stand for words."""
    return [token for token in sentence if token not in text.no_words]


def match_sentences(found: TextReconstruction, true: Tensor, text: TextFacts) -> tuple[Tensor, Tensor]:
    """Ids and labels in the order of ``true``, within each message: with as many exact sentences as possible, and among these
    assignments the one with the greatest sum of ROUGE-L.

    Raises:
        ValueError: the attack finds no order of tokens, or another number of sentences.
    """
    if found.ids is None or len(found.ids) != len(true):
        raise ValueError("sentences can be matched only where the attack found as many, with an order of tokens")
    size, order = len(true) // len(found.counts), []
    made, there = plain(found.ids, text), plain(true, text)
    for begin in range(0, len(true), size):
        within = range(begin, begin + size)
        # An exact sentence weighs more than the likeness of all others.
        worth = torch.tensor([[rouge_l(made[i], there[j]) + size * (made[i] == there[j]) for i in within] for j in within])
        order += [begin + int(i) for i in linear_sum_assignment(worth.numpy(), maximize=True)[1]]
    return found.ids[order], found.labels[order]


def random_text(
    true: Tensor, messages: int, text: TextFacts, words: int, frequency: Tensor | None, seed: int
) -> TextReconstruction:
    """The baseline: sentences as long as the true ones ``(n, L)``, of words drawn by ``frequency`` ``(V,)`` (default: uniform).

    Knowing the lengths makes the baseline stronger, which is the safe side.
    """
    weight = word_weights(torch.ones(words) if frequency is None else frequency, text)
    draw = torch.Generator().manual_seed(seed)
    lengths = [max(1, len(words_of(row, text))) for row in plain(true, text)]
    rows = [weight.multinomial(length, replacement=True, generator=draw) for length in lengths]
    ids = pad_sequence(rows, batch_first=True, padding_value=text.pad)
    counts = torch.stack([counts_of(part, words, text.pad) for part in torch.split(ids, len(true) // messages)])
    nothing = torch.full((len(true),), -1)
    return TextReconstruction(ids, counts, nothing, torch.full((messages,), torch.nan), ("random words",) * messages)


def word_weights(frequency: Tensor, text: TextFacts) -> Tensor:
    """How often to draw each word, by its frequency ``(V,)``, and never what is no word; uniform where no word occurs."""
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


def _right_labels(made: Tensor, true: Tensor, size: int, ordered: bool) -> int:
    if ordered:
        return int((made == true).sum())
    right = 0
    for a, b in zip(torch.split(made, size), torch.split(true, size), strict=True):
        right += (Counter(a.tolist()) & Counter(b.tolist())).total()
    return right
