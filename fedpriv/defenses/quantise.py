"""Quantisation of the change (QSGD, Alistarh et al. 2017, with the maximum norm)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.defenses.change import changes, reference
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Expected, Form, Payload, RandomStream, TransformContext
from fedpriv.wire.coding import RUNNING_VAR, SCALE, base_name, codes_name, is_model, pack_codes


@transform
class Quantise:
    """Send each tensor's change as integers of ``bits`` bits times one scale, with stochastic rounding.

    ``code = floor(change / scale + u)`` with ``scale = max|change| / (2^(bits-1) - 1)`` and u uniform in [0, 1), which is
    unbiased and has an error below one scale. The server decodes ``received + code * scale``. Running variances are not rounded
    to below zero. Tensors that the client did not receive are sent whole.
    """

    stage: ClassVar[Stage] = Stage.DIGITS
    bits: int = Field(8, ge=2, le=8, description="bits of a number; numbers of less than 8 bits are packed")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        sent: dict[str, Tensor] = dict(payload.tensors)
        for name, change in changes(payload, context.received).items():
            if base_name(name) in context.received:
                del sent[name]
                codes, sent[name + SCALE] = self._codes(change.float(), context.noise)
                if base_name(name).endswith(RUNNING_VAR):
                    codes = _not_below_zero(codes, sent[name + SCALE], reference(name, payload, context.received))
                sent[codes_name(name, self.bits)] = pack_codes(codes, self.bits)
        return replace(payload, kind="delta").with_tensors(sent, str(self))

    def expects(self, expected: Expected, linear: Sequence[str]) -> Expected:
        """The codes and the scale of each tensor; the reader checks their values."""
        forms: dict[str, Form] = {}
        for name, form in expected.tensors.items():
            if is_model(name) and form.floating and base_name(name) in expected.received:
                forms |= {codes_name(name, self.bits): self._form(name, form.shape), name + SCALE: Form((1,), torch.float32)}
            else:
                forms[name] = form
        return replace(expected, kind="delta", tensors=forms)

    def _form(self, name: str, shape: tuple[int | str, ...]) -> Form:
        if self.bits == 8:
            return Form(shape, torch.int8)
        known = [size for size in shape if isinstance(size, int)]
        packed = math.ceil(math.prod(known) * self.bits / 8) if len(known) == len(shape) else f"{name}, packed"
        return Form((packed,), torch.uint8)

    def _codes(self, change: Tensor, noise: RandomStream) -> tuple[Tensor, Tensor]:
        levels = 2 ** (self.bits - 1) - 1
        largest = change.abs().max() if change.numel() else change.new_zeros(())
        scale = largest / levels
        steps = change / scale if scale > 0 else torch.zeros_like(change)  # the scale may underflow
        u = noise.uniform(change.shape).to(change.device)
        return (steps + u).floor().clamp(-levels, levels), scale.reshape(1)

    def __str__(self) -> str:
        return f"quantise({self.bits})"


def _not_below_zero(codes: Tensor, scale: Tensor, reference: Tensor) -> Tensor:
    """Raise the codes where ``reference + code * scale`` would be negative, since BatchNorm gives NaN for such a variance."""
    reference = reference.to(codes)
    least = (-reference / scale).ceil() if float(scale) > 0 else torch.zeros_like(codes)
    codes = codes.maximum(least.clamp(max=0))
    return codes + (reference + codes * scale < 0)  # the quotient may have been rounded down
