"""Gradient matching over sentences: every place holds a mixture of words, which converges to one word.

TAG (Deng et al. 2021, "TAG: Gradient attack on transformer-based language models", equations 3 and 4) optimises an embedding for
each place, by the L2 distance plus alpha times the L1 distance of the gradients, weighted by layer, and takes the nearest words.
Here the embedding is a mixture of the words allowed at that place, so that knowledge of the words constrains the search and the
gradient of the word embedding can be matched too. In the setting of the controls, on two sentences of 8 tokens, free embeddings
found 0.7 to 1.0 of the tokens, mixtures all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedpriv.attacks.gradients.distances import ObservedGradient, comparable, sum_of
from fedpriv.attacks.gradients.matching import Data, Objective
from fedpriv.attacks.gradients.variables import Layout
from fedpriv.attacks.optimise.search import MEMORY, adam
from fedpriv.attacks.text.case import WORDS, TextCase

NEVER = -1e4
"""The logit of a word that is not allowed at a place."""
BETWEEN = 50
"""Steps of Adam between checks of the likeliest words."""
ENOUGH = 1e-7
"""Unexplained share of the gradient that rounding can cause: below it the words are right."""
LEAST_SHARE = 1e-10
"""A tensor's squared norm counts as at least this share of the whole. Gradients that are zero in theory (those of the biases of
keys, which softmax ignores) consist of rounding errors, of about 1e-18 in float32, and cannot be matched."""


@dataclass(frozen=True)
class Places:
    """The words allowed at each place of ``B`` sentences.

    Attributes:
        words: ``(K,)`` ids of the possible words.
        allowed: ``(B, L, K)``; no word is allowed after the end of a sentence.
    """

    words: Tensor
    allowed: Tensor

    @property
    def there(self) -> Tensor:
        """Which places are within a sentence ``(B, L)``."""
        return self.allowed.any(2)

    def ids(self, chosen: Tensor, pad: int) -> Tensor:
        """Numbers of words ``(B, L)`` as token ids, padded."""
        return torch.where(self.there, self.words[chosen], pad)


def places(case: TextCase, lengths: Sequence[int], words: Tensor) -> Places:
    """Sentences of ``lengths`` with the special tokens where every sentence has them, and ``words`` ``(K,)`` elsewhere."""
    special = torch.tensor(case.text.special, dtype=torch.long)
    words = torch.cat([special, words[~torch.isin(words, torch.cat([special, torch.tensor([case.text.pad])]))]])
    allowed = torch.zeros(len(lengths), max(lengths), len(words), dtype=torch.bool)
    for row, length in zip(allowed, lengths, strict=True):
        row[:length, len(special) :] = True
        ends = [*range(len(case.text.opening)), *range(length - len(case.text.closing), length)]
        row[ends] = False
        row[ends, torch.arange(len(ends))] = True
    return Places(words, allowed)


class Match:
    """Distance of the gradient of mixtures of words ``(B, L, K)`` from the observed one, as a share: 0 where they agree.

    The mean over the tensors of squared difference over squared norm, plus ``alpha`` times the same of absolute values. As in TAG
    the first layers count more; weights fall linearly to one half at the last. A clipped gradient is compared at its own norm, a
    pruned one on the entries that were sent. Noise needs no further prior, since only few words are allowed at a place.
    """

    def __init__(self, case: TextCase, where: Places, alpha: float) -> None:
        self.case, self.where, self.alpha = case, where, alpha
        self.table = case.table[where.words]
        self.there = where.there
        # Only the places of padding matter; the other ids are replaced.
        any_word = case.text.special[0] if case.text.special else int(where.words[0])
        self.ids = torch.where(self.there, any_word, case.text.pad)
        self.seen = {name: case.seen[name] for name in case.layers}
        if case.text.words in case.seen:
            self.seen[WORDS] = case.seen[case.text.words][where.words]
        kept = {name: mask.to(case.table) for name, mask in case.altered.kept.items()}
        if case.text.words in kept:
            kept[WORDS] = kept[case.text.words][where.words]
        self.seen = {name: tensor * kept[name] if name in kept else tensor for name, tensor in self.seen.items()}
        self.comparable = ObservedGradient(self.seen, case.altered.rescaled, kept)
        squares = {name: tensor.square().sum() for name, tensor in self.seen.items()}
        least = LEAST_SHARE * sum_of(squares.values())
        self.squares = {name: torch.maximum(square, least) for name, square in squares.items()}
        self.sums = {name: tensor.abs().sum().clamp_min(float(least.sqrt())) for name, tensor in self.seen.items()}
        weights = torch.linspace(1, 0.5, len(self.seen))
        order = [*([WORDS] if WORDS in self.seen else []), *case.layers]
        self.weights = dict(zip(order, (weights / weights.sum()).tolist(), strict=True))

    def __call__(self, mixture: Tensor, targets: Tensor, alpha: float | None = None) -> Tensor:
        """Mixtures ``(B, L, K)`` and labels as distributions ``(B, C)`` -> ``()``."""
        alpha = self.alpha if alpha is None else alpha
        made = self.case.gradient(self.ids, mixture @ self.table, targets)
        made[WORDS] = torch.einsum("blk,bld->kd", mixture, made[WORDS])
        made = comparable(made, self.comparable)
        return sum_of(weight * self._share(name, made[name], alpha) for name, weight in self.weights.items())

    def of_words(self, chosen: Tensor, targets: Tensor) -> Tensor:
        """The squared part ``(m,)`` for ``m`` choices of words, as indices ``(m, B, L)``, and labels ``(m, B, C)``."""
        one_hot = F.one_hot(chosen, len(self.where.words)).to(self.table) * self.there[..., None]
        together = max(1, MEMORY // (16 * sum(tensor.numel() for tensor in self.seen.values())))
        with torch.no_grad():
            return vmap(lambda mixture, labels: self(mixture, labels, 0.0), chunk_size=together)(one_hot, targets)

    def _share(self, name: str, made: Tensor, alpha: float) -> Tensor:
        off = made - self.seen[name]
        share = off.square().sum() / self.squares[name]
        return share + alpha * off.abs().sum() / self.sums[name] if alpha else share


def unexplained_share(case: TextCase, ids: Tensor, labels: Tensor) -> float:
    """The share of the gradient that sentences ``(B, L)`` with labels ``(B,)`` do not explain."""
    words, chosen = torch.unique(ids, return_inverse=True)
    there = ids != case.text.pad
    match = Match(case, Places(words, F.one_hot(chosen, len(words)).bool() & there[..., None]), 0.0)
    targets = F.one_hot(labels, case.classes).to(case.table)
    return float(match.of_words(chosen[None], targets[None]))


@dataclass(frozen=True)
class Mixed:
    """The result of several starts: indices of words ``(starts, B, L)``, distributions over labels ``(starts, B, C)``, and the
    unexplained share of the gradient ``(starts,)``."""

    chosen: Tensor
    targets: Tensor
    loss: Tensor


def mix(match: Match, labels: Tensor | None, starts: int, steps: int, lr: float, seed: int) -> Mixed:
    """Minimise by Adam from random mixtures, until the likeliest words of one start explain the gradient.

    Args:
        labels: as distributions ``(B, C)``, where known. Every start but the first permutes them, since a gradient does not
            determine which sentence has which label. Otherwise they are optimised too.
    """
    draw = torch.Generator().manual_seed(seed)
    allowed, samples = match.where.allowed, len(match.where.allowed)
    shapes: dict[str, tuple[int, ...]] = {"words": tuple(allowed.shape)}
    data = {"start": match.table.new_zeros(starts, 1)}
    if labels is None:
        shapes["labels"] = (samples, match.case.classes)
    else:
        orders = [
            torch.arange(samples),
            torch.arange(samples).flip(0),
            *(torch.randperm(samples, generator=draw) for _ in range(starts)),
        ]
        data["targets"] = torch.stack([labels[order] for order in orders[:starts]])
    layout = Layout(shapes)
    ruled_out = torch.where(allowed, 0.0, NEVER).to(match.table)

    def targets_of(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        return data["targets"] if "targets" in data else unknown["labels"].softmax(-1)

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        mixture = (unknown["words"] + ruled_out).softmax(-1) * match.there[..., None]
        return match(mixture, targets_of(unknown, data))

    objective = Objective(loss, layout, data)
    x = 0.1 * torch.randn(starts, layout.size, generator=draw).to(match.table)
    done = 0
    while True:
        unknown = layout.unpack(x)
        chosen, targets = (unknown["words"] + ruled_out).argmax(-1), targets_of(unknown, data)
        left = match.of_words(chosen, targets).nan_to_num(torch.inf, torch.inf)
        if done >= steps or bool((left <= ENOUGH).any()):
            break
        x = adam(objective, x, lr, min(BETWEEN, steps - done)).x
        done += BETWEEN
    return Mixed(chosen, targets, left)
