"""Layer masking: what is masked is not sent."""

from __future__ import annotations

from fnmatch import fnmatch

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from fedpriv.wire import Payload, TransformContext


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Mask:
    """Drop the tensors of whole roles, or those whose name matches a pattern (``encoder.fc*``, ``statistic.*``)."""

    roles: tuple[str, ...] = Field((), description="roles whose tensors are dropped")
    names: tuple[str, ...] = Field((), description="shell patterns of tensor names to drop")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        kept = {name: tensor for name, tensor in payload.tensors.items() if not self._drops(name)}
        return payload.with_tensors(kept, str(self))

    def _drops(self, name: str) -> bool:
        return name.split(".")[0] in self.roles or any(fnmatch(name, pattern) for pattern in self.names)

    def __str__(self) -> str:
        return f"mask({', '.join(self.roles + self.names)})"
