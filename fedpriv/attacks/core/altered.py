"""The known effect of a message's transforms on the gradient.

An attacker that ignores clipping, pruning or noise fails for trivial reasons, not because the defence protects. So every attacker
knows which transforms were applied, with their options, and compares gradients accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass(frozen=True)
class Altered:
    """How ``shared`` of an observation differs from what the client computed, in the units of ``shared``.

    Attributes:
        rescaled: whether all of it was multiplied by a positive factor that the attacker does not know (norm clipping).
        variance: of an entry's error (added noise, and rounding), by name; tensors without error are absent.
        kept: which entries were sent (bool, the tensor's shape), by name; tensors that were sent in full are absent.
    """

    rescaled: bool = False
    variance: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    def scaled(self, factor: Callable[[str], float]) -> Altered:
        """The same for tensors that are multiplied by the ``factor`` of their name."""
        return replace(self, variance={name: value * factor(name) ** 2 for name, value in self.variance.items()})

    def renamed(self, names: Mapping[str, str]) -> Altered:
        """The same with the tensors' names replaced; those that ``names`` lacks are left out."""
        variance = {names[name]: value for name, value in self.variance.items() if name in names}
        return replace(self, variance=variance, kept={names[name]: mask for name, mask in self.kept.items() if name in names})


UNALTERED = Altered()
