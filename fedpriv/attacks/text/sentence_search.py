"""Common parts of the attacks that search for sentences: options, labels, the search for one message, and several messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.text_reconstruction import TextReconstruction, counts_of
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.text.case import TextCase, text_facts
from fedpriv.attacks.text.mixture import Match, Places, optimise_mixtures
from fedpriv.attacks.text.refine import refine


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search for sentences.

    Attributes:
        steps: of Adam.
        starts: number of simultaneous starts, with the labels in different orders; the best is kept.
        lr: of Adam.
        alpha: weight of the L1 distance beside the L2 distance (TAG, equation 4), both relative to the observed gradient.
        sweeps: largest number of word exchanges at the end (:func:`fedpriv.attacks.text.refine.refine`).
    """

    steps: int = 200
    starts: int = 4
    lr: float = 0.1
    alpha: float = 0.01
    sweeps: int = ranged(20)


@dataclass(frozen=True)
class SentenceResult:
    """The result for one message.

    Attributes:
        ids: padded sentences ``(B, L)``.
        labels: ``(B,)``.
        loss: unexplained share of the gradient.
        note: how the sentences were found.
    """

    ids: Tensor
    labels: Tensor
    loss: float
    note: str


def search_sentences(
    options: SearchOptions, case: TextCase, where: Places, labels: Tensor | None, note: str, seed: int
) -> SentenceResult:
    """Search for the words at the places ``where`` by mixtures from several starts, and refine the best.

    Args:
        labels: probabilities ``(B, C)``; ``None`` optimises them too.
    """
    match = Match(case, where, options.alpha)
    mixed = optimise_mixtures(match, labels, options.starts, options.steps, options.lr, seed)
    best = int(mixed.loss.argmin())
    chosen, loss = refine(match, mixed.chosen[best], mixed.targets[best], options.sweeps)
    return SentenceResult(where.ids(chosen, case.text.pad), mixed.targets[best].argmax(1), loss, note)


def known_labels(observation: Observation) -> Tensor | None:
    """Label probabilities ``(B, C)``, known or inferred from the head, in arbitrary order; ``None`` if neither is possible."""
    labels = observation.labels
    if labels is None:
        with suppress(Inapplicable):
            labels = batch_labels(observation)
    if labels is None:
        return None
    return F.one_hot(labels.view(-1), observation.classes).to(next(iter(observation.shared.values())))


def attack_each(observations: Sequence[Observation], attack: Callable[[Observation], SentenceResult]) -> TextReconstruction:
    """Attack the messages one by one, as their sentences have different lengths."""
    began = time.process_time()
    results = [attack(observation) for observation in observations]
    text = text_facts(observations[0])
    words = len(observations[0].weights[text.words])
    return TextReconstruction(
        pad_sequence([row for result in results for row in result.ids], batch_first=True, padding_value=text.pad),
        torch.stack([counts_of(result.ids, words, text.pad) for result in results]),
        torch.cat([result.labels for result in results]),
        torch.tensor([result.loss for result in results]),
        tuple(result.note for result in results),
        time.process_time() - began,
    )
