"""TAG: gradient matching on text (Deng et al. 2021), restricted by the tokens, lengths and labels that the message reveals.

The attacker knows all weights of the encoder. It infers the batch's tokens from the word embedding's gradient
(:mod:`fedpriv.attacks.text.tokens`), lengths from position rows and ranks (:mod:`fedpriv.attacks.text.rank`) and labels from the
head, then optimises the words at each place (:mod:`fedpriv.attacks.text.mixture`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import TextAttack, register
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.text.case import TextCase, text_case
from fedpriv.attacks.text.mixture import Match, optimise_mixtures, places
from fedpriv.attacks.text.rank import lengths
from fedpriv.attacks.text.sentence_search import SearchOptions, SentenceResult, attack_each, known_labels, search_sentences
from fedpriv.attacks.text.tokens import find_tokens


@register("tag")
@dataclass(frozen=True)
class Tag(SearchOptions, TextAttack):
    """Gradient matching over sentences, restricted to the tokens that the gradient of the word embedding reveals.

    Attributes:
        known_tokens: restrict the search to the tokens that the word embedding reveals.
        length: tokens per sentence, including special ones, if the message does not reveal it; 0 tries all lengths.
        probe: steps of Adam for each length tried.
    """

    control: ClassVar = TextSetting()
    # A step through a pretrained encoder takes about a second.
    audit_options: ClassVar = {"steps": 100, "starts": 1, "sweeps": 10}
    max_batch: ClassVar = 4
    finds_order: ClassVar = True
    known_tokens: bool = True
    length: int = ranged(0, most=512)
    probe: int = 40

    @staticmethod
    def harder(observation: Observation) -> str | None:
        if observation.text is None or observation.text.words in observation.shared:
            return None
        return "the word embedding was not sent, so that it searches among all words, as its controls do not"

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """The loss is the unexplained share of the gradient."""
        return attack_each(observations, lambda observation: self._reconstruct(observation, seed))

    def _reconstruct(self, observation: Observation, seed: int) -> SentenceResult:
        case, labels = text_case(observation), known_labels(observation)
        words, note = _words(observation, case) if self.known_tokens else (torch.arange(len(case.table)), "among all words")
        known = lengths(observation)
        if known is not None:
            each, certain = known
            note += f"; {'' if certain else 'about '}{', '.join(map(str, each))} tokens long"
        else:
            tried = [self.length] if self.length else range(len(case.text.special) + 1, observation.input_shape[0] + 1)
            each = [min(tried, key=lambda n: self._misfit(case, n, words, labels, seed))] * case.samples
            note += f"; the length {each[0]} was {'assumed' if self.length else 'the one that matched best'}"
        return search_sentences(self, case, places(case, each, words), labels, f"searched {note}", seed)

    def _misfit(self, case: TextCase, length: int, words: Tensor, labels: Tensor | None, seed: int) -> float:
        if self.length:
            return 0.0
        match = Match(case, places(case, [length] * case.samples, words), self.alpha)
        return float(optimise_mixtures(match, labels, 1, self.probe, self.lr, seed).loss)


def _words(observation: Observation, case: TextCase) -> tuple[Tensor, str]:
    """The possible token ids, and a note on how they were found."""
    if case.text.words in observation.shared:
        tokens = find_tokens(observation)
        ids = tokens.present.nonzero().flatten()
        if not set(ids.tolist()) <= set(case.text.special):
            return ids, f"among {len(ids)} tokens: {tokens.how}"
    return torch.arange(len(case.table)), "among all words"
