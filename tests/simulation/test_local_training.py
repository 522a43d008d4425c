"""What a turn offers to objectives, each against plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.client.turn import Turn
from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, ClientTurn, Loss
from fedpriv.methods.base import phase
from fedpriv.objectives import Objective
from fedpriv.objectives.cross_entropy import PLAIN, cross_entropy
from fedpriv.seeding import generator
from fedpriv.simulation.simulation import Simulation

Simulate = Callable[..., Simulation]


def turn_of(simulation: Simulation, client: int = 0, round: int = 1) -> Turn:
    fed = simulation.federation
    fed.resident.row.copy_(fed.initial)
    return Turn(fed.resident, fed.data.train(client), fed.config, round, client, {}, {}, True, augment=fed.augment)


def batches(turn: Turn, size: int, epochs: int) -> list[Tensor]:
    """The positions of the samples of each step, as the turn's first phase draws them."""
    draw = generator(turn.config.seed, turn.round, turn.client, "train", 1, "shuffle")
    return [part for _ in range(epochs) for part in torch.split(torch.randperm(turn.num_examples, generator=draw), size)]


def by_hand(simulation: Simulation, turn: Turn, optimiser: Callable[[Any], torch.optim.Optimizer], parts: list[Tensor]) -> Tensor:
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
        F.cross_entropy(net(turn.inputs[part]).logits, turn.labels[part]).backward()
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
    turn = turn_of(simulation)
    expected = by_hand(simulation, turn, optimiser, batches(turn, 32, 2))
    turn.train(phase(epochs=2), cross_entropy)
    assert torch.allclose(turn.row, expected, atol=2e-6)
    assert turn.steps == len(batches(turn, 32, 2))


def test_a_gradient_is_clipped_as_torch_clips_it(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"train.clip_grad_norm": 0.3, "train.momentum": 0.0, "train.weight_decay": 0.0})
    turn = turn_of(simulation)
    before = turn.row.clone()
    turn.train(phase(epochs=1, steps=1), cross_entropy)
    assert float((turn.row - before).norm()) == pytest.approx(0.3 * 0.05, rel=1e-4)
    free = turn_of(simulate("fedavg", play=False, **{"train.momentum": 0.0, "train.weight_decay": 0.0}))
    free.train(phase(epochs=1, steps=1), cross_entropy)
    assert float((free.row - before).norm()) > 0.3 * 0.05


def test_the_learning_rate_decays_by_round_and_a_phase_may_have_its_own(simulate: Simulate) -> None:
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0}
    decayed = turn_of(simulate("fedavg", play=False, **plain, **{"train.lr_decay": 0.5}), round=3)
    decayed.train(phase(epochs=1, steps=1), cross_entropy)
    own = turn_of(simulate("fedavg", play=False, **plain), round=3)
    own.train(phase(epochs=1, steps=1, lr=0.05 / 4), cross_entropy)
    assert torch.equal(decayed.row, own.row)
    assert not torch.equal(own.row, own.start)


@pytest.mark.parametrize(("steps", "epochs"), [(3, 1), (13, 3)])
def test_so_many_steps_whatever_the_epochs(simulate: Simulate, steps: int, epochs: int) -> None:
    """A client with little data goes through it more often, one with much stops within an epoch."""
    simulation = simulate("fedavg", play=False, **{"train.batch_size": 10})
    turn = turn_of(simulation)
    turn.train(phase(epochs=1, steps=steps), cross_entropy)
    assert turn.steps == steps
    expected = by_hand(
        simulation,
        again := turn_of(simulation),
        lambda p: torch.optim.SGD([{"params": p[0], "weight_decay": 1e-4}, {"params": p[1]}], lr=0.05, momentum=0.5),
        batches(again, 10, epochs)[:steps],
    )
    turn = turn_of(simulation)
    turn.train(phase(epochs=1, steps=steps), cross_entropy)
    assert torch.allclose(turn.row, expected, atol=2e-6)


def test_small_batches_are_skipped_where_asked(simulate: Simulate) -> None:
    size = turn_of(simulate("fedavg", play=False)).num_examples
    for smallest, steps in ((1, 2), (2, 1)):
        turn = turn_of(simulate("fedavg", play=False, **{"train.batch_size": size - 1, "train.min_batch": smallest}))
        turn.train(phase(epochs=1), cross_entropy)
        assert turn.steps == steps


def test_a_client_without_a_whole_batch_stays_as_it_is(simulate: Simulate) -> None:
    uneven = {"data.clients": 3, "data.partition.name": "dirichlet", "data.partition.alpha": 0.3, "data.partition.seed": 3}
    for stretch in (phase(epochs=2), phase(epochs=1, steps=3)):
        few_train = {**uneven, "train.participation": 1.0, "train.batch_size": 600, "train.min_batch": 200}
        simulation = simulate("fedavg", play=False, **few_train)
        sizes = simulation.federation.data.sizes
        turn = turn_of(simulation, min(sizes, key=lambda client: sizes[client]))
        turn.train(stretch, cross_entropy)
        assert turn.untrained and turn.steps == 0 and torch.equal(turn.row, turn.start) and turn.mean_loss != turn.mean_loss


def test_the_full_gradient_and_the_accuracy(simulate: Simulate) -> None:
    turn = turn_of(simulate("fedavg", play=False))
    net, space = turn.model.net, turn.model.space
    net.eval()
    wanted = torch.autograd.grad(
        F.cross_entropy(net(turn.inputs).logits, turn.labels), [p.requires_grad_(True) for p in net.parameters()]
    )
    flat = space.pack(dict(zip([n for n, _ in net.named_parameters()], wanted, strict=True)), torch.zeros(space.size))
    assert torch.allclose(turn.gradient(), flat, atol=1e-6)
    assert torch.allclose(turn.gradient("sum"), flat * turn.num_examples, atol=1e-4)
    assert turn.accuracy() == float((net(turn.inputs).logits.argmax(1) == turn.labels).double().mean())
    assert torch.equal(turn.row, turn.start)


class TwoModels(Objective):
    """The companion learns on the same batches as the model; the model only looks at it."""

    uses_companion = True

    def __init__(self) -> None:
        self.looks: list[Tensor] = []

    def step(self, turn: ClientTurn, batch: Batch, loss: Loss) -> Tensor:
        other = turn.companion
        value = loss(batch.forward(other))
        other.backward(value)
        other.descend()
        self.looks.append(batch.forward_no_grad(other).logits)
        return value.detach()


def test_a_companion_learns_as_the_model_would_and_leaves_it_alone(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False)
    alone = turn_of(simulation)
    alone.train(phase(epochs=2), cross_entropy)
    learned = alone.row.clone()
    turn, two = turn_of(simulation), TwoModels()
    turn.train(phase(epochs=2), cross_entropy, two)
    assert torch.equal(turn.row, turn.start)
    assert torch.equal(turn.model.companion.row, learned)
    assert not two.looks[0].requires_grad
    fresh = turn_of(simulation)  # the next client's companion starts from its own start
    fresh.train(phase(epochs=1, steps=1), cross_entropy, TwoModels())
    assert not torch.equal(fresh.model.companion.row, learned)


def test_a_look_leaves_the_running_statistics_as_they_were(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"model.name": "resnet9_narrow", "train.batch_size": 32})
    buffers = simulation.federation.resident.space.select(["encoder"])
    seen: list[bool] = []

    class Looking(Objective):
        def __init__(self) -> None:
            """No options."""

        def step(self, turn: ClientTurn, batch: Batch, loss: Loss) -> Tensor:
            before = turn.row.clone()
            batch.forward_no_grad(turn.learner)
            seen.append(torch.equal(turn.row, before))
            return PLAIN.step(turn, batch, loss)

    turn = turn_of(simulation)
    turn.train(phase(epochs=1, steps=2), cross_entropy, Looking())
    assert seen == [True, True] and any("running_mean" in name for name in buffers)
    moved = turn.state([name for name in buffers if "running_mean" in name])
    assert any(float(value.abs().sum()) > 0 for value in moved.values())


def test_a_batch_in_parts(simulate: Simulate) -> None:
    class Parts(Objective):
        batches_per_step = 3

        def __init__(self) -> None:
            self.sizes: list[list[int]] = []

        def step(self, turn: ClientTurn, batch: Batch, loss: Loss) -> Tensor:
            steps = [part.forward(turn.learner) for part in batch.split(3)]
            self.sizes.append([len(step.labels) for step in steps])
            return loss(steps[0]).detach()

    how = Parts()
    turn = turn_of(simulate("fedavg", play=False, **{"train.batch_size": 10}))
    turn.train(phase(epochs=1), cross_entropy, how)
    assert how.sizes[0] == [10, 10, 10]
    assert sum(map(sum, how.sizes)) == turn.num_examples and max(how.sizes[-1]) - min(how.sizes[-1]) <= 1


def test_a_batch_of_one_with_batch_norm_is_said_or_skipped(simulate: Simulate) -> None:
    net = {"data.limit": 300, "model.name": "resnet9_narrow", "model.projection": 8, "model.predictor": 4, "train.rounds": 1}
    sizes = simulate("fedavg", play=False, **net).federation.data
    odd = {"train.batch_size": sizes.size(0) - 1, "train.participation": 1.0, **net}
    with pytest.raises(UsageError, match=r"batch of 1, and BatchNorm.*train\.min_batch=2"):
        simulate("fedavg", **odd)
    skipped = simulate("fedavg", **odd, **{"train.min_batch": 2})
    assert torch.isfinite(skipped.server.row).all()
