"""Attackers know what a message went through: for each defence what the adapted attacker recovers beside the plain one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet
from fedpriv.attacks.gradients.analytic import single_sample
from fedpriv.attacks.image.dlg import Idlg
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import observe, perceptron, reference_victim
from fedpriv.attacks.scoring.scores import RECOVERED, mse
from fedpriv.audit.record.alteration import _rounding, alteration
from fedpriv.defenses import build_transforms
from fedpriv.noise_source import SeededNoise
from fedpriv.seeding import generator
from fedpriv.wire import Payload, TransformContext, transform_and_seal
from fedpriv.wire.coding import decoded

Defence = dict[str, Any]
ATTACK = Idlg(steps=3, restarts=0)


def photograph() -> tuple[Tensor, Tensor]:
    return default_images(1, side=12)


def victim() -> SplitNet:
    return reference_victim(0, height=12, width=12)


def defended(
    net: SplitNet, image: Tensor, label: Tensor, defences: list[Defence], number: int = 0, lr: float = 0.0
) -> Observation:
    """The message of a client with that image, through the transforms that a run's wire would apply.

    Args:
        lr: the weights after one step of that rate are sent; 0: the gradient.
    """
    plain = observe(net, image, label)
    weights = dict(plain.weights)
    sent = {name: weights[name] - lr * tensor for name, tensor in plain.shared.items()} if lr else dict(plain.shared)
    received = weights if lr else {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    transforms = build_transforms(defences)

    def context(index: int) -> TransformContext:
        return TransformContext(received, tuple(sent), SeededNoise(generator(number, index)))

    sealed = transform_and_seal(Payload(sent, 1, number, "weights" if lr else "gradient"), transforms, context)
    arrived = decoded(sealed, received).tensors()
    altered = alteration(sealed, received, transforms)
    if not lr:
        return replace(plain, shared=arrived, altered=altered)
    change = {name: tensor.float() - weights[name] for name, tensor in arrived.items()}
    return replace(plain, shared=change, kind="change", schedule=Schedule(lr=lr), altered=altered)


@pytest.mark.parametrize(
    ("defences", "lr"),
    [
        pytest.param([{"name": "clip", "norm": 0.01}], 0.0, marks=pytest.mark.slow),
        pytest.param([{"name": "clip", "norm": 0.01}], 0.1, marks=pytest.mark.slow),
        pytest.param([{"name": "gaussian", "variance": 1e-4}], 0.0, marks=pytest.mark.slow),
        pytest.param([{"name": "prune", "fraction": 0.2}], 0.0, marks=pytest.mark.slow),
        pytest.param([{"name": "quantise", "bits": 4}], 0.0, marks=pytest.mark.slow),
        pytest.param([{"name": "cast", "dtype": "float16"}], 0.005, marks=pytest.mark.slow),
        pytest.param([{"name": "clip", "norm": 0.5}, {"name": "gaussian", "variance": 3e-7}], 0.0, marks=pytest.mark.slow),
    ],
    ids=lambda value: "+".join(one["name"] for one in value) if isinstance(value, list) else f"lr={value}",
)
def test_an_attacker_that_knows_the_defence_recovers_what_the_plain_one_does_not(defences: list[Defence], lr: float) -> None:
    image, label = photograph()
    message = defended(victim(), image, label, defences, lr=lr)
    plain = float(mse(ATTACK.run([replace(message, altered=UNALTERED)]).images, image))
    adapted = float(mse(ATTACK.run([message]).images, image))
    assert adapted < RECOVERED < plain, (adapted, plain)
    assert plain > 2 * adapted, (adapted, plain)


def test_pixels_are_read_off_the_entries_that_a_pruned_message_holds() -> None:
    image, label = photograph()
    pruned = defended(perceptron(0, height=12, width=12), image, label, [{"name": "prune", "fraction": 0.5}])
    plain = float(mse(single_sample(replace(pruned, altered=UNALTERED))[0][0].values.clamp(0, 1), image))
    adapted = float(mse(single_sample(pruned)[0][0].values.clamp(0, 1), image))
    assert adapted < 1e-3 < plain / 4, (adapted, plain)


def test_what_a_message_shows_of_its_rounding_is_what_the_rounding_did() -> None:
    """The declared variance beside that of the errors that were really made."""
    images, labels = photograph()
    net = victim()
    exact = observe(net, images, labels).shared
    for defences, lr, unit in (
        ([{"name": "quantise", "bits": 4}], 0.0, 1.0),
        ([{"name": "cast", "dtype": "float16"}], 0.05, 0.05),
        ([{"name": "gaussian", "variance": 1e-3}], 0.0, 1.0),
        ([{"name": "laplace", "variance": 1e-3}, {"name": "cast", "dtype": "bfloat16"}], 0.05, 0.05),
    ):
        message = defended(net, images, labels, defences, lr=lr)
        for name, tensor in exact.items():
            if tensor.numel() < 1000:
                continue
            error = message.shared[name] - (-unit * tensor if lr else tensor)
            made, said = float(error.square().mean()), message.altered.variance[name]
            # Rounding of values far below a step errs less than the step's own variance: the declared one bounds it.
            assert made <= 1.15 * said, (defences, name, made, said)
            assert made >= (0.8 if defences[0]["name"] != "quantise" else 0.01) * said, (defences, name, made, said)


def test_a_transform_says_what_it_does_and_one_that_does_not_is_taken_for_nothing() -> None:
    images, labels = photograph()
    net = victim()
    assert defended(net, images, labels, []).altered == UNALTERED
    clipped = defended(net, images, labels, [{"name": "clip", "norm": 1e-3}]).altered
    assert clipped.rescaled and not clipped.variance and not clipped.kept


def test_what_was_rounded_to_zero_was_small() -> None:
    """The step there is that of the smallest numbers, and not of numbers near 1."""
    rounded = torch.tensor([1e-9, 0.0, 1e-10]).to(torch.float16)
    assert 0 < _rounding({"encoder.bias": rounded})["encoder.bias"] < 1e-14
