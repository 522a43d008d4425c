"""Pruning, or gradient sparsification (Aji and Heafield 2017): only the largest entries of the change are sent."""

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
    """Send only the largest entries of the change over all model tensors, as (index, value); a defence in Zhu et al. 2019.

    For the other entries the server keeps its values. An entry takes 8 bytes instead of 4, so this saves traffic if ``fraction``
    is below 1/2. Tensors that the client did not receive are sent whole.
    """

    stage: ClassVar[Stage] = Stage.SPARSE
    fraction: float = Field(0.1, gt=0, le=1, description="share of the entries that are sent (at least one entry)")

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        changed = {name: change for name, change in changes(payload, context.received).items() if name in context.received}
        sent: dict[str, Tensor] = {name: tensor for name, tensor in payload.tensors.items() if name not in changed}
        if changed:
            flat = torch.cat([change.reshape(-1) for change in changed.values()])
            kept = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
            kept[flat.abs().topk(max(1, round(self.fraction * len(flat)))).indices] = True
            start = 0
            for name, change in changed.items():
                indices = kept[start : start + change.numel()].nonzero().squeeze(1)
                sent[name + INDICES] = indices.to(torch.int32)
                sent[name + VALUES] = change.reshape(-1)[indices].float()
                start += change.numel()
        return replace(payload, kind="delta").with_tensors(sent, str(self))

    def expects(self, expected: Expected, linear: Sequence[str]) -> Expected:
        """The number of entries of each tensor is open; the reader checks it."""
        forms: dict[str, Form] = {}
        for name, form in expected.tensors.items():
            if is_model(name) and name in expected.received:
                forms |= {name + INDICES: Form((name,), torch.int32), name + VALUES: Form((name,), torch.float32)}
            else:
                forms[name] = form
        return replace(expected, kind="delta", tensors=forms)

    def __str__(self) -> str:
        return f"prune({self.fraction:g})"
