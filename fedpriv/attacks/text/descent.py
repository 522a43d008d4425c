"""Whole sentences that lie in the span of a later layer's gradient (DAGER, Petrov et al., NeurIPS 2024), by local search.

DAGER tests the sentences of an encoder exhaustively, which grows as the product of the words possible at each place. Here a
random sentence descends to one in the span: all sentences that differ in one word are tested, and the best changes are applied
together, as many as bring it closest. If none helps, two words are swapped or one is moved (possible in encoders with relative
positions). A true sentence is far closer than all of its neighbours. Starts prefer words not covered by the sentences found so
far. In nets with random weights nearly every start reaches a true sentence; in trained ones attention is sharper, and it works
if few words are possible at each place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.text.case import text_facts
from fedpriv.attacks.text.gradient_span import Span, sentence_distances

ALONE = 0.1
"""Largest distance of a true sentence from the span, as a share of the smallest distance among its neighbours."""
CLOSER = 1e-4
"""Smallest relative gain for which a descent goes on; less is rounding."""


@dataclass(frozen=True)
class Descent:
    """The sentence at which a descent ended.

    Attributes:
        ids: ``(L,)``.
        distance: from the span, mean over the places.
        nearest: the smallest distance of a sentence that differs by one change; infinite if there is none, 0 if there were too
            many to test.
    """

    ids: Tensor
    distance: float
    nearest: float


@dataclass(frozen=True)
class FoundSentences:
    """Different sentences in the span, and the results of other descents, the closest first."""

    sentences: tuple[Tensor, ...]
    others: tuple[Tensor, ...]


def whole_sentences(
    observation: Observation, span: Span, hits: Tensor, samples: int, tolerance: float, budget: int, seed: int
) -> FoundSentences:
    """Search for the sentences of a batch.

    Ends when ``samples`` sentences are found, when they have as many tokens as the span has dimensions (all others are repeats),
    or when ``budget`` sentences were tested.

    Args:
        hits: mask of the words possible at each position ``(V, L)``.
        tolerance: largest distance of a true sentence from the span.
    """
    text = text_facts(observation)
    generator, covered = torch.Generator().manual_seed(seed), torch.zeros_like(hits)
    sentences, others, tested = list[Tensor](), dict[tuple[int, ...], float](), 0
    lengths = [n for n in ends(hits, text) if all(map(len, _choices(hits[:, :n], text)))]
    if text.last is None:  # without a closing token any length is possible; a single sentence has the longest possible length
        lengths = lengths[::-1][: None if samples > 1 else 1]
    while lengths and len(sentences) < samples and sum(map(len, sentences)) < span.basis.shape[1] and tested < budget:
        for length in lengths:
            choices = list(_choices(hits[:, :length], text))
            start = torch.stack([_draw(words, covered[:, place], generator) for place, words in enumerate(choices)])
            end, tests = descend(observation, span, start, choices, budget - tested)
            tested += tests
            true = end.distance <= tolerance and end.distance <= ALONE * end.nearest
            if not true:
                others[tuple(end.ids.tolist())] = end.distance
            elif not any(torch.equal(end.ids, sentence) for sentence in sentences):
                sentences.append(end.ids)
                covered[end.ids, torch.arange(length)] = True
            if len(sentences) == samples or tested >= budget:
                break
    return FoundSentences(tuple(sentences), tuple(torch.tensor(ids) for ids in sorted(others, key=lambda ids: others[ids])))


def ends(hits: Tensor, text: TextFacts) -> list[int]:
    """The possible lengths of a sentence, ascending, given the words possible at each position ``(V, L)``."""
    most = int(hits.any(0).long().cumprod(0).sum())
    closing = text.last
    return [n for n in range(1, most + 1) if closing is None or bool(hits[closing, n - 1])]


def descend(observation: Observation, span: Span, ids: Tensor, choices: list[Tensor], budget: int) -> tuple[Descent, int]:
    """Descend from the sentence ``ids`` ``(L,)`` until no change brings it closer to the span; also the number of tests.

    Args:
        choices: the words possible at each place.
        budget: largest number of tests; swaps and moves are skipped if there are too many.
    """

    def distances_of(sentences: Tensor) -> Tensor:
        return sentence_distances(observation, span, sentences).mean(1)

    free = [place for place, words in enumerate(choices) if len(words) > 1]
    least, tested = float(distances_of(ids[None])), 1
    while free:
        changed = [_with(ids, place, choices[place]) for place in free]
        distances = torch.split(distances_of(torch.cat(changed)), [len(some) for some in changed])
        best = torch.stack([some.min() for some in distances])
        together = ids.repeat(len(free), 1)  # row i: with the i + 1 best changes
        for row, which in enumerate(best.argsort().tolist()):
            together[row:, free[which]] = choices[free[which]][distances[which].argmin()]
        reached = distances_of(together)
        tested += sum(map(len, changed)) + len(together)
        if float(reached.min()) < (1 - CLOSER) * least:
            ids, least = together[reached.argmin()], float(reached.min())
            continue
        other = [some[choices[place] != ids[place]].min() for place, some in zip(free, distances, strict=True)]
        nearest, orders = float(torch.stack(other).min()), _reordered(ids, choices)
        if tested + len(orders) > budget:
            return Descent(ids, least, 0.0), tested  # another order may be as close
        if len(orders):
            order_distances = distances_of(orders)
            tested += len(orders)
            if float(order_distances.min()) < (1 - CLOSER) * least:
                ids, least = orders[order_distances.argmin()], float(order_distances.min())
                continue
            nearest = min(nearest, float(order_distances.min()))
        return Descent(ids, least, nearest), tested
    return Descent(ids, least, torch.inf), tested


def _choices(hits: Tensor, text: TextFacts) -> Iterator[Tensor]:
    """The words possible at each place, from the mask ``(V, L)``; the closing token only at the end."""
    closing = text.last
    for place, possible in enumerate(hits.T):
        words = possible.nonzero().flatten()
        if closing is not None:
            words = words[(words == closing) == (place == hits.shape[1] - 1)]
        yield words


def _reordered(ids: Tensor, choices: list[Tensor]) -> Tensor:
    """The possible sentences ``(n, L)`` that differ from ``ids`` ``(L,)`` by swapping two words or moving one."""
    possible = [set(words.tolist()) for words in choices]
    words, orders = ids.tolist(), set[tuple[int, ...]]()
    for i in range(len(words)):
        for j in range(len(words)):
            swapped, moved = list(words), list(words)
            swapped[i], swapped[j] = words[j], words[i]
            moved.insert(j, moved.pop(i))
            orders |= {tuple(swapped), tuple(moved)}
    fits = [
        order
        for order in sorted(orders - {tuple(words)})
        if all(word in some for word, some in zip(order, possible, strict=True))
    ]
    return torch.tensor(fits, dtype=ids.dtype).view(-1, len(words))


def _draw(words: Tensor, covered: Tensor, generator: torch.Generator) -> Tensor:
    """A random one of ``words``, not yet covered (mask ``(V,)``) if possible."""
    fresh = words[~covered[words]]
    candidates = fresh if len(fresh) else words
    return candidates[torch.randint(len(candidates), (), generator=generator)]


def _with(ids: Tensor, place: int, words: Tensor) -> Tensor:
    """The sentences ``(K, L)`` with each of ``K`` words at one place of ``ids`` ``(L,)``."""
    changed = ids.repeat(len(words), 1)
    changed[:, place] = words
    return changed
