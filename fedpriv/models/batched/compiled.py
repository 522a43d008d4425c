"""A stacked net, compiled by ``torch.compile``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
import torch._functorch.config
from torch import Tensor

from fedpriv.errors import FedprivError
from fedpriv.models.batched.layers import ForwardContext
from fedpriv.models.batched.stacked import Form, StackedNet
from fedpriv.models.net import Outputs

T = TypeVar("T")
Mode = Literal["default", "reduce-overhead"]
"""Modes of ``torch.compile``. ``reduce-overhead``: CUDA graphs where shapes are static; on a CPU the same as ``default``."""
BACKEND = "inductor"
RECOMPILATIONS = 64
"""Limit on recompilations; phases, evaluations and batches of different sizes need many."""


class CompiledNet(Form):
    """A stacked net that is compiled on first use, and again for new shapes and modes.

    Dropout masks are drawn outside of the compiled code, so that each client has the same masks as when it trains alone.
    """

    def __init__(self, net: StackedNet, mode: Mode) -> None:
        self.draws, self.mixes, self._buffers = net.draws, net.mixes, net.buffers
        # Where losses are computed client by client, backward runs through the group's forward pass more than once.
        torch._functorch.config.donated_buffer = False
        options: dict[str, Any] = {"mode": mode} if BACKEND == "inductor" else {"backend": BACKEND}
        if "recompile_limit" in inspect.signature(torch.compile).parameters:
            options |= {"recompile_limit": RECOMPILATIONS, "isolate_recompiles": True}
        else:  # in older versions of torch the limit is for all nets of a process together
            torch._dynamo.config.recompile_limit = RECOMPILATIONS
        self._encode, self._rest = torch.compile(net.encode, **options), torch.compile(net.from_features, **options)
        # One function for all passes: a new function object would trigger recompilation.
        self._draw = torch.compiler.disable(lambda like, share: self._ctx.draw(like, share))  # type: ignore[no-untyped-call]
        self._ctx: ForwardContext

    def encode(self, ctx: ForwardContext, x: Tensor) -> Tensor:
        return self._run(self._encode, ctx, x).clone()

    def from_features(self, ctx: ForwardContext, h: Tensor) -> Outputs:
        outputs = self._run(self._rest, ctx, h)
        prediction = None if outputs.prediction is None else outputs.prediction.clone()
        return Outputs(h, outputs.projection.clone(), prediction, outputs.logits.clone())

    def _run(self, compiled: Callable[[ForwardContext, Tensor], T], ctx: ForwardContext, x: Tensor) -> T:
        """Run compiled code. Callers must copy the result, which the next pass of a CUDA graph overwrites.

        Raises:
            FedprivError: the net cannot be compiled, for instance because there is no C++ compiler.
        """
        self._ctx = ctx
        # Compiled code must not change a tensor that shares its storage with others.
        buffers = {name: ctx.tensors[name].clone() for name in self._buffers if name in ctx.tensors}
        try:
            result = compiled(replace(ctx, tensors={**ctx.tensors, **buffers}, draw=self._draw, leaves={}), x)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).strip().splitlines()[:2])
            raise FedprivError(f"torch.compile cannot compile this net here ({reason}); use --compile none") from None
        for name, buffer in buffers.items():
            ctx.tensors[name].copy_(buffer)
        return result
