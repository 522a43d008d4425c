"""What the transforms of a message did to the gradient behind it, as far as the message and their options tell.

An attacker that takes a clipped gradient for its length, entries that were not sent for zeros, or noise for signal, fails at the
defence's book-keeping and not at what it hides. So every attacker is told what the message went through, and compares
accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True)
class Altered:
    """How ``shared`` of an observation differs from what the client computed, in the units of ``shared``.

    Attributes:
        rescaled: all of it was multiplied by a positive factor that the attacker does not know (norm clipping).
        variance: by name, of the error of an entry: noise that was added, and rounding. Tensors without error are not named.
        kept: by name, which entries were sent (bool, the tensor's shape); all of those that are not named.
    """

    rescaled: bool = False
    variance: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    def scaled(self, factor: float) -> Altered:
        """The same where ``shared`` is multiplied by ``factor``."""
        return replace(self, variance={name: value * factor**2 for name, value in self.variance.items()})

    def renamed(self, names: Mapping[str, str]) -> Altered:
        """With the tensors' names replaced; those that ``names`` lacks are left out."""
        variance = {names[name]: value for name, value in self.variance.items() if name in names}
        return replace(self, variance=variance, kept={names[name]: mask for name, mask in self.kept.items() if name in names})


UNALTERED = Altered()
