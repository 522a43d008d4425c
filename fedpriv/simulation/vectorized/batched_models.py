"""The models of K clients as one net: their states are the rows of a matrix, and their passes are computed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.models.batched.layers import ForwardContext, Leaf, to_stack
from fedpriv.models.batched.stacked import Form
from fedpriv.models.net import Outputs
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation.vectorized.batched_client import BatchedClient
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, NotBatchable
from fedpriv.simulation.vectorized.requests import PRIORITY, ForwardPass, GradientPass, Leaves, Roles, SampleCount, Section
from fedpriv.simulation.vectorized.scheduler import Request, Scheduler

T = TypeVar("T")


class BatchedModels:
    """The models of K clients, and their passes.

    Attributes:
        rows, grads: ``(K, p)``, state and gradient of each client. Clients with more samples come first, so that those that still
            have batches are neighbours.
        clients: the K models.
        sample_count: training samples processed, and padding.
    """

    def __init__(self, form: Form, space: ParameterSpace, size: int, like: Tensor, count: SampleCount | None = None) -> None:
        self.form, self.space = form, space
        self.rows = like.new_zeros(size, space.size)
        self.grads = torch.zeros_like(self.rows)
        self.sample_count = SampleCount() if count is None else count
        self.scheduler: Scheduler[object] = Scheduler(PRIORITY, form.draws)
        self.clients = [BatchedClient(self, number) for number in range(size)]
        self._tensors: dict[tuple[int, int, Roles], tuple[dict[str, Tensor], Leaves]] = {}
        self._buffers = list(space.spans(entry.name for entry in space.entries if entry.kind == "buffer"))
        self.losses: dict[tuple[object, ...], BatchedLoss | None] = {}
        """By kind of gradient pass; ``None``: the loss cannot be batched."""
        self._others: dict[str, BatchedModels] = {}

    def other(self, name: str) -> BatchedModels:
        """Other models of the same clients, such as their teachers."""
        if name not in self._others:
            self._others[name] = BatchedModels(self.form, self.space, len(self.clients), self.rows)
            self._others[name].scheduler = self.scheduler
        return self._others[name]

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Run the functions concurrently, one per client, and return their results."""
        return self.scheduler.run(functions)  # type: ignore[return-value]

    def tensors(self, clients: slice, differentiated: Roles) -> tuple[dict[str, Tensor], Leaves]:
        """Tensors ``(k, *shape)`` of k consecutive clients by name, and those of them that are leaves of autograd."""
        key = (clients.start, clients.stop, differentiated)
        if key not in self._tensors:
            rows, grads = self.rows[clients], self.grads[clients]
            tensors, leaves = {}, Leaves()
            for entry in self.space.entries:
                span, shape = slice(entry.start, entry.stop), (len(rows), *entry.shape)
                # `data` hides changes from autograd: a step of one client must not invalidate the backward pass of another.
                tensors[entry.name] = tensor = rows[:, span].view(shape).data
                if entry.kind != "buffer" and entry.role in differentiated:
                    leaves[entry.name] = Leaf(tensor.requires_grad_(True), grads[:, span].view(shape))
            self._tensors[key] = tensors, leaves
        return self._tensors[key]

    def forward(self, passes: Sequence[ForwardPass], requests: Sequence[Request]) -> tuple[Outputs, Leaves]:
        """Run the forward passes of neighbouring clients as one; outputs ``(K, B, ...)``, with B the length of the longest
        batch."""
        first = passes[0]
        return self._forward(
            first.client.number, [single.inputs for single in passes], first.section, first.mode, first.half, requests
        )

    def _forward(
        self,
        number: int,
        inputs: Sequence[Tensor],
        section: Section,
        mode: tuple[Roles, Roles],
        half: bool,
        requests: Sequence[Request],
        write: bool = False,
    ) -> tuple[Outputs, Leaves]:
        """As :meth:`forward`, on the inputs of the clients from ``number`` on.

        Args:
            write: whether layers may write the gradients of leaves themselves; then one backward pass goes through all passes.
        """
        sizes = [x.shape[0] for x in inputs]
        longest = max(sizes)
        training, differentiated = mode
        clients = slice(number, number + len(inputs))
        if training:
            real = sum(sizes)
            self.sample_count.real += real
            self.sample_count.padding_samples += longest * len(inputs) - real

        def dropout_mask(like: Tensor, probability: float) -> Tensor:
            masks = []
            for size, request in zip(sizes, requests, strict=True):
                assert request.rng_state is not None
                torch.set_rng_state(request.rng_state)
                kept = torch.empty_like(like[:size]).bernoulli_(1 - probability)
                request.rng_state = torch.get_rng_state()
                masks.append(F.pad(kept, (0, 0) * (like.ndim - 1) + (0, longest - size)))
            return torch.stack(masks)

        tensors, leaves = self.tensors(clients, differentiated)
        ctx = ForwardContext(len(inputs), tensors, training, dropout_mask, leaves if write else {})
        with torch.autocast(self.rows.device.type, torch.bfloat16) if half else nullcontext():
            x = to_stack(inputs, longest)
            if section != "rest":
                x = self.form.encode(ctx, x)
            outputs = Outputs(x, x, None, x) if section == "encoder" else self.form.from_features(ctx, x)
        return outputs.to(self.rows) if half else outputs, leaves

    def differentiate(self, loss: BatchedLoss, passes: Sequence[GradientPass], requests: Sequence[Request]) -> Tensor:
        """Compute the losses ``(K,)`` of neighbouring clients, and write their gradients into ``grads``.

        Raises:
            NotBatchable: the loss cannot be batched; nothing was changed.
        """
        first, batches = passes[0], [single.batch for single in passes]
        ready = loss.ready(batches)
        section: Section = "rest" if first.batch.cached else "net"
        clients = slice(first.client.number, first.client.number + len(passes))
        buffers = [(span, self.rows[clients, span].clone()) for span in self._buffers]
        rng_states, count_before = [request.rng_state for request in requests], replace(self.sample_count)
        _, leaves = self.tensors(clients, first.mode[1])
        for leaf in leaves.values():
            leaf.written = False
        views = []
        for inputs in zip(*[batch.views for batch in batches], strict=True):
            outputs, _ = self._forward(first.client.number, inputs, section, first.mode, first.half, requests, write=True)
            views.append(outputs)
        try:
            losses = loss(batches, views, ready)
        except NotBatchable:
            for span, values in buffers:
                self.rows[clients, span] = values
            for request, state in zip(requests, rng_states, strict=True):
                request.rng_state = state
            self.sample_count.take()
            self.sample_count.add(count_before)
            raise
        gradients = torch.autograd.grad(losses.sum(), [leaf.tensor for leaf in leaves.values()], allow_unused=True)
        for leaf, gradient in zip(leaves.values(), gradients, strict=True):
            if not leaf.written:
                leaf.gradient.zero_() if gradient is None else leaf.gradient.copy_(gradient)
            elif gradient is not None:
                leaf.gradient.add_(gradient)
        return losses.detach()
