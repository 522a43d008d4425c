"""Pruning: only the largest entries of the change are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.defenses.change import changes
from fedpriv.defenses.stage import Stage, transform
from fedpriv.wire import Expected, Form, Payload, TransformContext
from fedpriv.wire.coding import INDICES, VALUES, is_model


@transform
class Prune:
    """Send only the largest entries of the change, by magnitude over all model tensors, as (index, value); for the others the
    server keeps its values (gradient sparsification, Aji and Heafield 2017; as a defence, Zhu et al. 2019).

    An entry costs 8 bytes instead of 4, so this saves bytes if ``fraction`` is below 1/2. Tensors that the client was not sent
    have no change and are sent whole.
    """

    stage: ClassVar[Stage] = Stage.SPARSE
    fraction: float = Field(0.1, gt=0, le=1, description="share of the entries that is kept (at least one entry)")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        found = {name: change for name, change in changes(payload, context.received).items() if name in context.received}
        sent: dict[str, Tensor] = {name: tensor for name, tensor in payload.tensors.items() if name not in found}
        if found:
            flat = torch.cat([change.reshape(-1) for change in found.values()])
            kept = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
            kept[flat.abs().topk(max(1, round(self.fraction * len(flat)))).indices] = True
            start = 0
            for name, change in found.items():
                indices = kept[start : start + change.numel()].nonzero().squeeze(1)
                sent[name + INDICES] = indices.to(torch.int32)
                sent[name + VALUES] = change.reshape(-1)[indices].float()
                start += change.numel()
        return replace(payload, kind="delta").with_tensors(sent, str(self))

    def expects(self, expected: Expected, linear: Sequence[str]) -> Expected:
        """How many entries of a tensor are sent is open; their numbers are checked where they are read."""
        forms: dict[str, Form] = {}
        for name, form in expected.tensors.items():
            if is_model(name) and name in expected.received:
                forms |= {name + INDICES: Form((name,), torch.int32), name + VALUES: Form((name,), torch.float32)}
            else:
                forms[name] = form
        return replace(expected, kind="delta", tensors=forms)

    def __str__(self) -> str:
        return f"prune({self.fraction:g})"
