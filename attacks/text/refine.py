"""The last step of a reconstruction of text: exchange words as long as the gradient comes nearer to the one that was seen."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.text.mixture import ENOUGH, Match

REPLACEMENTS = 32
"""Places are also tried with every other word where so few are possible."""


def refine(match: Match, chosen: Tensor, targets: Tensor, sweeps: int) -> tuple[Tensor, float]:
    """At most ``sweeps`` times the best of all exchanges of two places, and of all other words at a place where these are few.

    Args:
        chosen: numbers of words ``(B, L)``.
        targets: distributions over the labels ``(B, C)``.

    Returns:
        The words ``(B, L)``, and what they leave unexplained.
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
    """``(m, B, L)``, each allowed."""
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
