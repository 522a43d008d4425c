"""Common parts of the attacks that search for sentences: options, labels, one search, and combining messages."""

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
from fedpriv.attacks.text.case import TextCase, facts_of
from fedpriv.attacks.text.mixture import Match, Places, mix
from fedpriv.attacks.text.refine import refine


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search for sentences.

    Attributes:
        steps: of Adam.
        starts: run at once, with the labels in different orders; the one whose words explain the gradient best is kept.
        alpha: weight of the L1 distance beside the L2 distance (TAG, equation 4), both relative to the observed gradient.
        sweeps: largest number of exchanges of words at the end (:func:`fedpriv.attacks.text.refine.refine`).
    """

    steps: int = 200
    starts: int = 4
    lr: float = 0.1
    alpha: float = 0.01
    sweeps: int = ranged(20)


@dataclass(frozen=True)
class Sought:
    """The result for one message: padded sentences ``(B, L)``, labels ``(B,)``, unexplained share of the gradient, and a note."""

    ids: Tensor
    labels: Tensor
    loss: float
    note: str


def seek(options: SearchOptions, case: TextCase, where: Places, labels: Tensor | None, note: str, seed: int) -> Sought:
    """Find the words of ``where`` by mixtures from several starts, and refine the best; labels too, unless known ``(B, C)``."""
    match = Match(case, where, options.alpha)
    found = mix(match, labels, options.starts, options.steps, options.lr, seed)
    best = int(found.loss.argmin())
    chosen, loss = refine(match, found.chosen[best], found.targets[best], options.sweeps)
    return Sought(where.ids(chosen, case.text.pad), found.targets[best].argmax(1), loss, note)


def known_labels(observation: Observation) -> Tensor | None:
    """Labels as distributions ``(B, C)``: given, or inferred from the head; ``None`` where neither is possible.

    Their order is arbitrary, as is that of the sentences.
    """
    labels = observation.labels
    if labels is None:
        with suppress(Inapplicable):
            labels = batch_labels(observation)
    if labels is None:
        return None
    return F.one_hot(labels.view(-1), observation.classes).to(next(iter(observation.shared.values())))


def one_by_one(observations: Sequence[Observation], attack: Callable[[Observation], Sought]) -> TextReconstruction:
    """Attack one message after the other, as their sentences have different lengths."""
    began = time.process_time()
    found = [attack(observation) for observation in observations]
    text = facts_of(observations[0])
    words = len(observations[0].weights[text.words])
    return TextReconstruction(
        pad_sequence([row for each in found for row in each.ids], batch_first=True, padding_value=text.pad),
        torch.stack([counts_of(each.ids, words, text.pad) for each in found]),
        torch.cat([each.labels for each in found]),
        torch.tensor([each.loss for each in found]),
        tuple(each.note for each in found),
        time.process_time() - began,
    )
