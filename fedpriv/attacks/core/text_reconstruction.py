"""The result of a text attack."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TextReconstruction:
    """Text reconstructed from ``N`` observations of ``B`` sentences each (``n = N * B``, observation by observation, in any order
    within each).

    Attributes:
        ids: token ids ``(n, L)``, padded at the end with ``pad``, special tokens included; ``None`` where the attack finds
            tokens but not their order.
        counts: how often each token occurs in each observation ``(N, V)``; special tokens included, padding not.
        labels: the attack's guesses ``(n,)``; -1 where it makes none.
        loss: the attack's final loss per observation ``(N,)``, not comparable between attacks; NaN where it minimises none.
        notes: a sentence on the result of each observation.
        cpu_seconds: of the whole attack.
    """

    ids: Tensor | None
    counts: Tensor
    labels: Tensor
    loss: Tensor
    notes: tuple[str, ...]
    cpu_seconds: float = 0.0


def counts_of(ids: Tensor, words: int, pad: int) -> Tensor:
    """How often each of the ``words`` ids occurs in ``(B, L)`` without padding: ``(V,)``."""
    counts = ids.flatten().bincount(minlength=words)
    counts[pad] = 0
    return counts
