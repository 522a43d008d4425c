"""The result of a text attack."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TextReconstruction:
    """Made from ``N`` observations of ``B`` sentences each (``n = N * B``, those of an observation together, in no known order).

    Attributes:
        ids: token ids ``(n, L)``, padded at the end with ``pad``, the special ones included; ``None`` where the attack tells
            which tokens an observation holds, and not in which order.
        counts: how often each observation holds each token ``(N, V)``; special ones included, padding not.
        labels: the attack's guess ``(n,)``; -1 where it makes none.
        loss: the attacker's own loss at the end, per observation ``(N,)``: comparable within an attack only; NaN where it
            minimises none.
        notes: for people, what to know of each observation's result, ``N`` sentences.
        cpu_seconds: for all of it.
    """

    ids: Tensor | None
    counts: Tensor
    labels: Tensor
    loss: Tensor
    notes: tuple[str, ...]
    cpu_seconds: float = 0.0


def counts_of(ids: Tensor, words: int, pad: int) -> Tensor:
    """How often each of ``words`` ids is in ``(B, L)``, padding left out ``(V,)``."""
    counts = ids.flatten().bincount(minlength=words)
    counts[pad] = 0
    return counts
