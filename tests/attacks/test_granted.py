"""No attack uses a parameter that its threat model does not grant: what it gets of those is NaN."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from fedpriv.attacks.attack import image_attack, image_attacks
from fedpriv.attacks.core.observation import Observation, SplitNet, ThreatModel, blank, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.lab.image_controls import Setting
from fedpriv.attacks.lab.images import default_images
from tests.marks import slow_but

QUICK = {"steps": 1, "adam_steps": 2, "adam": 2, "lbfgs": 1, "iterations": 1, "restarts": 0}
pytestmark = pytest.mark.usefixtures("one_iteration")
SIDE = 8
SETTINGS = {
    "whole": Setting(side=SIDE),
    "hidden": Setting(layers=2, masked=1, side=SIDE),
    "hidden, initial weights known": Setting(layers=2, masked=1, side=SIDE, threat=ThreatModel(top="initial")),
    "first layer linear, local steps": Setting(net="perceptron", steps=2, side=SIDE),
}


def of(name: str, setting: Setting) -> Observation:
    images, labels = default_images(1, side=SIDE)
    return setting.observations(images, labels, 0)[0]


@pytest.mark.parametrize("name", slow_but(["analytic", "analytic-features", "idlg", "known-head"], image_attacks()))
@pytest.mark.parametrize("setting", slow_but(["hidden"], SETTINGS))
def test_no_attack_needs_a_value_that_it_is_not_granted(name: str, setting: str) -> None:
    observation = of(name, SETTINGS[setting])
    assert all(bool(tensor.isnan().all()) for tensor in observation.net.state_dict().values())
    kind = image_attack(name)
    options = {f.name: QUICK[f.name] for f in fields(kind) if f.name in QUICK}  # type: ignore[arg-type]
    try:
        result = kind(**options).run([observation], 0)
    except Inapplicable:
        return
    assert bool(result.raw.isfinite().all()) or name.endswith("published")
    # The same whatever the net's own values are: nothing but the granted weights counts.
    filled = blank(observation.net)
    for tensor in filled.state_dict().values():
        tensor.fill_(0.1)
    again = kind(**options).run([replace(observation, net=filled)], 0)
    torch.testing.assert_close(again.raw, result.raw, rtol=0, atol=0, equal_nan=True)


def test_a_blank_net_has_no_running_statistics_either() -> None:
    net = blank(SplitNet(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), nn.Linear(2, 2)))
    assert "body.1.running_mean" in state_names(net)
    assert all(bool(net.state_dict()[name].isnan().all()) for name in state_names(net))
    assert int(net.state_dict()["body.1.num_batches_tracked"]) == 0
