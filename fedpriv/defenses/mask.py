"""Layer masking: masked layers are not sent."""

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
    """Drop the tensors of whole roles, those whose name matches a pattern (``encoder.fc*``, ``statistic.*``), or the weights and
    biases of the last fully connected layers (MpFedcon sec. 5.10).

    Raises:
        UsageError: a pattern matches nothing in the net or the upload (a mask without effect would look like a defence), the
            net has fewer fully connected layers, or nothing of the net is left to send.
    """

    roles: tuple[str, ...] = Field((), description="roles whose tensors are dropped")
    names: tuple[str, ...] = Field((), description="shell patterns of tensor names to drop")
    last: int = Field(0, ge=0, description="number of the last fully connected layers before the logits to drop, shared or not")

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
        """Those of ``names`` that are not dropped.

        Args:
            linear: the net's fully connected layers in forward order.
        """
        if self.last > len(linear):
            layers = f"{len(linear)} fully connected layers" + (f" ({', '.join(linear)})" if linear else "")
            raise UsageError(f"{self}: the net has {layers}")
        hidden = tuple(layer + "." for layer in linear[len(linear) - self.last :])
        left = [name for name in names if not self._drops(base_name(name), hidden)]
        if any(map(is_model, names)) and not any(map(is_model, left)):
            sent = f"only {', '.join(left)} would be sent" if left else "nothing would be sent"
            raise UsageError(f"{self} leaves nothing of the net to share: of {', '.join(names)}, {sent}")
        return left

    def _drops(self, name: str, hidden: tuple[str, ...]) -> bool:
        # Statistics of a masked tensor (a control variate is a gradient) are masked, too.
        about = tensor_of(name)
        return (
            about.split(".")[0] in self.roles
            or about.startswith(hidden)
            or any(fnmatch(name, pattern) or fnmatch(about, pattern) for pattern in self.names)
        )

    def __str__(self) -> str:
        return f"mask({', '.join((*self.roles, *self.names, *([f'last {self.last}'] if self.last else [])))})"
