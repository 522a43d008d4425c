"""K clients' models as one net: their states are the rows of a matrix, and what they ask for is done for all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.models.net import Outputs
from fedpriv.models.stacked import Form, Pass, to_stack
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, ForOneClient
from fedpriv.simulation.vectorized.lane import Lane
from fedpriv.simulation.vectorized.requests import HEARD, Asked, Leaves, Roles, Shown, Through, Whole
from fedpriv.simulation.vectorized.scheduler import Question, Rendezvous

T = TypeVar("T")


class Stack:
    """The matrix and the passes of K clients of one net.

    Attributes:
        rows, grads: ``(K, p)``, state and gradient of each client; clients with more samples come first, so that those who
            still have batches are neighbours.
        shown: counts what goes through in training.
    """

    def __init__(self, form: Form, space: ParameterSpace, clients: int, like: Tensor, shown: Shown | None = None) -> None:
        self.form, self.space = form, space
        self.rows = like.new_zeros(clients, space.size)
        self.grads = torch.zeros_like(self.rows)
        self.shown = Shown() if shown is None else shown
        self.meeting: Rendezvous[object] = Rendezvous(HEARD, form.draws)
        self.lanes = [Lane(self, number) for number in range(clients)]
        self._tensors: dict[tuple[int, int, Roles], tuple[dict[str, Tensor], Leaves]] = {}
        self._buffers = list(space.spans(entry.name for entry in space.entries if entry.kind == "buffer"))
        self.losses: dict[tuple[object, ...], BatchedLoss | None] = {}
        """By kind of step; ``None``: one that is for one client at a time."""
        self._others: dict[str, Stack] = {}

    @cached_property
    def velocity(self) -> Tensor:
        """``(K, p)``, of SGD with momentum."""
        return torch.zeros_like(self.rows)

    def other(self, name: str) -> Stack:
        """Another such matrix for the same clients."""
        if name not in self._others:
            self._others[name] = Stack(self.form, self.space, len(self.lanes), self.rows)
            self._others[name].meeting = self.meeting
        return self._others[name]

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """What each function returns, a lane each, all side by side."""
        return self.meeting.run(functions)  # type: ignore[return-value]

    def tensors(self, lanes: slice, differentiated: Roles) -> tuple[dict[str, Tensor], Leaves]:
        """Named tensors ``(k, *shape)`` of consecutive lanes; and those with gradient, beside where it belongs in the rows."""
        key = (lanes.start, lanes.stop, differentiated)
        if key not in self._tensors:
            rows, grads = self.rows[lanes], self.grads[lanes]
            found, leaves = {}, []
            for entry in self.space.entries:
                span, shape = slice(entry.start, entry.stop), (len(rows), *entry.shape)
                # Not as a view to autograd: that another lane steps must not spoil what this one goes back through.
                found[entry.name] = tensor = rows[:, span].view(shape).data
                if entry.kind != "buffer" and entry.role in differentiated:
                    leaves.append((tensor.requires_grad_(True), grads[:, span].view(shape)))
            self._tensors[key] = found, leaves
        return self._tensors[key]

    def pass_through(self, asked: Sequence[Asked], questions: Sequence[Question]) -> tuple[Outputs, Leaves]:
        """One forward pass of neighbours: outputs ``(K, B, ...)``, B the longest batch's."""
        first, longest = asked[0], max(len(one.inputs) for one in asked)
        training, differentiated = first.mode
        lanes = slice(first.lane.number, first.lane.number + len(asked))
        if training:
            real = sum(len(one.inputs) for one in asked)
            self.shown.real += real
            self.shown.made_up += longest * len(asked) - real

        def draw(like: Tensor, probability: float) -> Tensor:
            masks = []
            for one, question in zip(asked, questions, strict=True):
                assert question.draws is not None
                torch.set_rng_state(question.draws)
                kept = torch.empty_like(like[: len(one.inputs)]).bernoulli_(1 - probability)
                question.draws = torch.get_rng_state()
                masks.append(F.pad(kept, (0, 0) * (like.ndim - 1) + (0, longest - len(kept))))
            return torch.stack(masks)

        tensors, leaves = self.tensors(lanes, differentiated)
        go = Pass(len(asked), tensors, training, draw)
        with torch.autocast(self.rows.device.type, torch.bfloat16) if first.half else nullcontext():
            x = to_stack([one.inputs for one in asked], longest)
            if first.through != "rest":
                x = self.form.encode(go, x)
            outputs = Outputs(x, x, None, x) if first.through == "encoder" else self.form.from_features(go, x)
        return outputs.to(self.rows) if first.half else outputs, leaves

    def differentiate(self, loss: BatchedLoss, asked: Sequence[Whole], questions: Sequence[Question]) -> Tensor:
        """The losses ``(K,)`` of neighbours; their gradients are then those of their rows.

        Raises:
            ForOneClient: the loss cannot be batched; nothing was changed.
        """
        first, batches = asked[0], [one.batch for one in asked]
        ready = loss.ready(batches)
        through: Through = "rest" if first.batch.cached else "net"
        lanes = slice(first.lane.number, first.lane.number + len(asked))
        buffers = [(span, self.rows[lanes, span].clone()) for span in self._buffers]
        draws, shown_before = [question.draws for question in questions], replace(self.shown)
        views = []
        for shown in zip(*(batch.views for batch in batches), strict=True):
            passes = [Asked(one.lane, x, through, one.mode, one.half) for one, x in zip(asked, shown, strict=True)]
            outputs, leaves = self.pass_through(passes, questions)
            views.append(outputs)
        try:
            losses = loss(batches, views, ready)
        except ForOneClient:
            for span, values in buffers:
                self.rows[lanes, span] = values
            for question, state in zip(questions, draws, strict=True):
                question.draws = state
            self.shown.take()
            self.shown.add(shown_before)
            raise
        gradients = torch.autograd.grad(losses.sum(), [leaf for leaf, _ in leaves], allow_unused=True)
        for (_, place), gradient in zip(leaves, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                place.copy_(gradient)
        return losses.detach()
