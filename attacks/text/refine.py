"""The last step of a reconstruction of text: exchange words as long as the distance to the observed gradient falls."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.attacks.text.mixture import ENOUGH, Match

REPLACEMENTS = 32
"""Other words are tried at a place where at most so many are possible."""


def refine(match: Match, chosen: Tensor, targets: Tensor, sweeps: int) -> tuple[Tensor, float]:
    """At most ``sweeps`` times, make the best change: swap the words of two places, or replace one where few are possible.

    Args:
        chosen: indices of words ``(B, L)``.
        targets: distributions over the labels ``(B, C)``.

    Returns:
        The words ``(B, L)``, and the share of the gradient that they leave unexplained.
    """
    least = float(match.of_words(chosen[None], targets[None]))
    for _ in range(sweeps):
        if least <= ENOUGH:
            break
        others = _neighbours(match, chosen)
        if not len(others):
            break
        losses = match.of_words(others, targets.expand(len(others), -1, -1))
        best = int(losses.argmin())
        if not float(losses[best]) < least:
            break
        chosen, least = others[best], float(losses[best])
    return chosen, least


def _neighbours(match: Match, chosen: Tensor) -> Tensor:
    """All allowed choices of words that differ by one change: ``(m, B, L)``."""
    allowed = match.where.allowed.flatten(0, 1)
    flat = chosen.flatten()
    inside = match.there.flatten().nonzero().flatten().tolist()
    found = []
    for at, i in enumerate(inside):
        for j in inside[at + 1 :]:
            if flat[i] != flat[j] and allowed[i, flat[j]] and allowed[j, flat[i]]:
                other = flat.clone()
                other[i], other[j] = flat[j], flat[i]
                found.append(other)
        if int(allowed[i].sum()) <= REPLACEMENTS:
            for word in allowed[i].nonzero().flatten():
                if word != flat[i]:
                    other = flat.clone()
                    other[i] = word
                    found.append(other)
    return torch.stack(found).view(-1, *chosen.shape) if found else chosen.new_empty(0, *chosen.shape)
