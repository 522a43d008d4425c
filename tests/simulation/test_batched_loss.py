"""A loss of several clients at once is each client's own, whichever way it is taken."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.config import load_config
from fedpriv.errors import FedprivError
from fedpriv.interfaces import Step, is_stackable, stackable
from fedpriv.models.net import Outputs
from fedpriv.objectives.cross_entropy import Plain, cross_entropy
from fedpriv.simulation.setup import build
from fedpriv.simulation.vectorized import batched_loss
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, NotBatchable

CLIENTS, SAMPLES, CLASSES = 3, 5, 4
SMALL = {"data.name": "digits", "data.clients": 4, "model.name": "mlp2", "model.projection": 8, "tracking.uri": "none"}
Loss = Callable[[Step], Tensor]


def batches_and_views() -> tuple[list[Any], list[Outputs]]:
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn((CLIENTS, SAMPLES, *shape), generator=draw, dtype=torch.float64, requires_grad=True)

    labels = torch.randint(CLASSES, (CLIENTS, SAMPLES), generator=draw)
    facts = {"received": {"centre": torch.ones(2, dtype=torch.float64)}, "memo": {}, "trains": frozenset({"head"})}
    return [SimpleNamespace(labels=own, **facts) for own in labels], [Outputs(random(2), random(2), None, random(CLASSES))]


def no_teacher(name: str) -> Outputs:
    raise KeyError(name)


def plain(step: Step) -> Tensor:
    return F.cross_entropy(step.outputs.logits, step.labels)


def by_keyword(step: Step) -> Tensor:
    return F.cross_entropy(step.outputs.logits, target=step.labels)


def of_shares(step: Step) -> Tensor:
    return F.cross_entropy(step.outputs.logits, step.outputs.logits.detach().softmax(1))


def of_columns(step: Step) -> Tensor:
    """One sample whose "pixels" are the batch's."""
    return F.cross_entropy(step.outputs.logits.T[None], step.labels[None])


@stackable
def margins(step: Step) -> Tensor:
    """Declared, and no cross-entropy."""
    own = step.outputs.logits.gather(-1, step.labels[..., None]).squeeze(-1)
    return (step.outputs.logits.logsumexp(-1) - own).square().mean(-1)


def smoothed(step: Step) -> Tensor:
    return F.cross_entropy(step.outputs.logits, step.labels, label_smoothing=0.1)


def scaled(step: Step) -> Tensor:
    return 0.5 * F.cross_entropy(step.outputs.logits, step.labels)


def with_a_term(step: Step) -> Tensor:
    return plain(step) + ((step.outputs.projection - step.received["centre"]) ** 2).mean()


def by_label(step: Step) -> Tensor:
    return torch.where(step.labels == 1, step.outputs.logits[:, 0], 0.0).sum() + plain(step)


def of_other_labels(step: Step) -> Tensor:
    return F.cross_entropy(step.outputs.logits, (step.labels + 1) % CLASSES)


def a_sum(step: Step) -> Tensor:
    return F.cross_entropy(step.outputs.logits, step.labels, reduction="sum")


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        margins,
        plain,
        by_keyword,
        of_shares,
        of_columns,
        smoothed,
        scaled,
        with_a_term,
        by_label,
        of_other_labels,
        a_sum,
    ],
    ids=lambda loss: loss.__name__,
)
def test_the_losses_and_their_gradients_are_those_of_each_client_alone(loss: Loss) -> None:
    batches, views = batches_and_views()
    together = BatchedLoss(loss)
    for _ in range(2):  # what was learnt about the loss the first time holds the second time
        losses = together(batches, views, {})
        (gradient,) = torch.autograd.grad(losses.sum(), views[0].logits)
        for client, batch in enumerate(batches):
            logits, projection = (of[client].detach().requires_grad_() for of in (views[0].logits, views[0].projection))
            outputs = Outputs(projection, projection, None, logits)
            own = loss(Step(batch.labels, outputs, {}, batch.received, batch.trains, no_teacher, [outputs]))
            assert torch.allclose(losses[client], own, rtol=1e-12)
            assert torch.allclose(gradient[client], torch.autograd.grad(own, logits)[0], rtol=1e-12, atol=1e-15)


class Declared(Plain):
    """An objective whose loss is declared, and called on itself."""

    @stackable
    def loss(self, step: Step) -> Tensor:
        return margins(step)


class Overridden(Declared):
    def loss(self, step: Step) -> Tensor:
        return 2 * super().loss(step)


@pytest.mark.parametrize(
    ("loss", "by_vmap"),
    [(cross_entropy, False), (margins, False), (Declared().loss, False), (Overridden().loss, True), (plain, True)],
    ids=["cross-entropy", "function", "method", "overridden", "undeclared"],
)
def test_what_is_declared_needs_no_vmap(monkeypatch: pytest.MonkeyPatch, loss: Loss, by_vmap: bool) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(batched_loss, "vmap", lambda function: taken.append(function) or torch.func.vmap(function))
    BatchedLoss(loss)(*batches_and_views(), {})
    assert bool(taken) == by_vmap


def test_a_method_has_the_declaration_of_its_objectives_loss_until_it_changes_it() -> None:
    for name, declared in (("fedavg", True), ("scaffold", True), ("moon", True), ("feddual", False), ("mpfedcon", True)):
        method = build(load_config(None, {**SMALL, "method.name": name})).method
        assert is_stackable(method.local_loss) == declared, name
    for name in ("fedavg", "mpfedcon"):
        replaced = build(load_config(None, {**SMALL, "method.name": name, "objective.name": "adaptive-kl"})).method
        assert not is_stackable(replaced.local_loss), f"{name} adds to a loss that is not declared"


def over_all(step: Step) -> Tensor:
    return -F.log_softmax(step.outputs.logits, -1).gather(-1, step.labels[..., None]).mean()


def over_samples(step: Step) -> Tensor:
    """Softmax along dimension 1: the classes of one client, the samples of several."""
    return -F.log_softmax(step.outputs.logits, 1).gather(-1, step.labels[..., None]).mean((-2, -1))


def with_a_note(step: Step) -> Tensor:
    return cross_entropy(step) + step.memo["note"]


def with_a_norm(step: Step) -> Tensor:
    return cross_entropy(step) + step.parameters["head.weight"].norm()


def with_a_teacher(step: Step) -> Tensor:
    return cross_entropy(step) + (step.outputs.logits * step.teacher("older").logits).mean((-2, -1))


def with_all_teachers(step: Step) -> Tensor:
    return cross_entropy(step) + step.teacher("older").logits.mean()


def taught() -> tuple[list[Any], list[Outputs], Tensor]:
    """As :func:`batches_and_views`, with the logits of a teacher ``(K, B, C)``; its tables have the samples in another order."""
    batches, views = batches_and_views()
    table = torch.randn(CLIENTS, SAMPLES, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(2))
    for own, batch in zip(table, batches, strict=True):
        outputs = Outputs(own, own, None, own)
        batch.teachers, batch.index = SimpleNamespace(known=lambda name, outputs=outputs: outputs, caches=True), order
    return batches, views, table[:, order]


@pytest.mark.parametrize("declared", [True, False])
def test_teachers_are_read_for_all_at_once(declared: bool) -> None:
    batches, views, logits = taught()
    loss = BatchedLoss(stackable(lambda step: with_a_teacher(step)) if declared else with_a_teacher)
    for _ in range(2):
        losses = loss(batches, views, loss.ready(batches))
        for own, batch, alone, other in zip(losses, batches, views[0].logits, logits, strict=True):
            assert torch.allclose(own, F.cross_entropy(alone, batch.labels) + (alone * other).mean())


def test_a_wrong_declaration_of_a_loss_with_teachers_is_an_error() -> None:
    batches, views, _ = taught()
    with pytest.raises(FedprivError, match="with_all_teachers is declared stackable, but it gives several clients other losses"):
        BatchedLoss(stackable(with_all_teachers))(batches, views, {})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (over_all, "gives several clients other losses than each alone"),
        (over_samples, "gives several clients other losses than each alone"),
        (with_a_note, "reads a client's note"),
        (with_a_norm, "reads a client's head.weight"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_declaration_is_an_error(loss: Loss, message: str) -> None:
    with pytest.raises(FedprivError, match=f"the loss {loss.__name__} is declared stackable, but it {message}"):
        BatchedLoss(stackable(loss))(*batches_and_views(), {})


def test_a_loss_that_looks_at_values_is_for_one_client_at_a_time() -> None:
    with pytest.raises(NotBatchable):
        BatchedLoss(lambda step: plain(step) if step.outputs.logits.sum() > 0 else 2 * plain(step))(*batches_and_views(), {})


def test_a_loss_that_gets_a_term_later_has_it() -> None:
    batches, views = batches_and_views()
    round = 1

    def later(step: Step) -> Tensor:
        return plain(step) if round == 1 else with_a_term(step)

    together = BatchedLoss(later)
    assert torch.equal(together(batches, views, {}), BatchedLoss(plain)(batches, views, {}))
    round = 2
    assert torch.equal(together(batches, views, {}), BatchedLoss(with_a_term)(batches, views, {}))
    round = 1
    assert torch.allclose(together(batches, views, {}), BatchedLoss(plain)(batches, views, {}), rtol=1e-12)
