"""Local search over words, the last step of a text reconstruction: exchange words while the gradient distance falls."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.attacks.text.mixture import ENOUGH, Match

REPLACEMENTS = 32
"""Largest number of possible words at a place for which all are tried."""


def refine(match: Match, chosen: Tensor, targets: Tensor, sweeps: int) -> tuple[Tensor, float]:
    """Apply the best change up to ``sweeps`` times: swap two words, or replace one if few are possible.

    Args:
        chosen: indices of words ``(B, L)``.
        targets: label probabilities ``(B, C)``.

    Returns:
        indices of words ``(B, L)``, and the share of the gradient that they leave unexplained.
    """
    least = float(match.word_losses(chosen[None], targets[None]))
    for _ in range(sweeps):
        if least <= ENOUGH:
            break
        others = _neighbours(match, chosen)
        if not len(others):
            break
        losses = match.word_losses(others, targets.expand(len(others), -1, -1))
        best = int(losses.argmin())
        if not float(losses[best]) < least:
            break
        chosen, least = others[best], float(losses[best])
    return chosen, least


def _neighbours(match: Match, chosen: Tensor) -> Tensor:
    """All allowed choices of words that differ by one change ``(m, B, L)``."""
    allowed = match.where.allowed.flatten(0, 1)
    flat = chosen.flatten()
    inside = match.there.flatten().nonzero().flatten().tolist()
    choices = []
    for at, i in enumerate(inside):
        for j in inside[at + 1 :]:
            if flat[i] != flat[j] and allowed[i, flat[j]] and allowed[j, flat[i]]:
                other = flat.clone()
                other[i], other[j] = flat[j], flat[i]
                choices.append(other)
        if int(allowed[i].sum()) <= REPLACEMENTS:
            for word in allowed[i].nonzero().flatten():
                if word != flat[i]:
                    other = flat.clone()
                    other[i] = word
                    choices.append(other)
    return torch.stack(choices).view(-1, *chosen.shape) if choices else chosen.new_empty(0, *chosen.shape)
