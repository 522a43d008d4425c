"""Half precision: uploads are rounded to 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedpriv.defenses.change import changes, reference
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Expected, Form, Payload, TransformContext
from fedpriv.wire.coding import RUNNING_VAR, base_name

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@transform
class Cast:
    """Round every floating-point tensor to 16 bits; the server computes in float32."""

    stage: ClassVar[Stage] = Stage.DIGITS
    dtype: Literal["float16", "bfloat16"] = Field("float16", description="the type that is sent")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        dtype = _DTYPES[self.dtype]
        cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in payload.tensors.items()}
        for name in changes(payload, {}) if payload.kind == "delta" else ():
            if base_name(name).endswith(RUNNING_VAR) and base_name(name) in context.received:
                negative = reference(name, payload, context.received) + cast[name].float() < 0
                cast[name].view(torch.int16)[negative] -= 1  # the next representable number towards zero
        return payload.with_tensors(cast, str(self))

    def expects(self, expected: Expected, linear: Sequence[str]) -> Expected:
        return replace(expected, tensors={name: self._form(form) for name, form in expected.tensors.items()})

    def _form(self, form: Form) -> Form:
        """The form with the rounded dtype and range."""
        if not form.floating:
            return form
        dtype = _DTYPES[self.dtype]
        bounds = (None if bound is None else float(torch.tensor(bound).to(dtype)) for bound in (form.least, form.most))
        return replace(form, dtype=dtype, least=next(bounds), most=next(bounds))

    def __str__(self) -> str:
        return f"cast({self.dtype})"
