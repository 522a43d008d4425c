"""The positive control of membership by running statistics: clients whose members it must name.

Eight clients each pass one batch of eight small images through a net of two convolutions with BatchNorm, as its training would,
and send the running statistics alone. The attack scores these images and as many others.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from fedpriv.attacks.core.observation import Observation, Passes, SplitNet, ThreatModel, blank, state_names
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.inference.membership_controls import SURE
from fedpriv.attacks.inference.running_statistics import shares_of_batches
from fedpriv.attacks.lab.controls import Control
from fedpriv.attacks.scoring.operating_points import area

_CLIENTS, _MEMBERS, _SIDE, _CHANNELS = 8, 8, 8, 16


@mounting()
def positive_control(seed: int = 0) -> Control:
    """The control; a fraction of a CPU second."""
    began = time.process_time()
    scores = np.concatenate([_scores(1000 * seed + number) for number in range(_CLIENTS)])
    found = area(scores, np.tile(np.arange(2 * _MEMBERS) < _MEMBERS, _CLIENTS), SURE)
    sentence = (
        f"members of {_CLIENTS} undefended clients that passed one batch of {_MEMBERS} images through a net with BatchNorm "
        f"(AUC {found.value:.2f}, {SURE:.1%} interval {found.low:.2f} to {found.high:.2f}; it must lie above 0.5)"
    )
    return Control("positive", found.is_above_chance, sentence, time.process_time() - began)


def _scores(seed: int) -> np.ndarray:
    """Of a client's eight images, and eight others."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(2 * _MEMBERS, 1, _SIDE, _SIDE, generator=draw)
    body = nn.Sequential(
        nn.Conv2d(1, _CHANNELS, 3, padding=1), nn.BatchNorm2d(_CHANNELS), nn.ReLU(),
        nn.Conv2d(_CHANNELS, _CHANNELS, 3, 2), nn.BatchNorm2d(_CHANNELS), nn.Flatten(),
    )  # fmt: skip
    net = SplitNet(body, nn.Linear(_CHANNELS * 9, 2)).train()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draw) - 0.5)
        before = {name: net.state_dict()[name].clone() for name in state_names(net)}
        net(images[:_MEMBERS])
    sent = {name: buffer.clone() for name, buffer in net.named_buffers() if name in before}
    message = Observation(
        {}, "change", before, blank(net), tuple(images.shape[1:]), 2, ThreatModel(), num_examples=_MEMBERS,
        buffers=sent, passes=Passes(1, _MEMBERS),
    )  # fmt: skip
    return shares_of_batches(message, lambda: iter([images]))
