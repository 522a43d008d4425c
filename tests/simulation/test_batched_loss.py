"""A loss of several clients at once is each client's own, whichever way it is taken."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.interfaces import Step
from fedpriv.models.net import Outputs
from fedpriv.simulation.vectorized import batched_loss
from fedpriv.simulation.vectorized.batched_loss import BatchedLoss, ForOneClient

CLIENTS, SAMPLES, CLASSES = 3, 5, 4
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
    "loss", [plain, smoothed, scaled, with_a_term, by_label, of_other_labels, a_sum], ids=lambda loss: loss.__name__
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


def test_nothing_but_a_cross_entropy_needs_no_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(batched_loss, "vmap", lambda function: taken.append(function) or torch.func.vmap(function))
    for loss, by_vmap in ((plain, False), (with_a_term, True)):
        taken.clear()
        BatchedLoss(loss)(*batches_and_views(), {})
        assert bool(taken) == by_vmap


def test_a_cross_entropy_of_anything_but_labels_is_for_one_client_at_a_time() -> None:
    with pytest.raises(ForOneClient):
        BatchedLoss(lambda step: F.cross_entropy(step.outputs.logits, step.outputs.logits))(*batches_and_views(), {})


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
