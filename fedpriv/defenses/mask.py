"""Layer masking (MpFedcon, sec. 5.10): masked layers are not sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Self

from pydantic import Field, model_validator

from fedpriv.defenses.stage import transform
from fedpriv.errors import UsageError
from fedpriv.models.net import ROLES
from fedpriv.wire import Expected, Payload, TransformContext, tensor_of
from fedpriv.wire.coding import base_name, is_model


@transform
class Mask:
    """Do not send the tensors of some roles, of names that match a pattern, or of the last fully connected layers.

    Raises:
        UsageError: a pattern matches nothing, the net has fewer fully connected layers, or nothing of the net is left to send.
    """

    roles: tuple[str, ...] = Field((), description="roles whose tensors are not sent")
    names: tuple[str, ...] = Field(
        (), description="shell patterns of tensor names that are not sent, such as encoder.fc* or statistic.*"
    )
    last: int = Field(
        0, ge=0, description="number of last fully connected layers before the logits that are not sent, private ones included"
    )

    @model_validator(mode="after")
    def _masks_something(self) -> Self:
        if unknown := sorted(set(self.roles) - set(ROLES)):
            raise ValueError(f"unknown role {unknown[0]!r}; roles: {', '.join(ROLES)}")
        if not self.roles and not self.names and not self.last:
            raise ValueError("masks nothing; give it roles, names or last")
        return self

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        known = {*map(base_name, payload.tensors), *context.layers}
        for pattern in self.names:
            if not any(fnmatch(name, pattern) for name in known):
                raise UsageError(f"{self}: {pattern!r} matches no tensor; there are {', '.join(sorted(known))}")
        names = self.kept(list(payload.tensors), context.linear)
        return payload.with_tensors({name: payload.tensors[name] for name in names}, str(self))

    def expects(self, expected: Expected, linear: Sequence[str]) -> Expected:
        return replace(expected, tensors={name: expected.tensors[name] for name in self.kept(list(expected.tensors), linear)})

    def kept(self, names: Sequence[str], linear: Sequence[str]) -> list[str]:
        """The names that are not masked.

        Args:
            linear: the net's fully connected layers in forward order.
        """
        if self.last > len(linear):
            layers = f"{len(linear)} fully connected layers" + (f" ({', '.join(linear)})" if linear else "")
            raise UsageError(f"{self}: the net has {layers}")
        hidden = tuple(layer + "." for layer in linear[len(linear) - self.last :])
        kept = [name for name in names if not self._drops(base_name(name), hidden)]
        if any(map(is_model, names)) and not any(map(is_model, kept)):
            sent = f"only {', '.join(kept)} would be sent" if kept else "nothing would be sent"
            raise UsageError(f"{self} leaves nothing of the net to share: of {', '.join(names)}, {sent}")
        return kept

    def _drops(self, name: str, hidden: tuple[str, ...]) -> bool:
        # Statistics about a masked tensor, such as a control variate, are masked, too.
        about = tensor_of(name)
        return (
            about.split(".")[0] in self.roles
            or about.startswith(hidden)
            or any(fnmatch(name, pattern) or fnmatch(about, pattern) for pattern in self.names)
        )

    def __str__(self) -> str:
        return f"mask({', '.join((*self.roles, *self.names, *([f'last {self.last}'] if self.last else [])))})"
