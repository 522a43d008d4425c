"""What a local update offers to objectives, each against plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, LocalUpdate, Loss
from fedpriv.methods.base import phase
from fedpriv.objectives import Objective
from fedpriv.objectives.cross_entropy import PLAIN, cross_entropy
from fedpriv.seeding import generator
from fedpriv.simulation.simulation import Simulation

Simulate = Callable[..., Simulation]


def update_of(simulation: Simulation, client: int = 0, round: int = 1) -> ModelLocalUpdate:
    fed = simulation.federation
    fed.resident.row.copy_(fed.initial)
    return ModelLocalUpdate(fed.resident, fed.data.train(client), fed.config, round, client, {}, {}, True, augment=fed.augment)


def batches(update: ModelLocalUpdate, size: int, epochs: int) -> list[Tensor]:
    """The positions of the samples of each step, as the local update's first phase draws them."""
    draw = generator(update.config.seed, update.round, update.client, "train", 1, "shuffle")
    return [part for _ in range(epochs) for part in torch.split(torch.randperm(update.num_examples, generator=draw), size)]


def by_hand(
    simulation: Simulation, update: ModelLocalUpdate, optimiser: Callable[[Any], torch.optim.Optimizer], parts: list[Tensor]
) -> Tensor:
    """The row after plain torch steps on the parts; ``optimiser`` gets the weights and the biases."""
    fed = simulation.federation
    net = copy.deepcopy(fed.resident.net)
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()
        parameter.grad = None
        parameter.requires_grad_(True)
    weights = [p for p in net.parameters() if p.ndim > 1]
    biases = [p for p in net.parameters() if p.ndim < 2]
    steps = optimiser((weights, biases))
    net.train()
    for part in parts:
        steps.zero_grad()
        F.cross_entropy(net(update.inputs[part]).logits, update.labels[part]).backward()
        steps.step()
    return fed.resident.space.row_of(net)


@pytest.mark.parametrize(
    ("overrides", "optimiser"),
    [
        ({}, lambda p: torch.optim.SGD([{"params": p[0], "weight_decay": 1e-4}, {"params": p[1]}], lr=0.05, momentum=0.5)),
        (
            {"train.optimizer": "adam", "train.lr": 1e-3},
            lambda p: torch.optim.Adam([{"params": p[0], "weight_decay": 1e-4}, {"params": p[1]}], lr=1e-3),
        ),
    ],
    ids=["sgd", "adam"],
)
def test_the_optimisers_are_torchs(simulate: Simulate, overrides: dict[str, Any], optimiser: Any) -> None:
    simulation = simulate("fedavg", play=False, **{"train.batch_size": 32, **overrides})
    update = update_of(simulation)
    expected = by_hand(simulation, update, optimiser, batches(update, 32, 2))
    update.train(phase(epochs=2), cross_entropy)
    assert torch.allclose(update.row, expected, atol=2e-6)
    assert update.steps == len(batches(update, 32, 2))


def test_a_gradient_is_clipped_as_torch_clips_it(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"train.clip_grad_norm": 0.3, "train.momentum": 0.0, "train.weight_decay": 0.0})
    update = update_of(simulation)
    before = update.row.clone()
    update.train(phase(epochs=1, steps=1), cross_entropy)
    assert float((update.row - before).norm()) == pytest.approx(0.3 * 0.05, rel=1e-4)
    free = update_of(simulate("fedavg", play=False, **{"train.momentum": 0.0, "train.weight_decay": 0.0}))
    free.train(phase(epochs=1, steps=1), cross_entropy)
    assert float((free.row - before).norm()) > 0.3 * 0.05


def test_the_learning_rate_decays_by_round_and_a_phase_may_have_its_own(simulate: Simulate) -> None:
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0}
    decayed = update_of(simulate("fedavg", play=False, **plain, **{"train.lr_decay": 0.5}), round=3)
    decayed.train(phase(epochs=1, steps=1), cross_entropy)
    own = update_of(simulate("fedavg", play=False, **plain), round=3)
    own.train(phase(epochs=1, steps=1, lr=0.05 / 4), cross_entropy)
    assert torch.equal(decayed.row, own.row)
    assert not torch.equal(own.row, own.start)


@pytest.mark.parametrize(("steps", "epochs"), [(3, 1), (13, 3)])
def test_so_many_steps_whatever_the_epochs(simulate: Simulate, steps: int, epochs: int) -> None:
    """A client with little data goes through it more often, one with much stops within an epoch."""
    simulation = simulate("fedavg", play=False, **{"train.batch_size": 10})
    update = update_of(simulation)
    update.train(phase(epochs=1, steps=steps), cross_entropy)
    assert update.steps == steps
    expected = by_hand(
        simulation,
        again := update_of(simulation),
        lambda p: torch.optim.SGD([{"params": p[0], "weight_decay": 1e-4}, {"params": p[1]}], lr=0.05, momentum=0.5),
        batches(again, 10, epochs)[:steps],
    )
    update = update_of(simulation)
    update.train(phase(epochs=1, steps=steps), cross_entropy)
    assert torch.allclose(update.row, expected, atol=2e-6)


def test_small_batches_are_skipped_where_asked(simulate: Simulate) -> None:
    size = update_of(simulate("fedavg", play=False)).num_examples
    for smallest, steps in ((1, 2), (2, 1)):
        update = update_of(simulate("fedavg", play=False, **{"train.batch_size": size - 1, "train.min_batch": smallest}))
        update.train(phase(epochs=1), cross_entropy)
        assert update.steps == steps


def test_a_client_without_a_whole_batch_stays_as_it_is(simulate: Simulate) -> None:
    uneven = {"data.clients": 3, "data.partition.name": "dirichlet", "data.partition.alpha": 0.3, "data.partition.seed": 3}
    for stretch in (phase(epochs=2), phase(epochs=1, steps=3)):
        few_train = {**uneven, "train.participation": 1.0, "train.batch_size": 600, "train.min_batch": 200}
        simulation = simulate("fedavg", play=False, **few_train)
        sizes = simulation.federation.data.sizes
        update = update_of(simulation, min(sizes, key=lambda client: sizes[client]))
        update.train(stretch, cross_entropy)
        assert (
            update.untrained
            and update.steps == 0
            and torch.equal(update.row, update.start)
            and update.mean_loss != update.mean_loss
        )


def test_the_full_gradient_and_the_accuracy(simulate: Simulate) -> None:
    update = update_of(simulate("fedavg", play=False))
    net, space = update.model.net, update.model.space
    net.eval()
    wanted = torch.autograd.grad(
        F.cross_entropy(net(update.inputs).logits, update.labels), [p.requires_grad_(True) for p in net.parameters()]
    )
    flat = space.pack(dict(zip([n for n, _ in net.named_parameters()], wanted, strict=True)), torch.zeros(space.size))
    assert torch.allclose(update.gradient(), flat, atol=1e-6)
    assert torch.allclose(update.gradient("sum"), flat * update.num_examples, atol=1e-4)
    assert update.accuracy() == float((net(update.inputs).logits.argmax(1) == update.labels).double().mean())
    assert torch.equal(update.row, update.start)


class TwoModels(Objective):
    """The companion learns on the same batches as the model; the model only looks at it."""

    uses_companion = True

    def __init__(self) -> None:
        self.looks: list[Tensor] = []

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        other = update.companion
        value = loss(batch.forward(other))
        other.backward(value)
        other.descend()
        self.looks.append(batch.forward_no_grad(other).logits)
        return value.detach()


def test_a_companion_learns_as_the_model_would_and_leaves_it_alone(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False)
    alone = update_of(simulation)
    alone.train(phase(epochs=2), cross_entropy)
    learned = alone.row.clone()
    update, two = update_of(simulation), TwoModels()
    update.train(phase(epochs=2), cross_entropy, two)
    assert torch.equal(update.row, update.start)
    assert torch.equal(update.model.companion.row, learned)
    assert not two.looks[0].requires_grad
    fresh = update_of(simulation)  # the next client's companion starts from its own start
    fresh.train(phase(epochs=1, steps=1), cross_entropy, TwoModels())
    assert not torch.equal(fresh.model.companion.row, learned)


def test_a_look_leaves_the_running_statistics_as_they_were(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"model.name": "resnet9_narrow", "train.batch_size": 32})
    buffers = simulation.federation.resident.space.select(["encoder"])
    seen: list[bool] = []

    class Looking(Objective):
        def __init__(self) -> None:
            """No options."""

        def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
            before = update.row.clone()
            batch.forward_no_grad(update.learner)
            seen.append(torch.equal(update.row, before))
            return PLAIN.step(update, batch, loss)

    update = update_of(simulation)
    update.train(phase(epochs=1, steps=2), cross_entropy, Looking())
    assert seen == [True, True] and any("running_mean" in name for name in buffers)
    moved = update.state([name for name in buffers if "running_mean" in name])
    assert any(float(value.abs().sum()) > 0 for value in moved.values())


def test_a_batch_in_parts(simulate: Simulate) -> None:
    class Parts(Objective):
        batches_per_step = 3

        def __init__(self) -> None:
            self.sizes: list[list[int]] = []

        def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
            steps = [part.forward(update.learner) for part in batch.split(3)]
            self.sizes.append([len(step.labels) for step in steps])
            return loss(steps[0]).detach()

    how = Parts()
    update = update_of(simulate("fedavg", play=False, **{"train.batch_size": 10}))
    update.train(phase(epochs=1), cross_entropy, how)
    assert how.sizes[0] == [10, 10, 10]
    assert sum(map(sum, how.sizes)) == update.num_examples and max(how.sizes[-1]) - min(how.sizes[-1]) <= 1


def test_a_batch_of_one_with_batch_norm_is_said_or_skipped(simulate: Simulate) -> None:
    net = {"data.limit": 300, "model.name": "resnet9_narrow", "model.projection": 8, "model.predictor": 4, "train.rounds": 1}
    sizes = simulate("fedavg", play=False, **net).federation.data
    odd = {"train.batch_size": sizes.size(0) - 1, "train.participation": 1.0, **net}
    with pytest.raises(UsageError, match=r"batch of 1, and BatchNorm.*train\.min_batch=2"):
        simulate("fedavg", **odd)
    skipped = simulate("fedavg", **odd, **{"train.min_batch": 2})
    assert torch.isfinite(skipped.state.row).all()
