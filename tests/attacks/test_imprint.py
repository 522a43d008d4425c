"""The imprint of a malicious server: samples alone in a bin are read off exactly, from a gradient and after local steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import image_attacks
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.lab.attempts import attempt, suited
from fedpriv.attacks.lab.image_controls import negative_control, positive_control
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.malicious.imprint import Imprint
from fedpriv.attacks.scoring.scores import match_batches, mse
from tests.attacks.client import OfRows, change, gradient, observe, pictures

ATTACK = Imprint()
SMALL = replace(ATTACK.control or Setting(), side=8, images=16)


def net(body: nn.Module | None = None) -> SplitNet:
    torch.manual_seed(0)
    usual = nn.Sequential(nn.Flatten(), nn.Linear(36, 200), nn.ReLU(), nn.Linear(200, 16), nn.ReLU())
    return SplitNet(body or usual, nn.Linear(16, 5)).double()


def answered(
    schedule: Schedule | None = None, attack: Imprint = ATTACK, n: int = 12, foreseen: bool = False
) -> tuple[Observation, Tensor]:
    """What a client with n images sends after an altered download, by torch's gradient or SGD, which the server may foresee."""
    images, labels, victim = pictures(n), torch.arange(n) % 5, net()
    honest = observe(victim, gradient(victim, images, labels), num_examples=n)
    if foreseen:
        honest = replace(honest, kind="change", schedule=schedule)
    victim.load_state_dict(attack.alter(honest, pictures(300, 1)), strict=False)
    if schedule is None:
        return observe(victim, gradient(victim, images, labels), num_examples=n), images
    sent = change(victim, images, labels, schedule)
    return observe(victim, sent, num_examples=n, kind="change", schedule=schedule), images


def recovered(message: Observation, images: Tensor, attack: Imprint = ATTACK, below: float = 1e-2) -> int:
    result = attack.run([message]).images
    return int((mse(result[match_batches(result, images, len(images))], images) < below).sum())


def test_controls() -> None:
    positive, negative = positive_control(ATTACK, SMALL), negative_control(ATTACK, SMALL)
    assert positive.passed, positive.sentence
    assert negative.passed and "recovered 0 of" in negative.sentence


def test_samples_alone_in_a_bin_are_exact() -> None:
    message, images = answered()
    assert recovered(message, images, below=1e-12) >= 10
    assert recovered(replace(message, shared={n: 0.01 * t for n, t in message.shared.items()}), images, below=1e-12) >= 10


@pytest.mark.parametrize(
    "schedule",
    [Schedule(lr=0.01, steps=12, batch_size=4, momentum=0.5, weight_decay=1e-4), Schedule(lr=0.01, steps=60, batch_size=4)],
)
def test_local_steps_are_no_protection(schedule: Schedule) -> None:
    message, images = answered(schedule)
    assert recovered(message, images) >= 8


def test_a_server_that_foresees_long_steps_moves_the_bins_less() -> None:
    long = Schedule(lr=0.1, steps=60, batch_size=4)
    assert recovered(*answered(long)) <= 6
    assert recovered(*answered(long, foreseen=True)) >= 8


def test_very_long_training_moves_the_bins() -> None:
    assert recovered(*answered(Schedule(lr=1.0, steps=60, batch_size=4), foreseen=True)) <= 3


def test_a_message_without_images_recovers_none_that_are_grey() -> None:
    message, images = answered()
    silent = replace(message, shared={name: torch.zeros_like(tensor) for name, tensor in message.shared.items()})
    grey = 0.5 + 0.1 * (images - 0.5)
    output = attempt(Attacker(ATTACK, ThreatModel()), [silent], grey, torch.arange(12) % 5, 0)
    assert output.recovered is not None and output.recovered.successes == 0
    assert output.images is not None and bool((output.images == 0.5).all()) and output.scores is not None
    assert float(output.scores.mse.max()) < 1e-2


def test_messages_are_attacked_together() -> None:
    (message, images), (other, _) = answered(), answered(attack=replace(ATTACK, slope=0.1))
    both = ATTACK.run([message, other])
    assert len(both.images) == 2 * len(images) and torch.equal(both.images[:12], ATTACK.run([message]).images)


@pytest.mark.parametrize("schedule", [None, Schedule(lr=0.01, steps=5, batch_size=12)])
def test_messages_without_a_number_are_scored_by_matches(schedule: Schedule | None) -> None:
    """Uploads with differential privacy for clients do not: every candidate is shown once, and those that match no image are
    counted in none."""
    message, images = answered(schedule)
    messages, images = [replace(message, num_examples=None)] * 2, torch.cat([images] * 2)
    result = attempt(Attacker(ATTACK, ThreatModel()), messages, images, torch.arange(24) % 5, 0)
    assert result.reconstruction is not None and result.raw is not None and result.recovered is not None
    assert result.raw.shape == images.shape and result.recovered.successes >= 16
    rows = result.reconstruction.raw.chunk(2)[0]
    assert len(rows) < 24 and torch.pdist(rows.flatten(1)).square().min() > ATTACK.same * 36, "each once"
    noise = {name: torch.randn_like(tensor) for name, tensor in message.shared.items()}
    nothing = attempt(Attacker(ATTACK, ThreatModel()), [replace(messages[0], shared=noise)], images[:12], torch.arange(12) % 5, 0)
    assert nothing.recovered is not None and nothing.recovered.successes == 0


def test_what_an_honest_server_sends_has_no_bins() -> None:
    victim, images, labels = net(), pictures(4), torch.arange(4)
    with pytest.raises(Inapplicable, match="as an honest server sends it"):
        ATTACK.run([observe(victim, gradient(victim, images, labels), num_examples=4)])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16)), "'body.0', a convolution"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 16)), "no ReLU and linear layer"),
        (OfRows(), "'body.first' is not the whole image"),
    ],
)
def test_it_names_what_is_in_the_way(body: nn.Module, why: str) -> None:
    victim = net(body)
    honest = observe(victim, gradient(victim, pictures(2), torch.tensor([0, 1])), num_examples=2)
    with pytest.raises(Inapplicable, match=why):
        ATTACK.alter(honest, pictures(20))


def test_a_layer_that_is_not_sent_is_in_the_way() -> None:
    message, _ = answered()
    hidden = {name: tensor for name, tensor in message.shared.items() if name != "body.3.weight"}
    with pytest.raises(Inapplicable, match=r"'body\.3\.weight' is not sent"):
        Imprint.check(replace(message, shared=hidden))


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"altered": Altered(variance={"body.1.weight": 1e-8})}, "noise or rounding would alter"),
        ({"altered": Altered(rescaled=True)}, "clipping would alter"),
        ({"altered": Altered(kept={"body.3.weight": torch.zeros(16, 200)})}, "entries that are not sent would alter"),
        ({"kind": "change", "schedule": Schedule(lr=0.1, steps=2)}, "several local steps would alter"),
        ({"num_examples": 101}, "200 rows for 101 images"),
    ],
)
def test_failing_with_unadapted_constants_is_no_evidence(known: dict[str, Any], why: str) -> None:
    message, images = answered(n=1)
    assert Imprint.harder(message) is None
    output = attempt(Attacker(ATTACK, ThreatModel()), [replace(message, **known)], images, torch.tensor([0]), 0)
    assert output.reconstruction is not None and any(why in reason.text for reason in output.reasons), output


def test_a_first_layer_that_is_not_sent_whole_is_in_the_way() -> None:
    message, _ = answered()
    pruned = replace(message, altered=Altered(kept={"body.1.weight": torch.eye(200, 36, dtype=torch.bool)}))
    for refuses in (Imprint.check, lambda message: ATTACK.run([message])):
        with pytest.raises(Inapplicable, match=r"entries of 'body\.1' were not sent"):
            refuses(pruned)


def test_bins_do_not_vanish_in_a_norm_behind_the_next_layer() -> None:
    behind = nn.Sequential(nn.LayerNorm(16), nn.ReLU())
    victim = net(nn.Sequential(nn.Flatten(), nn.Linear(36, 2048), nn.ReLU(), nn.Linear(2048, 16), behind)).float()
    images, labels = pictures(12).float(), torch.arange(12) % 5
    honest = observe(victim, gradient(victim, images, labels), num_examples=12)
    victim.load_state_dict(ATTACK.alter(honest, pictures(300, 1).float()), strict=False)
    assert recovered(observe(victim, gradient(victim, images, labels), num_examples=12), images) >= 10


def test_more_bins_do_not_send_more_on() -> None:
    """Else a saturating activation behind the next layer would have no slope."""
    sent = []
    for rows in (512, 2048):
        victim = net(nn.Sequential(nn.Flatten(), nn.Linear(36, rows), nn.ReLU(), nn.Linear(rows, 16), nn.Tanh()))
        honest = observe(victim, gradient(victim, pictures(2), torch.tensor([0, 1])), num_examples=2)
        victim.load_state_dict(ATTACK.alter(honest, pictures(300, 1)), strict=False)
        sent.append(float(victim.body[:4](pictures(12)).detach().mean()))  # type: ignore[index]
    assert 0.7 < sent[1] / sent[0] < 1.3


def test_dark_images_are_not_taken_for_one() -> None:
    images, labels, victim = 0.15 * pictures(12), torch.arange(12) % 5, net()
    honest = observe(victim, gradient(victim, images, labels), num_examples=12)
    victim.load_state_dict(ATTACK.alter(honest, 0.15 * pictures(300, 1)), strict=False)
    assert recovered(observe(victim, gradient(victim, images, labels), num_examples=12), images, below=1e-6) >= 10


def test_no_audit_of_an_honest_server_uses_it() -> None:
    malicious = {name for name, kind in image_attacks().items() if kind.is_malicious()}
    assert "imprint" in malicious and ATTACK.is_malicious()
    assert not malicious & {attacker.name for hidden in (0, 1) for attacker in suited(hidden)}
