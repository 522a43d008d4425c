"""K clients' models as one net: their states are the rows of a matrix, and their passes are computed in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.models.batched.layers import ForwardContext, to_stack
from fedpriv.models.batched.stacked import Form
from fedpriv.models.net import Outputs
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation.vectorized.batched_client import BatchedClient
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, ForOneClient
from fedpriv.simulation.vectorized.requests import PRIORITY, ForwardPass, GradientPass, Leaves, Roles, SampleCount, Section
from fedpriv.simulation.vectorized.scheduler import Request, Scheduler

T = TypeVar("T")


class BatchedModels:
    """The matrix and the passes of K clients of one net.

    Attributes:
        rows, grads: ``(K, p)``, state and gradient of each client; clients with more samples come first, so that those who
            still have batches are neighbours.
        sample_count: training samples processed, and padding.
    """

    def __init__(self, form: Form, space: ParameterSpace, clients: int, like: Tensor, count: SampleCount | None = None) -> None:
        self.form, self.space = form, space
        self.rows = like.new_zeros(clients, space.size)
        self.grads = torch.zeros_like(self.rows)
        self.sample_count = SampleCount() if count is None else count
        self.scheduler: Scheduler[object] = Scheduler(PRIORITY, form.draws)
        self.lanes = [BatchedClient(self, number) for number in range(clients)]
        self._tensors: dict[tuple[int, int, Roles], tuple[dict[str, Tensor], Leaves]] = {}
        self._buffers = list(space.spans(entry.name for entry in space.entries if entry.kind == "buffer"))
        self.losses: dict[tuple[object, ...], BatchedLoss | None] = {}
        """By kind of step; ``None``: the loss cannot be batched."""
        self._others: dict[str, BatchedModels] = {}

    def other(self, name: str) -> BatchedModels:
        """Another such matrix for the same clients."""
        if name not in self._others:
            self._others[name] = BatchedModels(self.form, self.space, len(self.lanes), self.rows)
            self._others[name].scheduler = self.scheduler
        return self._others[name]

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run the functions side by side, one per lane, and return their results."""
        return self.scheduler.run(functions)  # type: ignore[return-value]

    def tensors(self, lanes: slice, differentiated: Roles) -> tuple[dict[str, Tensor], Leaves]:
        """Named tensors ``(k, *shape)`` of consecutive lanes; and the leaves, each with its view of the rows' gradients."""
        key = (lanes.start, lanes.stop, differentiated)
        if key not in self._tensors:
            rows, grads = self.rows[lanes], self.grads[lanes]
            found, leaves = {}, []
            for entry in self.space.entries:
                span, shape = slice(entry.start, entry.stop), (len(rows), *entry.shape)
                # Hidden from autograd's version counter: a step of another lane must not invalidate this lane's backward pass.
                found[entry.name] = tensor = rows[:, span].view(shape).data
                if entry.kind != "buffer" and entry.role in differentiated:
                    leaves.append((tensor.requires_grad_(True), grads[:, span].view(shape)))
            self._tensors[key] = found, leaves
        return self._tensors[key]

    def forward(self, passes: Sequence[ForwardPass], requests: Sequence[Request]) -> tuple[Outputs, Leaves]:
        """Run one forward pass of neighbours; outputs ``(K, B, ...)``, where B is the longest batch's length."""
        first, longest = passes[0], max(len(one.inputs) for one in passes)
        training, differentiated = first.mode
        lanes = slice(first.lane.number, first.lane.number + len(passes))
        if training:
            real = sum(len(one.inputs) for one in passes)
            self.sample_count.real += real
            self.sample_count.padding_samples += longest * len(passes) - real

        def draw(like: Tensor, probability: float) -> Tensor:
            masks = []
            for one, request in zip(passes, requests, strict=True):
                assert request.draws is not None
                torch.set_rng_state(request.draws)
                kept = torch.empty_like(like[: len(one.inputs)]).bernoulli_(1 - probability)
                request.draws = torch.get_rng_state()
                masks.append(F.pad(kept, (0, 0) * (like.ndim - 1) + (0, longest - len(kept))))
            return torch.stack(masks)

        tensors, leaves = self.tensors(lanes, differentiated)
        ctx = ForwardContext(len(passes), tensors, training, draw)
        with torch.autocast(self.rows.device.type, torch.bfloat16) if first.half else nullcontext():
            x = to_stack([one.inputs for one in passes], longest)
            if first.section != "rest":
                x = self.form.encode(ctx, x)
            outputs = Outputs(x, x, None, x) if first.section == "encoder" else self.form.from_features(ctx, x)
        return outputs.to(self.rows) if first.half else outputs, leaves

    def differentiate(self, loss: BatchedLoss, passes: Sequence[GradientPass], requests: Sequence[Request]) -> Tensor:
        """Compute the losses ``(K,)`` of neighbours and write their gradients into the rows' gradients.

        Raises:
            ForOneClient: the loss cannot be batched; nothing was changed.
        """
        first, batches = passes[0], [one.batch for one in passes]
        ready = loss.ready(batches)
        section: Section = "rest" if first.batch.cached else "net"
        lanes = slice(first.lane.number, first.lane.number + len(passes))
        buffers = [(span, self.rows[lanes, span].clone()) for span in self._buffers]
        draws, count_before = [request.draws for request in requests], replace(self.sample_count)
        views = []
        for inputs in zip(*(batch.views for batch in batches), strict=True):
            forwards = [ForwardPass(one.lane, x, section, one.mode, one.half) for one, x in zip(passes, inputs, strict=True)]
            outputs, leaves = self.forward(forwards, requests)
            views.append(outputs)
        try:
            losses = loss(batches, views, ready)
        except ForOneClient:
            for span, values in buffers:
                self.rows[lanes, span] = values
            for request, state in zip(requests, draws, strict=True):
                request.draws = state
            self.sample_count.take()
            self.sample_count.add(count_before)
            raise
        gradients = torch.autograd.grad(losses.sum(), [leaf for leaf, _ in leaves], allow_unused=True)
        for (_, place), gradient in zip(leaves, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                place.copy_(gradient)
        return losses.detach()
