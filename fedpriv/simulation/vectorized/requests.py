"""The requests of clients that are computed as one net, and the handlers that serve all requests of one kind at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedpriv.client.learner import LocalBatch
from fedpriv.client.sgd import SGD, step_together
from fedpriv.interfaces import Loss
from fedpriv.models.batched.layers import Leaf
from fedpriv.models.net import Outputs
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, NotBatchable
from fedpriv.simulation.vectorized.scheduler import Request

if TYPE_CHECKING:
    from fedpriv.simulation.vectorized.batched_client import BatchedClient
    from fedpriv.simulation.vectorized.batched_models import BatchedModels

MAX_PADDING = 0.15
"""Largest share of padding samples in a pass that batches different lengths together."""

Kind = tuple[object, ...]
"""Requests of equal kind can be served as one."""
Roles = frozenset[str]
Leaves = dict[str, Leaf]
"""The leaves of autograd, by name."""
Section = Literal["encoder", "rest", "net"]
"""The section of the net that a pass computes."""


@dataclass
class SampleCount:
    """Training samples processed for several clients at a time: real samples, and the padding of shorter batches."""

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
        """Share of padding samples; ``None``: no sample was processed."""
        return self.padding_samples / (self.real + self.padding_samples) if self.real else None


@dataclass
class SharedPass:
    """A forward pass of several clients; its graph is kept until each of them has run backward.

    Attributes:
        pending: ids of the clients that have not run backward yet.
    """

    leaves: Leaves
    pending: set[int]


@dataclass(frozen=True)
class ForwardPass:
    """A client's forward pass.

    Attributes:
        mode: the roles in training mode, and those with gradient.
    """

    client: BatchedClient
    inputs: Tensor
    section: Section
    mode: tuple[Roles, Roles]
    half: bool

    def kind(self, grad: bool) -> Kind:
        """Passes of equal kind can be batched."""
        return id(self.client.models), self.section, self.mode, self.half, grad, self.inputs.shape[1:], self.inputs.dtype


@dataclass(frozen=True)
class GradientPass:
    """A client's forward pass, loss and gradient.

    Attributes:
        optimiser: takes a step with the gradient; ``None``: no step is taken.
    """

    client: BatchedClient
    batch: LocalBatch
    loss: Loss
    mode: tuple[Roles, Roles]
    half: bool
    optimiser: SGD | None

    def kind(self) -> Kind:
        """Passes of equal kind can be batched."""
        return id(self.client.models), self.mode, self.half, *BatchedLoss.kind(self.loss, self.batch)


@dataclass(frozen=True)
class BackwardPass:
    """A client's backward pass from a scalar."""

    client: BatchedClient
    value: Tensor
    add: bool


def backward(requests: Sequence[Request]) -> list[None]:
    """Run the backward passes of all requests at once."""
    passes: list[BackwardPass] = [request.content for request in requests]
    clients = {id(backward.client) for backward in passes}
    forwards = {id(shared): shared for backward in passes for shared in backward.client.open_passes}
    for shared in forwards.values():
        shared.pending -= clients
    for backward in passes:
        backward.client.open_passes.clear()
        if not backward.add:
            backward.client.grad.zero_()
    leaves = list({id(leaf): leaf for shared in forwards.values() for leaf in shared.leaves.values()}.values())
    with torch.enable_grad():
        gradients = torch.autograd.grad(
            [backward.value for backward in passes],
            [leaf.tensor for leaf in leaves],
            retain_graph=any(shared.pending for shared in forwards.values()),  # other clients have yet to run backward
            allow_unused=True,
        )
    for leaf, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            leaf.gradient.add_(gradient)
    return [None] * len(requests)


def step(requests: Sequence[Request]) -> list[None]:
    """Take an SGD step for all requests."""
    step_together([request.content for request in requests])
    return [None] * len(requests)


def forward_training(requests: Sequence[Request]) -> list[Outputs]:
    """Run the forward passes of all requests in training mode; those of neighbours with batches of similar length at once."""
    return _forward(requests)


def differentiate(requests: Sequence[Request]) -> list[Tensor | None]:
    """Compute loss and gradient, for neighbours with batches of equal length at once, and take the optimisers' steps.

    Returns:
        The loss of each request; ``None``: nothing was done, the client has to compute it alone.
    """
    answers: dict[int, Tensor | None] = dict.fromkeys(map(id, requests))
    for kind, run in _neighbours(requests, [request.content.kind() for request in requests]):
        if len(run) == 1:
            continue
        first: GradientPass = run[0].content
        models = first.client.models
        if kind not in models.losses:
            models.losses[kind] = BatchedLoss(first.loss)
        if (loss := models.losses[kind]) is None:
            continue
        with torch.enable_grad():
            try:
                losses = models.differentiate(loss, [request.content for request in run], run)
            except NotBatchable as error:
                if error.always:
                    models.losses[kind] = None
                continue
        step_together([optimiser for request in run if (optimiser := request.content.optimiser) is not None])
        answers.update(zip(map(id, run), losses.unbind(), strict=True))
    return [answers[id(request)] for request in requests]


def forward_evaluation(requests: Sequence[Request]) -> list[Outputs]:
    """Run the forward passes of all requests in evaluation mode. They are rare, so they wait for the training passes."""
    return _forward(requests)


def _forward(requests: Sequence[Request]) -> list[Outputs]:
    answers: dict[int, Outputs] = {}
    for _, run in _neighbours(requests, [request.content.kind(request.grad) for request in requests]):
        models: BatchedModels = run[0].content.client.models
        exact = any(role in models.form.mixes for role in run[0].content.mode[0])
        with torch.set_grad_enabled(run[0].grad):
            for together in _of_like_length(run, exact):
                passes = [request.content for request in together]
                outputs, leaves = models.forward(passes, together)
                if run[0].grad:
                    shared = SharedPass(leaves, {id(single.client) for single in passes})
                    for single in passes:
                        single.client.open_passes.append(shared)
                by_client = _split_by_client(outputs, [len(single.inputs) for single in passes])
                answers.update(zip(map(id, together), by_client, strict=True))
    return [answers[id(request)] for request in requests]


def _neighbours(requests: Sequence[Request], kinds: Sequence[Kind]) -> Iterator[tuple[Kind, list[Request]]]:
    """Yield runs of requests of one kind by neighbouring clients, with that kind.

    Args:
        requests: in the order of the clients.
        kinds: of the requests.
    """
    alike: dict[Kind, list[Request]] = {}
    for kind, request in zip(kinds, requests, strict=True):
        alike.setdefault(kind, []).append(request)
    for kind, members in alike.items():
        run: list[Request] = []
        for request in members:
            if run and request.content.client.number != run[-1].content.client.number + 1:
                yield kind, run
                run = []
            run.append(request)
        yield kind, run


def _of_like_length(run: Sequence[Request], exact: bool) -> Iterator[list[Request]]:
    """Split a run into parts whose padding to the longest batch is at most :data:`MAX_PADDING`; if ``exact``, without padding."""
    together: list[Request] = []
    real = 0
    for request in run:
        lengths = [len(member.content.inputs) for member in (*together, request)]
        padded = max(lengths) * len(lengths)
        fits = min(lengths) == max(lengths) or (not exact and padded - real - lengths[-1] <= MAX_PADDING * padded)
        if together and not fits:
            yield together
            together, real = [], 0
        together.append(request)
        real += lengths[-1]
    yield together


def _split_by_client(outputs: Outputs, lengths: Sequence[int]) -> list[Outputs]:
    """Split outputs ``(K, B, ...)`` into each client's outputs ``(B_k, ...)``."""
    cut: dict[int, list[Tensor]] = {}
    for tensor in (outputs.features, outputs.projection, outputs.prediction, outputs.logits):
        if tensor is not None and id(tensor) not in cut:
            parts = tensor.unbind(0)
            cut[id(tensor)] = [part[:length] if length < len(part) else part for part, length in zip(parts, lengths, strict=True)]

    def of(client: int) -> Outputs:
        return outputs.map(lambda tensor: cut[id(tensor)][client])

    return [of(client) for client in range(len(lengths))]


PRIORITY = (backward, step, forward_training, differentiate, forward_evaluation)
"""The handlers by priority: requests of every training step come first, which keeps the clients synchronous."""
