"""FedPer (Arivazhagan et al., arXiv:1912.00818): a shared encoder and personal heads, trained together."""

from __future__ import annotations

from fnmatch import fnmatch

from pydantic import Field

from fedpriv.errors import UsageError
from fedpriv.methods import register
from fedpriv.methods.base import Method, params


@params
class FedPerParams:
    """Options of FedPer."""

    personal: tuple[str, ...] = Field(
        (), description="shell patterns of encoder tensors that are personal, too, such as encoder.fc2.* (K_P, sec. 3)"
    )


@register("fedper")
class FedPer(Method):
    """A shared encoder, and a personal projector and head, trained together."""

    paper = "Arivazhagan et al., arXiv:1912.00818"
    Params = FedPerParams
    shared = frozenset({"encoder"})
    round_zero = True

    def select_shared(self) -> tuple[str, ...]:
        """The encoder's tensors, without those that match ``personal``.

        Raises:
            UsageError: a pattern matches no tensor of the encoder, or the patterns match all of them.
        """
        names, patterns = super().select_shared(), self.params.personal
        for pattern in patterns:
            if not any(fnmatch(name, pattern) for name in names):
                raise UsageError(f"method.personal: {pattern!r} matches no tensor of the encoder; there are {', '.join(names)}")
        shared = tuple(name for name in names if not any(fnmatch(name, pattern) for pattern in patterns))
        if names and not shared:
            raise UsageError("method.personal leaves nothing to share: use method local")
        return shared
