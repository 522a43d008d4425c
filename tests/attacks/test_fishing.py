"""Fishing: behind an altered head, a batch's gradient is that of the samples of one class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.options import taken
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.lab.image_controls import negative_control, positive_control
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.malicious.fishing import Fishing
from fedpriv.attacks.scoring.scores import errors, match, mse
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
    result = Fishing().run([message])
    assert result.labels.tolist() == [2] + [-1] * 9
    assert float(mse(result.images[:1], images[8:9])) < 1e-12 and bool((result.images[1:] == 0.5).all())


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
    for message, why in (
        (honest, "more than one class"),
        (empty, "0 samples of class 4"),
        (stepped, "one local step; the client takes 3"),
        (hidden, "last layer"),
    ):
        with pytest.raises(Inapplicable, match=why):
            Fishing().run([message])
    with pytest.raises(Inapplicable, match="3 samples of class 0, not 1 to 2"):
        Fishing(most=2).run([many])


def test_a_failure_is_no_evidence_where_another_head_may_succeed() -> None:
    message, _ = answered(Fishing())
    assert Fishing.harder(message) is None
    for altered in (Altered(rescaled=True), Altered(variance={"body.1.weight": 1e-9})):
        assert "would alter the weights differently" in str(Fishing.harder(replace(message, altered=altered)))


def test_clipping_does_not_hide_how_many_samples_there_are() -> None:
    """By a factor that the attacker is not told; of class 4 there is no sample, which tells it."""
    message, _ = answered(Fishing(target=1))
    clipped = replace(
        message, shared={name: 0.03 * t for name, t in message.shared.items()}, altered=replace(message.altered, rescaled=True)
    )
    caught, whole = Fishing().caught(clipped), Fishing().caught(message)
    assert caught.num_examples == 3
    torch.testing.assert_close(dict(caught.shared), dict(whole.shared), rtol=1e-6, atol=1e-9)


def test_no_count_is_stated_that_was_not_measured() -> None:
    message, _ = answered(Fishing(target=1))
    name = next(name for name in message.shared if name.startswith("top.") and name.endswith("bias"))
    loud, pruned = Altered(variance={name: 1.0}), Altered(kept={name: torch.zeros(5, dtype=torch.bool)})
    halved = {n: 0.45 * t for n, t in message.shared.items()}
    for unclear, why in (
        (replace(message, altered=loud), "it cannot be told how many"),
        (replace(message, shared=halved), "it cannot be told how many"),
        (replace(message, altered=pruned), "were not sent"),
        (replace(message, kind="change", schedule=None), "without the client's schedule"),
    ):
        with pytest.raises(Inapplicable, match=why):
            Fishing().run([unclear])


def test_mixtures_of_several_samples_are_not_taken_for_images() -> None:
    """Behind tanh each neuron mixes both samples of the class; DLG tells them apart."""
    images, labels, victim = pictures(4), torch.tensor([2, 2, 0, 1]), mlp(act=nn.Tanh)
    honest = observe(victim, gradient(victim, images, labels), num_examples=4)
    victim.load_state_dict(Fishing(target=2).alter(honest, pictures(5, 1)), strict=False)
    result = Fishing(target=2).run([observe(victim, gradient(victim, images, labels), num_examples=4)]).raw
    assert (errors(result[match(result, images)], images) < 1e-4).tolist() == [True, True, False, False]


def test_any_class_can_be_named() -> None:
    assert [taken(Fishing, {"target": target})["target"] for target in (-1, 0, 3)] == [-1, 0, 3]
    with pytest.raises(TypeError, match="from -1"):
        taken(Fishing, {"target": -2})


@pytest.mark.parametrize(("at_once", "of"), [(1, 4), (2, 2), (4, 1)])
def test_the_positive_control_counts_what_is_aimed_at(at_once: int, of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that finds one image of one message fails where there are more messages."""
    setting = Setting(
        threat=ThreatModel(download="altered"), images=4, per_message=at_once, side=8, min_recovery=0.5, targeted=True
    )

    def run(self: Fishing, observations: list[Observation], seed: int = 0) -> Reconstruction:
        raw = torch.full((4, 3, 8, 8), torch.nan)
        raw[0] = setting.truth(0)[0][0]
        return Reconstruction(raw, torch.full((4,), -1), *torch.zeros(4, 1))

    monkeypatch.setattr(Fishing, "run", run)
    result = positive_control(Fishing(), setting)
    assert f"1 of the {of} undefended images" in result.sentence and result.passed == (of <= 2)


def test_the_negative_control() -> None:
    setting = Fishing.control
    assert setting is not None and negative_control(Fishing(), replace(setting, side=8)).passed


def test_the_positive_control() -> None:
    """DLG on what is caught; the quick ones read it off."""
    setting = Fishing.control
    assert setting is not None
    result = positive_control(Fishing(), replace(setting, side=8))
    assert result.passed, result.sentence
