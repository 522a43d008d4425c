"""DAGER: sentences from the spans of linear layers' gradients (Petrov et al., NeurIPS 2024).

1. The first layers' span shows which words can be at which positions (:mod:`fedpriv.attacks.text.gradient_span`). In a batch it
   also holds combinations of true pairs (whose inputs are linear combinations of the true ones): with word a at p and q, and word
   b at p, also b at q.
2. A later layer's span shows which sentences these words form (:mod:`fedpriv.attacks.text.descent`).
3. The head's gradient shows how often each sentence occurs, with which label (:mod:`fedpriv.attacks.text.repeats`).
4. In small batches, gradient matching searches for the sentences that are still missing.

The attacker knows all weights of the encoder. It does not need the embedding's gradient, nor those of all layers. It fails under
noise, if rounding hides a small weight change, and if there are more tokens than three quarters of the layers' width
(:data:`fedpriv.attacks.gradients.rank.MAX_SHARE`) or of the sum of the adapters' ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.attack import TextAttack, register
from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.text.case import text_case
from fedpriv.attacks.text.descent import FoundSentences, ends, whole_sentences
from fedpriv.attacks.text.gradient_span import first_span, later_span, word_distances
from fedpriv.attacks.text.mixture import Places, unexplained_share
from fedpriv.attacks.text.rank import longest, total_tokens
from fedpriv.attacks.text.repeats import repeated
from fedpriv.attacks.text.sentence_search import SearchOptions, SentenceResult, attack_each, known_labels, search_sentences


@register("span")
@dataclass(frozen=True)
class SpanAttack(SearchOptions, TextAttack):
    """Sentences from the spans of the first linear layers' gradients (DAGER), exact also in batches.

    Attributes:
        tolerance: largest relative distance of a true token, or sentence, from a span.
        budget: largest number of sentences that are tested.
        matched: largest batch in which gradient matching searches for missing sentences.
    """

    control: ClassVar = TextSetting()
    # Testing a thousand sentences takes about two seconds.
    audit_options: ClassVar = {"steps": 100, "starts": 2, "budget": 20_000}
    max_batch: ClassVar = None
    finds_order: ClassVar = True
    tolerance: float = 0.01
    budget: int = ranged(50_000)
    matched: int = ranged(4)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """The loss is the unexplained share of the gradient."""
        return attack_each(observations, lambda observation: self._reconstruct(observation, seed))

    def _reconstruct(self, observation: Observation, seed: int) -> SentenceResult:
        case, first, later = text_case(observation), first_span(observation), later_span(observation)
        # A sentence's token vectors are independent, so it has at most as many tokens as the span has dimensions.
        most = min(longest(observation) or observation.input_shape[0], first.basis.shape[1])
        hits = word_distances(observation, first, most) <= self.tolerance
        _check(hits, case.text)
        rank = first.basis.shape[1]
        note = f"{int(hits.sum())} pairs of token and position in the span of {first.layers[0]!r}, whose rank is {rank}"
        whole = FoundSentences((), ())
        if later is not None:
            whole = whole_sentences(observation, later, hits, case.samples, self.tolerance, self.budget, seed)
            note += f"; {len(whole.sentences)} sentences in that of {later.layers[0]!r}, whose rank is {later.basis.shape[1]}"
        with suppress(Inapplicable):
            ids, labels = repeated(case, whole.sentences)
            return SentenceResult(ids, labels, unexplained_share(case, ids, labels), note)
        if case.samples <= self.matched:
            places = _places(hits, case.text, case.samples, total_tokens(observation), whole.sentences)
            return search_sentences(self, case, places, known_labels(observation), note, seed)
        if not whole.sentences:
            why = (
                "a later layer's gradient is of full rank or missing" if later is None else "no sentence tested lies in the span"
            )
            raise Inapplicable(f"{why}, and {case.samples} sentences are too many for gradient matching (at most {self.matched})")
        # Fill up with failed descents, which share words with the missing sentences.
        rows = [*whole.sentences, *whole.others][: case.samples]
        rows += [rows[0].new_tensor(case.text.special)] * (case.samples - len(rows))
        ids = pad_sequence(rows, batch_first=True, padding_value=case.text.pad)
        return SentenceResult(ids, torch.full((case.samples,), -1), torch.nan, note)


def _check(hits: Tensor, text: TextFacts) -> None:
    """Check that the pairs of word and position ``(V, L)`` in the span can form a sentence.

    Raises:
        Inapplicable: no word is possible at the first position, or the closing token at none.
    """
    if not bool(hits[:, 0].any()):
        raise Inapplicable("no token lies in the span at the first position: the message is not one gradient of this net")
    if not ends(hits, text):
        raise Inapplicable("the closing token lies in the span at no position: the message is not one gradient of this net")


def _places(hits: Tensor, text: TextFacts, samples: int, total: int | None, known: Sequence[Tensor]) -> Places:
    """The words allowed at each place by the pairs ``(V, L)`` in the span; ``known`` sentences are fixed."""
    closing = text.last
    left = None if total is None else total - sum(map(len, known))
    unknown = _lengths(ends(hits, text), samples - len(known), left) if len(known) < samples else []
    words = hits.any(1).nonzero().flatten()
    allowed = torch.zeros(samples, max([*unknown, *map(len, known)]), len(words), dtype=torch.bool)
    for row, length in zip(allowed, unknown, strict=False):
        row[:length] = hits[words, :length].T
        if closing is not None:
            row[: length - 1, words == closing] = False
            row[length - 1] = words == closing
    for row, ids in zip(allowed[len(unknown) :], known, strict=True):
        row[: len(ids)] = ids[:, None] == words
    return Places(words, allowed)


def _lengths(ends: list[int], samples: int, total: int | None) -> list[int]:
    """A length for each sentence out of ``ends``: each used once if possible, and adding up to ``total`` if possible."""
    if len(ends) >= samples:
        return sorted(ends)[-samples:]
    rest = combinations_with_replacement(ends, samples - len(ends))
    fits = next((list(r) for r in rest if total is None or sum(ends) + sum(r) == total), [max(ends)] * (samples - len(ends)))
    return sorted([*ends, *fits], reverse=True)
