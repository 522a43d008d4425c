"""The gradient of what every attack minimises, against central differences, on nets that normalise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import ImageAttack, TextAttack, image_attack, image_attacks
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, SplitNet
from fedpriv.attacks.gradients.matching import Objective
from fedpriv.attacks.lab.image_controls import alteration
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import observe
from fedpriv.attacks.text.span import SpanAttack
from fedpriv.attacks.text.tag import Tag
from fedpriv.attacks.text.victims import Size, small_bert
from tests.attacks import text_client
from tests.attacks.sent import in_double
from tests.attacks.test_running_statistics import images, message, net
from tests.marks import quick_first

STEP, EXACT = 1e-5, 1e-6
Function = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Unknowns of ``k`` problems ``(k, p)`` -> values ``(k,)``, gradients ``(k, p)``."""


class Asked(Exception):
    """The first time that an attack asks for what it minimises."""

    def __init__(self, function: Function, points: Tensor, lengths: list[int]) -> None:
        self.function, self.points, self.lengths = function, points, lengths


@pytest.fixture
def ends_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def batched(objective: Objective, rows: Tensor, points: Tensor) -> NoReturn:
        raise Asked(lambda x: evaluate(objective, rows[: len(x)], x), points, objective.layout.lengths)

    def alone(optimiser: torch.optim.LBFGS, closure: Callable[[], Tensor]) -> NoReturn:
        unknowns: list[Tensor] = optimiser.param_groups[0]["params"]

        def function(x: Tensor) -> tuple[Tensor, Tensor]:
            nn.utils.vector_to_parameters(x[0], unknowns)
            value = closure()
            return value[None], torch.cat([unknown.grad.flatten() for unknown in unknowns if unknown.grad is not None])[
                None
            ].clone()

        raise Asked(function, nn.utils.parameters_to_vector(unknowns).detach()[None], [unknown.numel() for unknown in unknowns])

    evaluate = Objective.__call__
    monkeypatch.setattr(Objective, "__call__", batched)
    monkeypatch.setattr(torch.optim.LBFGS, "step", alone)


def observed(attack: ImageAttack, **changes: Any) -> list[Observation]:
    """Two messages of the attack's control, of two images each if it takes several."""
    control, together = attack.control, min(2, attack.max_batch or 2)
    assert control is not None
    setting = replace(control, net="reference", side=8, batch_norm=True)
    setting = setting if setting.targeted else replace(setting, images=2 * together, per_message=together)
    setting = replace(setting, **changes)
    return [in_double(message) for message in setting.observations(*setting.truth(0), 0, alteration(attack))]


def of_one(attack: ImageAttack) -> list[Observation]:
    """A linear layer is shared."""
    return observed(attack, images=2, per_message=1, layers=2)


def noisy(attack: ImageAttack) -> list[Observation]:
    return [replace(message, altered=Altered(variance=dict.fromkeys(message.shared, 1e-6))) for message in of_one(attack)]


def of_convolutions(attack: ImageAttack) -> list[Observation]:
    """The last shared layer is a convolution."""
    torch.manual_seed(0)
    return of_net(nn.BatchNorm2d(8), hidden=True)


def of_net(norm: nn.Module, hidden: bool) -> list[Observation]:
    """Two messages of one image each, of a net of two convolutions with ``norm`` between them."""
    first = [nn.Conv2d(3, 8, 3), norm, nn.Sigmoid()]
    net = SplitNet(nn.Sequential(*first, nn.Conv2d(8, 8, 3, 3), nn.Sigmoid(), nn.Flatten()), nn.Linear(32, 10)).double()
    images, labels = default_images(2, side=8)
    return [observe(net, images[i : i + 1].double(), labels[i : i + 1], hidden=hidden) for i in range(2)]


def with_statistics(attack: ImageAttack) -> list[Observation]:
    """The messages have running statistics."""
    sent = [in_double(message(net(), images(2, seed=seed))) for seed in range(2)]
    return [replace(message, labels=torch.arange(2)) for message in sent]


CASES: dict[str, tuple[str, dict[str, Any], Callable[[ImageAttack], list[Observation]]]] = {
    **{name: (name, {}, observed) for name, attack in image_attacks().items() if attack.optimises},
    "analytic-features": ("analytic-features", {"adam": 0}, observed),
    "head-free, signal from a bias": ("head-free", {}, of_one),
    "head-free, signal near a bias": ("head-free", {}, noisy),
    "head-free, signal from a convolution": ("head-free", {}, of_convolutions),
    "inverting-gradients, total variation": ("inverting-gradients", {"total_variation": 0.1}, observed),
    "inverting-gradients, statistics": ("inverting-gradients", {"running_statistics": 1.0}, with_statistics),
}
del CASES["learned-inversion"]  # which does not differentiate the victim's net
NORMS: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm([8, 6, 6]),
    "LayerNorm of the last dimension": lambda: nn.LayerNorm(6),
    "InstanceNorm": lambda: nn.InstanceNorm2d(8, affine=True),
    "GroupNorm": lambda: nn.GroupNorm(2, 8),
}


@pytest.mark.usefixtures("ends_when_asked")
@pytest.mark.parametrize("case", CASES)
def test_objective_gradient_is_right_with_batch_norm(case: str) -> None:
    name, options, messages = CASES[case]
    attack: ImageAttack = image_attack(name)(**options)
    with pytest.raises(Asked) as asked:
        attack.run(messages(attack))
    check(asked.value)


@pytest.mark.usefixtures("ends_when_asked")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", quick_first(["inverting-gradients", "head-free"]))
def test_so_it_is_on_a_net_that_normalises_each_image(name: str, norm: str) -> None:
    torch.manual_seed(0)
    messages = of_net(NORMS[norm](), hidden=name == "head-free")
    with pytest.raises(Asked) as asked:
        image_attack(name)().run(messages)
    check(asked.value)


@pytest.mark.usefixtures("ends_when_asked")
@pytest.mark.parametrize(("attack", "hidden"), quick_first([(Tag(starts=2), "nothing"), (SpanAttack(starts=2), "dense")]))
def test_so_it_is_on_texts(attack: TextAttack, hidden: str) -> None:
    """Of ``span``: where no later layer tells the sentences."""
    observation, _, _ = text_client.message([6, 5], net=small_bert(0, Size(width=16, layers=1)).double())
    with pytest.raises(Asked) as asked:
        attack.run([text_client.without(observation, hidden)])
    check(asked.value)


def check(asked: Asked) -> None:
    """Of all problems together and of one alone, with respect to each of the unknowns, in random directions."""
    torch.manual_seed(0)
    for points in (asked.points, asked.points[:1]):
        _, gradient = asked.function(points)
        assert gradient.dtype == torch.float64
        blocks = [torch.ones(1, length) for length in asked.lengths]
        for there in torch.block_diag(*blocks).to(points):  # type: ignore[no-untyped-call]
            for _ in range(3):
                direction = torch.randn_like(points) * there
                direction = direction / direction.norm(dim=1, keepdim=True)
                ahead, behind = (asked.function(points + sign * STEP * direction)[0] for sign in (1, -1))
                off = (ahead - behind) / (2 * STEP) - (gradient * direction).sum(1)
                assert (off.abs() <= EXACT * (gradient * there).norm(dim=1)).all()
