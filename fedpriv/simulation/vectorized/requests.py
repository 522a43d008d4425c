"""The requests of a stack's clients, and the handlers that serve all requests of one kind at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor

from fedpriv.client.learner import LocalBatch
from fedpriv.client.sgd import SGD, step_together
from fedpriv.interfaces import Loss
from fedpriv.models.net import Outputs
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, ForOneClient
from fedpriv.simulation.vectorized.scheduler import Request

if TYPE_CHECKING:
    from fedpriv.simulation.vectorized.batched_client import BatchedClient
    from fedpriv.simulation.vectorized.batched_models import BatchedModels

MOST_PADDING = 0.15
"""Largest share of padding samples in a pass that batches different lengths together."""

T = TypeVar("T")
Roles = frozenset[str]
Leaves = list[tuple[Tensor, Tensor]]
"""Leaf tensors of autograd, each with the view of the rows' gradients that it fills."""
Section = Literal["encoder", "rest", "net"]
"""The section of the net that a pass computes."""


@dataclass
class SampleCount:
    """Training samples processed where clients train together: real ones, and the padding of shorter batches."""

    real: int = 0
    padding_samples: int = 0

    def take(self) -> SampleCount:
        """Return the counts and reset them."""
        taken = SampleCount(self.real, self.padding_samples)
        self.real = self.padding_samples = 0
        return taken

    def add(self, more: SampleCount) -> None:
        """Add the counts of another."""
        self.real += more.real
        self.padding_samples += more.padding_samples

    @property
    def padding(self) -> float | None:
        """Share of padding samples; ``None``: no clients trained together."""
        return self.padding_samples / (self.real + self.padding_samples) if self.real else None


@dataclass
class SharedPass:
    """A forward pass of several clients; its graph is kept until each of them has run backward.

    Attributes:
        leaves: leaf tensors, each with its part of the rows' gradients.
        pending: ids of the lanes that have not run backward yet.
    """

    leaves: Leaves
    pending: set[int]


@dataclass(frozen=True)
class ForwardPass:
    """A client's forward pass.

    Attributes:
        mode: the roles in training mode, and those with gradient.
    """

    lane: BatchedClient
    inputs: Tensor
    section: Section
    mode: tuple[Roles, Roles]
    half: bool

    def kind(self, grad: bool) -> tuple[object, ...]:
        """Passes of equal kind can be batched."""
        return id(self.lane.stack), self.section, self.mode, self.half, grad, self.inputs.shape[1:], self.inputs.dtype


@dataclass(frozen=True)
class GradientPass:
    """A client's forward pass, loss and gradient.

    Attributes:
        optimiser: takes a step along the gradient; ``None``: there is more to do with the gradient.
    """

    lane: BatchedClient
    batch: LocalBatch
    loss: Loss
    mode: tuple[Roles, Roles]
    half: bool
    optimiser: SGD | None

    def kind(self) -> tuple[object, ...]:
        """Passes of equal kind can be batched."""
        return id(self.lane.stack), self.mode, self.half, *BatchedLoss.kind(self.loss, self.batch)


@dataclass(frozen=True)
class BackwardPass:
    """A client's backward pass from a scalar."""

    lane: BatchedClient
    value: Tensor
    add: bool


def backward(requests: Sequence[Request]) -> list[None]:
    """Run the backward passes of all requests in one sweep."""
    passes: list[BackwardPass] = [request.content for request in requests]
    lanes = {id(backward.lane) for backward in passes}
    forwards = {id(shared): shared for backward in passes for shared in backward.lane.open_passes}
    for shared in forwards.values():
        shared.pending -= lanes
    for backward in passes:
        backward.lane.open_passes.clear()
        if not backward.add:
            backward.lane.grad.zero_()
    leaves = {id(leaf): (leaf, place) for shared in forwards.values() for leaf, place in shared.leaves}
    with torch.enable_grad():
        gradients = torch.autograd.grad(
            [backward.value for backward in passes],
            [leaf for leaf, _ in leaves.values()],
            retain_graph=any(shared.pending for shared in forwards.values()),  # other clients have yet to run backward
            allow_unused=True,
        )
    for (_, place), gradient in zip(leaves.values(), gradients, strict=True):
        if gradient is not None:
            place.add_(gradient)
    return [None] * len(requests)


def step(requests: Sequence[Request]) -> list[None]:
    """Take an SGD step for all requests."""
    step_together([request.content for request in requests])
    return [None] * len(requests)


def forward_training(requests: Sequence[Request]) -> list[Outputs]:
    """Run the forward passes of all requests in training mode; neighbours with batches of similar length at once."""
    return _forward(requests)


def differentiate(requests: Sequence[Request]) -> list[Tensor | None]:
    """Compute loss and gradient, neighbours with batches of one length at once, and take the steps that come with the requests.

    ``None``: nothing was done, the lane has to do it alone.
    """
    answers: dict[int, Tensor | None] = dict.fromkeys(map(id, requests))
    for run in _neighbours(requests, lambda q: q.content.kind(), lambda q: q.content.lane.number):
        if len(run) == 1:
            continue
        first: GradientPass = run[0].content
        stack, kind = first.lane.stack, first.kind()
        if kind not in stack.losses:
            stack.losses[kind] = BatchedLoss(first.loss)
        if (loss := stack.losses[kind]) is None:
            continue
        with torch.enable_grad():
            try:
                losses = stack.differentiate(loss, [request.content for request in run], run)
            except ForOneClient as error:
                if error.always:
                    stack.losses[kind] = None
                continue
        step_together([one for request in run if (one := request.content.optimiser) is not None])
        answers.update(zip(map(id, run), losses.unbind(), strict=True))
    return [answers[id(request)] for request in requests]


def forward_evaluation(requests: Sequence[Request]) -> list[Outputs]:
    """Run the forward passes of all requests in evaluation mode. They are rare, so they wait for the training passes."""
    return _forward(requests)


def _forward(requests: Sequence[Request]) -> list[Outputs]:
    answers: dict[int, Outputs] = {}
    for run in _neighbours(requests, lambda q: q.content.kind(q.grad), lambda q: q.content.lane.number):
        stack: BatchedModels = run[0].content.lane.stack
        exact = any(role in stack.form.mixes for role in run[0].content.mode[0])
        with torch.set_grad_enabled(run[0].grad):
            for together in _of_like_length(run, exact):
                passes = [request.content for request in together]
                outputs, leaves = stack.forward(passes, together)
                if run[0].grad:
                    shared = SharedPass(leaves, {id(one.lane) for one in passes})
                    for one in passes:
                        one.lane.open_passes.append(shared)
                apart = _apart(outputs, [len(one.inputs) for one in passes])
                answers.update(zip(map(id, together), apart, strict=True))
    return [answers[id(request)] for request in requests]


def _neighbours(items: Sequence[T], kind: Callable[[T], tuple[object, ...]], place: Callable[[T], int]) -> Iterator[list[T]]:
    """Runs of items of one kind at consecutive places."""
    kinds: dict[tuple[object, ...], list[T]] = {}
    for one in items:
        kinds.setdefault(kind(one), []).append(one)
    for alike in kinds.values():
        alike.sort(key=place)
        for _, run in groupby(enumerate(alike), lambda pair: place(pair[1]) - pair[0]):
            yield [one for _, one in run]


def _of_like_length(run: Sequence[Request], exact: bool) -> Iterator[list[Request]]:
    """Split a run so that padding to the longest batch adds at most :data:`MOST_PADDING`; nothing if ``exact``."""
    together: list[Request] = []
    real = 0
    for request in run:
        lengths = [len(one.content.inputs) for one in (*together, request)]
        padded = max(lengths) * len(lengths)
        fits = min(lengths) == max(lengths) or (not exact and padded - real - lengths[-1] <= MOST_PADDING * padded)
        if together and not fits:
            yield together
            together, real = [], 0
        together.append(request)
        real += lengths[-1]
    yield together


def _apart(outputs: Outputs, lengths: Sequence[int]) -> list[Outputs]:
    """Split stacked outputs ``(K, B, ...)`` into each client's ``(B_k, ...)``."""
    cut: dict[int, list[Tensor]] = {}
    for tensor in (outputs.features, outputs.projection, outputs.prediction, outputs.logits):
        if tensor is not None and id(tensor) not in cut:
            parts = tensor.unbind(0)
            cut[id(tensor)] = [part[:length] if length < len(part) else part for part, length in zip(parts, lengths, strict=True)]

    def of(client: int) -> Outputs:
        return outputs.map(lambda tensor: cut[id(tensor)][client])

    return [of(client) for client in range(len(lengths))]


PRIORITY = (backward, step, forward_training, differentiate, forward_evaluation)
"""The handlers, first served first: requests of every training step come first, which keeps the clients in step."""
