"""The control on the attacked net: its messages, and that it tells nets on which an attack has no chance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, Public, Schedule, SplitNet
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.image.direct import Unrolled
from fedpriv.attacks.image.dlg import Dlg
from fedpriv.attacks.lab.nets import observe, perceptron, uniform_
from fedpriv.attacks.lab.same_net import on_same_net, photographs
from tests.attacks.sent import noisy

SIDE = 8


def seen(activation: type[nn.Module] = nn.Sigmoid, n: int = 1) -> tuple[Observation, dict[str, Tensor]]:
    """A message of a perceptron, and the weights that its client began with."""
    net = perceptron(0, height=SIDE, width=SIDE, activation=activation)
    images = torch.rand(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return observe(net, images, torch.arange(n)), {name: p.detach() for name, p in net.named_parameters()}


class Reads(ImageAttack):
    """An attack that keeps what it is given and finds grey images."""

    name = "reads"
    given: list[Observation]

    def run(self, observations: list[Observation], seed: int = 0) -> Reconstruction:
        self.given = observations
        n = len(observations) * (observations[0].num_examples or 1)
        nothing = torch.zeros(n)
        return Reconstruction(torch.full((n, 3, SIDE, SIDE), 0.5), nothing, nothing, nothing[None], nothing, nothing, 0.0)


def test_the_messages_are_undefended_ones_of_photographs() -> None:
    observation, weights = seen(n=2)
    defended = replace(noisy(observation, 1.0), control_differences=("why",))
    attack = Reads()
    control = on_same_net(attack, defended, weights, 0)
    assert not control.passed and "reads recovers 0 of 4 photographs, 2 behind one message" in control.sentence
    images, first = photographs(4, (3, SIDE, SIDE), 0), attack.given[0]
    assert first.control_differences == () and not first.altered.variance and len(attack.given) == 2
    draw = torch.Generator().manual_seed(0)
    expected = observe(perceptron(0, height=SIDE, width=SIDE), images[:2], torch.randperm(10, generator=draw)[:2])
    for name, tensor in expected.shared.items():
        torch.testing.assert_close(first.shared[name], tensor)


def test_a_mean_of_gradients_is_compared_with_means_of_steps() -> None:
    observation, weights = seen()
    steps = Schedule(lr=0.5, steps=3, momentum=0.5)
    alone, mean = Reads(), Reads()
    on_same_net(alone, observation, weights, 0)
    on_same_net(mean, observation, weights, 0, steps)
    changes = Reads()
    on_same_net(changes, replace(observation, kind="change", schedule=steps), weights, 0)
    assert mean.given[0].kind == "gradient" and mean.given[0].schedule is None
    for name, tensor in as_gradient(changes.given[0]).shared.items():
        torch.testing.assert_close(mean.given[0].shared[name], tensor)
        assert not torch.allclose(alone.given[0].shared[name], tensor)


def test_clients_shuffle_their_images_in_every_epoch() -> None:
    """Attacks that simulate several batches guess their order; in a control whose clients have it, they would do better."""
    observation, weights = seen(n=4)
    steps = Schedule(lr=0.5, steps=6, batch_size=2)
    attack = Reads()
    on_same_net(attack, replace(observation, kind="change", schedule=steps), weights, 0)
    images, draw = photographs(4, (3, SIDE, SIDE), 0), torch.Generator().manual_seed(0)
    labels = torch.randperm(10, generator=draw)[:4]
    net = perceptron(0, height=SIDE, width=SIDE)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for batch in [part for _ in range(3) for part in torch.randperm(4, generator=draw).split(2)]:
        optimiser.zero_grad()
        F.cross_entropy(net(images[batch]), labels[batch]).backward()
        optimiser.step()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(attack.given[0].shared[name], parameter.detach() - weights[name])


def test_an_attack_with_public_images_is_tried_on_held_out_ones() -> None:
    observation, weights = seen()
    public = Public(torch.rand(10, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2)), torch.arange(10).flip(0))
    attack = Reads()
    control = on_same_net(attack, replace(observation, public=public), weights, 0)
    assert "reads recovers 0 of 4 public images" in control.sentence and attack.given[0].public is not None
    assert torch.equal(attack.given[0].public.images, public.images[4:]), "a copy of the image would be found"
    expected = observe(perceptron(0, height=SIDE, width=SIDE), public.images[:1], public.labels[:1])
    torch.testing.assert_close(attack.given[0].shared["top.weight"], expected.shared["top.weight"])


def test_few_public_images_are_too_few_for_the_control() -> None:
    observation, weights = seen()
    public = Public(torch.rand(7, 3, SIDE, SIDE), torch.arange(7))
    control = on_same_net(Reads(), replace(observation, public=public), weights, 0)
    assert not control.passed and control.sentence == "7 public images are too few to try reads on messages of this net"


def test_no_decay_is_undone_under_an_unknown_schedule() -> None:
    observation, weights = seen()
    attack = Reads()
    change = replace(observation, kind="change", penalty=lambda start: -start)
    on_same_net(attack, change, weights, 0)
    output = as_gradient(attack.given[0]).shared
    on_same_net(attack, observation, weights, 0)
    for name, gradient in attack.given[0].shared.items():
        torch.testing.assert_close(F.normalize(output[name].flatten(), dim=0), F.normalize(gradient.flatten(), dim=0))


def test_a_change_is_that_of_the_clients_steps() -> None:
    observation, weights = seen()
    attack = Reads()
    steps = Schedule(lr=0.1, steps=2, batch_size=1)
    on_same_net(attack, replace(observation, kind="change", schedule=replace(steps, steps=1)), weights, 0)
    single = attack.given[0].shared
    on_same_net(attack, observation, weights, 0)
    for name, gradient in attack.given[0].shared.items():
        torch.testing.assert_close(single[name], -0.1 * gradient)
    on_same_net(attack, replace(observation, kind="change", schedule=steps), weights, 0)
    assert any(not torch.allclose(attack.given[0].shared[name], 2 * single[name], rtol=1e-3) for name in single)


@pytest.mark.slow
def test_an_attack_can_succeed_on_one_net_and_not_on_another() -> None:
    """L-BFGS with second derivatives, which are zero in each of the pieces of a net with ReLU."""
    smooth, pieces = (on_same_net(Dlg(steps=15, restarts=0), *convolutions(kind), 0) for kind in (nn.Sigmoid, nn.ReLU))
    assert smooth.passed and not pieces.passed, (smooth.sentence, pieces.sentence)


def test_it_succeeds_where_an_attack_does() -> None:
    assert on_same_net(Dlg(steps=3, restarts=0), *seen(), 0).passed
    assert on_same_net(Unrolled(iterations=3, restarts=0), *changed(), 0).passed


def convolutions(activation: type[nn.Module]) -> tuple[Observation, dict[str, Tensor]]:
    """As :func:`seen`, of a small net with convolutions."""
    body = [nn.Conv2d(3, 12, 5, 2, 2), activation(), nn.Conv2d(12, 12, 5, 2, 2), activation(), nn.Flatten()]
    net, draw = SplitNet(nn.Sequential(*body), nn.Linear(12 * (SIDE // 4) ** 2, 10)), torch.Generator().manual_seed(0)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            uniform_(layer, draw)
    observation = observe(net, torch.rand(1, 3, SIDE, SIDE, generator=draw), torch.tensor([0]))
    return observation, {name: p.detach() for name, p in net.named_parameters()}


def changed() -> tuple[Observation, dict[str, Tensor]]:
    observation, weights = seen()
    return replace(observation, kind="change", schedule=Schedule(lr=0.1, steps=3, batch_size=1)), weights


def test_a_refusal_is_a_failure() -> None:
    class Refuses(Reads):
        def run(self, observations: list[Observation], seed: int = 0) -> Reconstruction:
            raise Inapplicable("no head")

    control = on_same_net(Refuses(), *seen(), 0)
    assert not control.passed and "refused undefended messages of this net (no head)" in control.sentence


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 100, 80), (4, 8, 8)])
def test_photographs_have_the_shape_of_the_nets_input(shape: tuple[int, ...]) -> None:
    output = photographs(2, shape, 0)
    assert output.shape == (2, *shape) and float(output.min()) >= 0 and float(output.max()) <= 1 and float(output.std()) > 0.05
