"""Quantisation of the change."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.defenses.change import changes
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Payload, TransformContext
from fedpriv.wire.coding import SCALE, base_name, codes_name, pack_codes


@transform
class Quantise:
    """Send each tensor's change as integers of ``bits`` bits times one scale (QSGD, Alistarh et al. 2017, max norm).

    ``scale = max|change| / L``, ``L = 2^(bits-1) - 1``, ``code = floor(change / scale + u)`` with u uniform in [0, 1):
    unbiased, with an error of less than one scale. The server decodes ``received + code * scale``. Tensors that the client was
    not sent are sent whole.
    """

    stage: ClassVar[Stage] = Stage.DIGITS
    bits: int = Field(8, ge=2, le=8, description="bits per number; below 8 they are packed")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        sent: dict[str, Tensor] = dict(payload.tensors)
        for name, change in changes(payload, context.received).items():
            if base_name(name) in context.received:
                del sent[name]
                codes, sent[name + SCALE] = self._codes(change.float(), context.generator)
                sent[codes_name(name, self.bits)] = pack_codes(codes, self.bits)
        return replace(payload, kind="delta").with_tensors(sent, str(self))

    def _codes(self, change: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        levels = 2 ** (self.bits - 1) - 1
        largest = change.abs().max() if change.numel() else change.new_zeros(())
        scale = largest / levels
        steps = change / scale if scale > 0 else torch.zeros_like(change)  # a scale may underflow where the change does not
        up = torch.rand(change.shape, generator=generator).to(change.device)
        return (steps + up).floor().clamp(-levels, levels), scale.reshape(1)

    def __str__(self) -> str:
        return f"quantise({self.bits})"
