"""Fishing: behind an altered head, a batch's gradient is that of the samples of one class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.lab.controls import negative_control, positive_control
from fedpriv.attacks.lab.setting import declared
from fedpriv.attacks.malicious.fishing import Fishing
from fedpriv.attacks.scoring.scores import mse
from tests.attacks.client import change, gradient, mlp, observe, pictures

LABELS = torch.tensor([0, 1, 0, 3, 1, 0, 3, 3, 2, 1])
"""One sample of class 2, which is the rarest."""


def answered(attack: Fishing, steps: int = 0) -> tuple[Observation, Tensor]:
    images, victim = pictures(len(LABELS)), mlp()
    honest = observe(victim, gradient(victim, images, LABELS), num_examples=len(LABELS))
    victim.load_state_dict(attack.alter(honest, pictures(5, 1)), strict=False)
    if not steps:
        return observe(victim, gradient(victim, images, LABELS), num_examples=len(LABELS)), images
    schedule = Schedule(lr=0.05, steps=steps, batch_size=len(LABELS), momentum=0.5, weight_decay=1e-4)
    sent = change(victim, images, LABELS, schedule)
    return observe(victim, sent, num_examples=len(LABELS), kind="change", schedule=schedule), images


@pytest.mark.parametrize("steps", [0, 1])
def test_the_rarest_class_is_caught(steps: int) -> None:
    message, images = answered(Fishing(), steps)
    found = Fishing().run([message])
    assert found.labels.tolist() == [2] + [-1] * 9
    assert float(mse(found.images[:1], images[8:9])) < 1e-12 and bool((found.images[1:] == 0.5).all())


def test_the_gradient_is_that_of_the_class_alone() -> None:
    message, images = answered(Fishing(target=1))
    caught, victim = Fishing().caught(message), mlp()
    victim.load_state_dict(dict(message.weights))
    alone = gradient(victim, images[LABELS == 1], LABELS[LABELS == 1])
    assert caught.num_examples == 3 and caught.labels is not None and caught.labels.tolist() == [1, 1, 1]
    for name, tensor in caught.shared.items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-6, atol=1e-9)


def test_it_says_where_it_cannot_be_mounted() -> None:
    message, _ = answered(Fishing())
    honest = observe(mlp(), gradient(mlp(), pictures(2), torch.tensor([0, 1])), num_examples=2)
    empty, _ = answered(Fishing(target=4))
    many, _ = answered(Fishing(target=0))
    stepped, _ = answered(Fishing())
    stepped = replace(stepped, kind="change", schedule=Schedule(lr=0.1, steps=3))
    hidden = replace(message, shared={name: t for name, t in message.shared.items() if name.startswith("body")})
    for one, why in (
        (honest, "more than one class"),
        (empty, "0 samples of class 4"),
        (stepped, "one local step; the client takes 3"),
        (hidden, "last layer"),
    ):
        with pytest.raises(Inapplicable, match=why):
            Fishing().run([one])
    with pytest.raises(Inapplicable, match="3 samples of class 0, not 1 to 2"):
        Fishing(most=2).run([many])


def test_the_negative_control() -> None:
    setting = declared(Fishing).control
    assert setting is not None and negative_control(Fishing(), replace(setting, side=8)).passed


@pytest.mark.slow
def test_the_positive_control() -> None:
    """DLG on what is caught; the quick ones read it off."""
    setting = declared(Fishing).control
    assert setting is not None
    found = positive_control(Fishing(), replace(setting, side=8))
    assert found.passed, found.sentence
