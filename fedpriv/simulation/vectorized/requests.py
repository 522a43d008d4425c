"""What the clients of a stack ask for, and how all who ask for the same are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor

from fedpriv.client.learner import TurnBatch
from fedpriv.interfaces import Loss
from fedpriv.models.net import Outputs
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, ForOneClient
from fedpriv.simulation.vectorized.scheduler import Question

if TYPE_CHECKING:
    from fedpriv.simulation.vectorized.lane import Lane, LaneSGD
    from fedpriv.simulation.vectorized.stack import Stack

MOST_PADDING = 0.15
"""Share of a pass's samples that may be made up so that shorter batches go along with longer ones."""

T = TypeVar("T")
Roles = frozenset[str]
Leaves = list[tuple[Tensor, Tensor]]
"""What has a gradient, and its place in the rows' gradients."""
Through = Literal["encoder", "rest", "net"]
"""The stretch of the net that a pass goes through."""


@dataclass
class Shown:
    """Samples that went through nets in training where clients train together: real ones, and those that filled up batches."""

    real: int = 0
    made_up: int = 0

    def take(self) -> Shown:
        """What was counted so far; from here on it counts anew."""
        taken = Shown(self.real, self.made_up)
        self.real = self.made_up = 0
        return taken

    def add(self, more: Shown) -> None:
        """Count what another has counted."""
        self.real += more.real
        self.made_up += more.made_up

    @property
    def padding(self) -> float | None:
        """Share of the made-up ones; ``None``: nobody trained together."""
        return self.made_up / (self.real + self.made_up) if self.real else None


@dataclass
class Shared:
    """A forward pass of several clients, whose graph lives until all of them have gone back through it.

    Attributes:
        leaves: what has a gradient, with the part of the rows' gradients that is its own.
        pending: the clients that have not gone back.
    """

    leaves: Leaves
    pending: set[int]


@dataclass(frozen=True)
class Asked:
    """A client's pass through the net.

    Attributes:
        mode: the roles in training mode, and those with gradient.
    """

    lane: Lane
    inputs: Tensor
    through: Through
    mode: tuple[Roles, Roles]
    half: bool

    def kind(self, grad: bool) -> tuple[object, ...]:
        """What passes must agree in to be one."""
        return id(self.lane.stack), self.through, self.mode, self.half, grad, self.inputs.shape[1:], self.inputs.dtype


@dataclass(frozen=True)
class Whole:
    """A client's pass to the loss and back."""

    lane: Lane
    batch: TurnBatch
    loss: Loss
    mode: tuple[Roles, Roles]
    half: bool

    def kind(self) -> tuple[object, ...]:
        """What these must agree in to be one."""
        return id(self.lane.stack), self.mode, self.half, *BatchedLoss.kind(self.loss, self.batch)


@dataclass(frozen=True)
class Back:
    """A client's way back from a scalar."""

    lane: Lane
    value: Tensor
    add: bool


def go_back(questions: Sequence[Question]) -> list[None]:
    """The gradients of all who ask, in one sweep."""
    asked: list[Back] = [question.content for question in questions]
    asking = {id(back.lane) for back in asked}
    passes = {id(shared): shared for back in asked for shared in back.lane.open}
    for shared in passes.values():
        shared.pending -= asking
    for back in asked:
        back.lane.open.clear()
        if not back.add:
            back.lane.grad.zero_()
    leaves = {id(leaf): (leaf, place) for shared in passes.values() for leaf, place in shared.leaves}
    with torch.enable_grad():
        gradients = torch.autograd.grad(
            [back.value for back in asked],
            [leaf for leaf, _ in leaves.values()],
            retain_graph=any(shared.pending for shared in passes.values()),  # a graph is kept for clients who are elsewhere
            allow_unused=True,
        )
    for (_, place), gradient in zip(leaves.values(), gradients, strict=True):
        if gradient is not None:
            place.add_(gradient)
    return [None] * len(questions)


def step(questions: Sequence[Question]) -> list[None]:
    """A step of SGD of all who ask, on the rows of neighbours at once (as ``resident.FlatSGD`` on one)."""
    asked: list[LaneSGD] = [question.content for question in questions]
    with torch.no_grad():
        for run in _neighbours(asked, lambda one: one.kind, lambda one: one.lane.number):
            first = run[0]
            stack, lr = first.lane.stack, first.param_groups[0]["lr"]
            lanes = slice(first.lane.number, first.lane.number + len(run))
            for span, decay in first.parts:
                values, grad = stack.rows[lanes, span], stack.grads[lanes, span]
                if decay:
                    grad = grad.add(values, alpha=decay)
                if first.momentum:
                    grad = stack.velocity[lanes, span].mul_(first.momentum).add_(grad)
                values.add_(grad, alpha=-lr)
    return [None] * len(questions)


def train(questions: Sequence[Question]) -> list[Outputs]:
    """The forward passes of all who ask, neighbours with batches of about the same length at once."""
    return _forward(questions)


def differentiate(questions: Sequence[Question]) -> list[Tensor | None]:
    """Loss and gradient of all who ask, neighbours with batches of the same length at once; ``None``: each by itself."""
    answers: dict[int, Tensor | None] = dict.fromkeys(map(id, questions))
    for run in _neighbours(questions, lambda q: q.content.kind(), lambda q: q.content.lane.number):
        if len(run) == 1:
            continue
        first: Whole = run[0].content
        stack, kind = first.lane.stack, first.kind()
        if kind not in stack.losses:
            stack.losses[kind] = BatchedLoss(first.loss)
        if (loss := stack.losses[kind]) is None:
            continue
        with torch.enable_grad():
            try:
                losses = stack.differentiate(loss, [question.content for question in run], run)
            except ForOneClient as error:
                if error.always:
                    stack.losses[kind] = None
                continue
        answers.update(zip(map(id, run), losses.unbind(), strict=True))
    return [answers[id(question)] for question in questions]


def look(questions: Sequence[Question]) -> list[Outputs]:
    """The same in evaluation mode. Apart, as it is not asked for in every step: whoever looks waits for those who train."""
    return _forward(questions)


def _forward(questions: Sequence[Question]) -> list[Outputs]:
    answers: dict[int, Outputs] = {}
    for run in _neighbours(questions, lambda q: q.content.kind(q.grad), lambda q: q.content.lane.number):
        stack: Stack = run[0].content.lane.stack
        exact = any(role in stack.form.mixes for role in run[0].content.mode[0])
        with torch.set_grad_enabled(run[0].grad):
            for together in _of_like_length(run, exact):
                asked = [question.content for question in together]
                outputs, leaves = stack.pass_through(asked, together)
                if run[0].grad:
                    shared = Shared(leaves, {id(one.lane) for one in asked})
                    for one in asked:
                        one.lane.open.append(shared)
                apart = _apart(outputs, [len(one.inputs) for one in asked])
                answers.update(zip(map(id, together), apart, strict=True))
    return [answers[id(question)] for question in questions]


def _neighbours(asked: Sequence[T], kind: Callable[[T], tuple[object, ...]], place: Callable[[T], int]) -> Iterator[list[T]]:
    """Those of the same kind whose places follow each other."""
    kinds: dict[tuple[object, ...], list[T]] = {}
    for one in asked:
        kinds.setdefault(kind(one), []).append(one)
    for alike in kinds.values():
        alike.sort(key=place)
        for _, run in groupby(enumerate(alike), lambda pair: place(pair[1]) - pair[0]):
            yield [one for _, one in run]


def _of_like_length(run: Sequence[Question], exact: bool) -> Iterator[list[Question]]:
    """Neighbours whose batches, filled up to the longest, are padded by no more than :data:`MOST_PADDING`; if exact, by none."""
    together: list[Question] = []
    real = 0
    for question in run:
        lengths = [len(one.content.inputs) for one in (*together, question)]
        padded = max(lengths) * len(lengths)
        fits = min(lengths) == max(lengths) or (not exact and padded - real - lengths[-1] <= MOST_PADDING * padded)
        if together and not fits:
            yield together
            together, real = [], 0
        together.append(question)
        real += lengths[-1]
    yield together


def _apart(outputs: Outputs, lengths: Sequence[int]) -> list[Outputs]:
    """Each client's own part ``(B_k, ...)`` of stacked outputs ``(K, B, ...)``."""
    cut: dict[int, list[Tensor]] = {}
    for tensor in (outputs.features, outputs.projection, outputs.prediction, outputs.logits):
        if tensor is not None and id(tensor) not in cut:
            parts = tensor.unbind(0)
            cut[id(tensor)] = [part[:length] if length < len(part) else part for part, length in zip(parts, lengths, strict=True)]

    def own(tensor: Tensor, client: int) -> Tensor:
        return cut[id(tensor)][client]

    return [
        Outputs(
            own(outputs.features, k),
            own(outputs.projection, k),
            None if outputs.prediction is None else own(outputs.prediction, k),
            own(outputs.logits, k),
        )
        for k in range(len(lengths))
    ]


HEARD = (go_back, step, train, differentiate, look)
"""In this order: what is asked in every step first, so that nobody runs ahead of the others."""
