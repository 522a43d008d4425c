"""Uploads in half precision."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Payload, TransformContext

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@transform
class Cast:
    """Round every floating-point tensor to 16 bits; the server computes in float32 again."""

    stage: ClassVar[Stage] = Stage.DIGITS
    dtype: Literal["float16", "bfloat16"] = Field("float16", description="the type that is sent")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        dtype = _DTYPES[self.dtype]
        cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in payload.tensors.items()}
        return payload.with_tensors(cast, str(self))

    def __str__(self) -> str:
        return f"cast({self.dtype})"
