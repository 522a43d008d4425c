"""K clients' models as one net: their states are the rows of a matrix, and what they ask for is done for all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.models.net import Outputs
from fedpriv.models.stacked import Form, Pass, to_stack
from fedpriv.parameters import ParameterSpace
from fedpriv.parts import Batch, Learner, Loss
from fedpriv.samples import Inputs, split
from fedpriv.simulation.batched_loss import BatchedLoss, ForOneClient
from fedpriv.simulation.client_model import ClientModel, Descent
from fedpriv.simulation.learner import ModelLearner, TurnBatch
from fedpriv.simulation.rendezvous import Question, Rendezvous

MOST_PADDING = 0.15
"""Share of a pass's samples that may be made up so that shorter batches go along with longer ones."""
LANE_CHUNK = 32
"""Samples per client and pass without gradient; K times as many go through together."""

T = TypeVar("T")
Roles = frozenset[str]
Leaves = list[tuple[Tensor, Tensor]]
Through = Literal["encoder", "rest", "net"]
"""The stretch of the net that a pass goes through."""


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


class Stack:
    """The matrix and the passes of K clients of one net.

    Attributes:
        rows, grads: ``(K, p)``, state and gradient of each client; clients with more samples come first, so that those who
            still have batches are neighbours.
        counted: samples that went through in training, and those that were made up.
    """

    def __init__(self, form: Form, space: ParameterSpace, clients: int, like: Tensor) -> None:
        self.form, self.space = form, space
        self.rows = like.new_zeros(clients, space.size)
        self.grads = torch.zeros_like(self.rows)
        self.velocity: Tensor | None = None
        self.counted = [0, 0]
        self.meeting: Rendezvous[object] = Rendezvous([_go_back, _step, _train, _differentiate, _look], form.draws)
        self.lanes = [Lane(self, number) for number in range(clients)]
        self._tensors: dict[tuple[int, int, Roles], tuple[dict[str, Tensor], Leaves]] = {}
        self._buffers = list(space.spans(entry.name for entry in space.entries if entry.kind == "buffer"))
        self.losses: dict[tuple[object, ...], BatchedLoss] = {}
        self.for_one: set[tuple[object, ...]] = set()
        """The kinds of losses that are for one client at a time."""
        self._others: dict[str, Stack] = {}

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
            self.counted = [self.counted[0] + real, self.counted[1] + longest * len(asked) - real]

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
        go = Pass(len(asked), tensors, training.__contains__, draw)
        with torch.autocast(self.rows.device.type, torch.bfloat16) if first.half else nullcontext():
            x = to_stack([one.inputs for one in asked], longest)
            if first.through != "rest":
                x = self.form.encode(go, x)
            outputs = Outputs(x, x, None, x) if first.through == "encoder" else self.form.from_features(go, x)
        return outputs.to(self.rows) if first.half else outputs, leaves

    def differentiate(self, asked: Sequence[Whole], questions: Sequence[Question]) -> Tensor:
        """The losses ``(K,)`` of neighbours; their gradients are then those of their rows.

        Raises:
            ForOneClient: the loss cannot be batched; nothing was changed.
        """
        first, batches = asked[0], [one.batch for one in asked]
        loss = self.losses.setdefault(BatchedLoss.kind(first.loss, first.batch), BatchedLoss(first.loss))
        ready = loss.ready(batches)
        through: Through = "rest" if first.batch.cached else "net"
        lanes = slice(first.lane.number, first.lane.number + len(asked))
        buffers = [(span, self.rows[lanes, span].clone()) for span in self._buffers]
        draws = [question.draws for question in questions]
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
            raise
        gradients = torch.autograd.grad(losses.sum(), [leaf for leaf, _ in leaves], allow_unused=True)
        for (_, place), gradient in zip(leaves, gradients, strict=True):
            if gradient is None:
                place.zero_()
            else:
                place.copy_(gradient)
        return losses.detach()


class Lane(ClientModel):
    """A client's place in a stack."""

    def __init__(self, stack: Stack, number: int) -> None:
        super().__init__(stack.space, stack.rows[number], stack.grads[number])
        self.stack, self.number = stack, number
        self.open: list[Shared] = []
        """Forward passes that it may go back through."""
        self._mode: tuple[Roles, Roles] = (frozenset(), frozenset())

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return Parameters(self)

    @property
    def own(self) -> tuple[dict[str, Tensor], Leaves]:
        """As :meth:`Stack.tensors`, of this lane alone."""
        return self.stack.tensors(slice(self.number, self.number + 1), self._mode[1])

    @property
    def frozen(self) -> Lane:
        return self.stack.other("frozen").lanes[self.number]

    @property
    def companion(self) -> Lane:
        return self.stack.other("companion").lanes[self.number]

    def set_trained(self, roles: Roles, differentiated: Roles | None = None) -> None:
        self._mode = (roles & self.roles, roles if differentiated is None else differentiated)

    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        return self._ask(inputs, "rest" if from_features else "net", half)

    def backward(self, value: Tensor, add: bool = False) -> None:
        self.stack.meeting.ask(_go_back, Back(self, value, add))

    def differentiate(self, batch: Batch, loss: Loss, learner: Learner) -> Tensor | None:
        assert isinstance(batch, TurnBatch) and isinstance(learner, ModelLearner)
        given: Tensor | None = self.stack.meeting.ask(_differentiate, Whole(self, batch, loss, self._mode, learner.half))
        return given

    @torch.no_grad()
    def features(self, inputs: Inputs) -> Tensor:
        self.set_trained(frozenset())
        return torch.cat([self._ask(chunk, "encoder").features for chunk in split(inputs, LANE_CHUNK)])

    @torch.no_grad()
    def from_features(self, features: Tensor) -> Outputs:
        self.set_trained(frozenset())
        return self._ask(features, "rest")

    def shaped(self, inputs: Inputs) -> Inputs:
        return inputs

    def _ask(self, inputs: Inputs, through: Through, half: bool = False) -> Outputs:
        assert isinstance(inputs, Tensor)
        answer = _train if self._mode[0] else _look
        given: Outputs = self.stack.meeting.ask(answer, Asked(self, inputs, through, self._mode, half))
        return given

    def _sgd(self, parts: Sequence[tuple[slice, float]], lr: float, momentum: float) -> LaneSGD:
        return LaneSGD(self, tuple(parts), lr, momentum)


class Parameters(Mapping[str, Tensor]):
    """A lane's parameters ``(*shape)``; as views with gradient only where somebody looks, which hardly any loss does."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._names = [entry.name for entry in lane.space.entries if entry.kind != "buffer"]

    def __getitem__(self, name: str) -> Tensor:
        tensors, leaves = self._lane.own
        self._lane.open.append(Shared(leaves, {id(self._lane)}))
        return tensors[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass
class LaneSGD(Descent):
    """A client's ``torch.optim.SGD``, whose steps are taken together with the others'."""

    lane: Lane
    parts: tuple[tuple[slice, float], ...]
    lr: float
    momentum: float
    param_groups: list[dict[str, float]] = field(init=False)

    def __post_init__(self) -> None:
        self.param_groups = [{"lr": self.lr}]
        if self.momentum:
            stack = self.lane.stack
            if stack.velocity is None:
                stack.velocity = torch.zeros_like(stack.rows)
            stack.velocity[self.lane.number].zero_()

    def step(self) -> None:
        self.lane.stack.meeting.ask(_step, self)

    def kind(self) -> tuple[object, ...]:
        """What steps must agree in to be one."""
        return id(self.lane.stack), str(self.parts), self.param_groups[0]["lr"], self.momentum


# --- what is answered, in the order in which it is heard ---------------------------------------------------------------


def _go_back(questions: Sequence[Question]) -> list[None]:
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


def _step(questions: Sequence[Question]) -> list[None]:
    """A step of SGD of all who ask, on the rows of neighbours at once (as ``resident.FlatSGD`` on one)."""
    asked: list[LaneSGD] = [question.content for question in questions]
    with torch.no_grad():
        for run in _neighbours(asked, LaneSGD.kind, lambda one: one.lane.number):
            first = run[0]
            stack, lanes, lr = (
                first.lane.stack,
                slice(first.lane.number, first.lane.number + len(run)),
                first.param_groups[0]["lr"],
            )
            for span, decay in first.parts:
                values, grad = stack.rows[lanes, span], stack.grads[lanes, span]
                if decay:
                    grad = grad.add(values, alpha=decay)
                if first.momentum:
                    assert stack.velocity is not None
                    grad = stack.velocity[lanes, span].mul_(first.momentum).add_(grad)
                values.add_(grad, alpha=-lr)
    return [None] * len(questions)


def _train(questions: Sequence[Question]) -> list[Outputs]:
    """The forward passes of all who ask, neighbours with batches of about the same length at once."""
    return _forward(questions)


def _differentiate(questions: Sequence[Question]) -> list[Tensor | None]:
    """Loss and gradient of all who ask, neighbours with batches of the same length at once; ``None``: each by itself."""
    answers: dict[int, Tensor | None] = dict.fromkeys(map(id, questions))
    for run in _neighbours(questions, lambda q: q.content.kind(), lambda q: q.content.lane.number):
        stack, kind = run[0].content.lane.stack, run[0].content.kind()
        if len(run) == 1 or kind in stack.for_one:
            continue
        with torch.enable_grad():
            try:
                losses = stack.differentiate([question.content for question in run], run)
            except ForOneClient as error:
                if error.always:
                    stack.for_one.add(kind)
                continue
        answers.update(zip(map(id, run), losses.unbind(), strict=True))
    return [answers[id(question)] for question in questions]


def _look(questions: Sequence[Question]) -> list[Outputs]:
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
