"""Layer masking: what is masked is not sent."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from fedpriv.errors import UsageError
from fedpriv.models.net import ROLES
from fedpriv.wire import Payload, TransformContext


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Mask:
    """Drop the tensors of whole roles, or those whose name matches a pattern (``encoder.fc*``, ``statistic.*``).

    Raises:
        UsageError: a pattern fits nothing of the net or the upload. What masks nothing by mistake would pass for a defence.
    """

    roles: tuple[str, ...] = Field((), description="roles whose tensors are dropped")
    names: tuple[str, ...] = Field((), description="shell patterns of tensor names to drop")

    @model_validator(mode="after")
    def _masks_something(self) -> Self:
        if unknown := sorted(set(self.roles) - set(ROLES)):
            raise ValueError(f"unknown role {unknown[0]!r}; roles: {', '.join(ROLES)}")
        if not self.roles and not self.names:
            raise ValueError("masks nothing; give it roles or names")
        return self

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        known = {*payload.tensors, *context.layers}
        for pattern in self.names:
            if not any(fnmatch(name, pattern) for name in known):
                raise UsageError(f"{self}: {pattern!r} fits no tensor; there are {', '.join(sorted(known))}")
        kept = {name: tensor for name, tensor in payload.tensors.items() if not self._drops(name)}
        return payload.with_tensors(kept, str(self))

    def _drops(self, name: str) -> bool:
        return name.split(".")[0] in self.roles or any(fnmatch(name, pattern) for pattern in self.names)

    def __str__(self) -> str:
        return f"mask({', '.join(self.roles + self.names)})"
