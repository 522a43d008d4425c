"""Whole sentences that lie in the span of a later layer's gradient (DAGER, Petrov et al. 2024), by descent from random ones.

DAGER tests sentences of an encoder one by one, and there are as many as the product of the words at each place. Here a sentence
of random words is improved: the distance from the span of all sentences that differ in one word is computed, and as many of the
best changes are made at once as bring it closest. Where none does, two words are swapped or one is moved, as far as the words
possible at each place allow it: they do in encoders whose positions are relative. Next to a true sentence no other is nearly as
close. Starts prefer words that no sentence found so far has at their places. In nets with random weights nearly every start
reaches a sentence. In trained ones attention is sharper, and one word tells less of the rest: there it works where few words are
possible at each place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.text.case import facts_of
from fedpriv.attacks.text.gradient_span import Span, sentence_distances

ALONE = 0.1
"""A true sentence is closer to the span than this share of the distance of every sentence that differs by one change."""
CLOSER = 1e-4
"""Least relative gain for which a descent goes on; less is rounding."""


@dataclass(frozen=True)
class Descent:
    """The sentence at which a descent ended.

    Attributes:
        ids: ``(L,)``.
        off: mean distance of its places from the span.
        nearest: the smallest of those of the sentences that differ by one change; infinite where there are none, 0 where they
            were too many to test.
    """

    ids: Tensor
    off: float
    nearest: float


@dataclass(frozen=True)
class Whole:
    """Sentences in the span, and the ends of the other descents, the closest first; all of them differ."""

    found: tuple[Tensor, ...]
    others: tuple[Tensor, ...]


def whole_sentences(
    observation: Observation, span: Span, hits: Tensor, samples: int, tolerance: float, budget: int, seed: int
) -> Whole:
    """Search for the sentences of a batch.

    Ends where ``samples`` are found, where those found have as many tokens as the span has dimensions (the rest repeats them), or
    where ``budget`` sentences were tested.

    Args:
        hits: the words possible at each position ``(V, L)``.
        tolerance: largest distance from the span of a true sentence.
    """
    text = facts_of(observation)
    draw, covered = torch.Generator().manual_seed(seed), torch.zeros_like(hits)
    found, others, tested = list[Tensor](), dict[tuple[int, ...], float](), 0
    lengths = [n for n in ends(hits, text) if all(map(len, _choices(hits[:, :n], text)))]
    if text.last is None:  # any length is possible, and the longest is that of a sentence
        lengths = lengths[::-1][: None if samples > 1 else 1]
    while lengths and len(found) < samples and sum(map(len, found)) < span.basis.shape[1] and tested < budget:
        for length in lengths:
            choices = list(_choices(hits[:, :length], text))
            start = torch.stack([_draw(words, covered[:, place], draw) for place, words in enumerate(choices)])
            end, tests = descend(observation, span, start, choices, budget - tested)
            tested += tests
            true = end.off <= tolerance and end.off <= ALONE * end.nearest
            if not true:
                others[tuple(end.ids.tolist())] = end.off
            elif not any(torch.equal(end.ids, one) for one in found):
                found.append(end.ids)
                covered[end.ids, torch.arange(length)] = True
            if len(found) == samples or tested >= budget:
                break
    return Whole(tuple(found), tuple(torch.tensor(ids) for ids in sorted(others, key=lambda ids: others[ids])))


def ends(hits: Tensor, text: TextFacts) -> list[int]:
    """The lengths that a sentence may have by the words possible at each position ``(V, L)``; ascending."""
    most = int(hits.any(0).long().cumprod(0).sum())
    closing = text.last
    return [n for n in range(1, most + 1) if closing is None or bool(hits[closing, n - 1])]


def descend(observation: Observation, span: Span, ids: Tensor, choices: list[Tensor], budget: int) -> tuple[Descent, int]:
    """From the sentence ``(L,)`` to one that no change brings closer to the span, and the number of sentences tested.

    Args:
        choices: the words of each place.
        budget: words are swapped and moved as long as it allows to test all such sentences.
    """

    def off(sentences: Tensor) -> Tensor:
        return sentence_distances(observation, span, sentences).mean(1)

    free = [place for place, words in enumerate(choices) if len(words) > 1]
    least, tested = float(off(ids[None])), 1
    while free:
        changed = [_with(ids, place, choices[place]) for place in free]
        distances = torch.split(off(torch.cat(changed)), [len(some) for some in changed])
        best = torch.stack([some.min() for some in distances])
        together = ids.repeat(len(free), 1)  # row i: with the i + 1 best changes
        for row, which in enumerate(best.argsort().tolist()):
            together[row:, free[which]] = choices[free[which]][distances[which].argmin()]
        reached = off(together)
        tested += sum(map(len, changed)) + len(together)
        if float(reached.min()) < (1 - CLOSER) * least:
            ids, least = together[reached.argmin()], float(reached.min())
            continue
        other = [some[choices[place] != ids[place]].min() for place, some in zip(free, distances, strict=True)]
        nearest, orders = float(torch.stack(other).min()), _reordered(ids, choices)
        if tested + len(orders) > budget:
            return Descent(ids, least, 0.0), tested  # whether another order is as near is not known
        if len(orders):
            of_orders = off(orders)
            tested += len(orders)
            if float(of_orders.min()) < (1 - CLOSER) * least:
                ids, least = orders[of_orders.argmin()], float(of_orders.min())
                continue
            nearest = min(nearest, float(of_orders.min()))
        return Descent(ids, least, nearest), tested
    return Descent(ids, least, torch.inf), tested


def _choices(hits: Tensor, text: TextFacts) -> Iterator[Tensor]:
    """The words of each place of a sentence of the whole length of ``(V, L)``: the closing token is at its end and only there."""
    closing = text.last
    for place, possible in enumerate(hits.T):
        words = possible.nonzero().flatten()
        if closing is not None:
            words = words[(words == closing) == (place == hits.shape[1] - 1)]
        yield words


def _reordered(ids: Tensor, choices: list[Tensor]) -> Tensor:
    """The sentences ``(n, L)`` that differ from ``(L,)`` by two words swapped or one moved, of words possible at their places."""
    possible = [set(words.tolist()) for words in choices]
    was, found = ids.tolist(), set[tuple[int, ...]]()
    for i in range(len(was)):
        for j in range(len(was)):
            swapped, moved = list(was), list(was)
            swapped[i], swapped[j] = was[j], was[i]
            moved.insert(j, moved.pop(i))
            found |= {tuple(swapped), tuple(moved)}
    fits = [one for one in sorted(found - {tuple(was)}) if all(word in some for word, some in zip(one, possible, strict=True))]
    return torch.tensor(fits, dtype=ids.dtype).view(-1, len(was))


def _draw(words: Tensor, covered: Tensor, draw: torch.Generator) -> Tensor:
    """One of the words, of those that are not yet covered ``(V,)`` if there are any."""
    fresh = words[~covered[words]]
    some = fresh if len(fresh) else words
    return some[torch.randint(len(some), (), generator=draw)]


def _with(ids: Tensor, place: int, words: Tensor) -> Tensor:
    """The sentence ``(L,)`` with each of the words at a place ``(K, L)``."""
    changed = ids.repeat(len(words), 1)
    changed[:, place] = words
    return changed
