"""The control on the attacked net: an attack that recovers nothing from messages is tried on undefended ones of the same net.

Of images; that of texts has its messages from here (:mod:`fedpriv.attacks.lab.same_net_texts`).

An attack can pass its controls, which have small nets of one kind, and have no chance on another kind: the gradient of a net with
ReLU is not smooth in the image, and that of a deep or well trained one says little. Its failure there is no evidence.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.observation import Observation, Public, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.lab.explained import simulated
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.kept import Control
from fedpriv.attacks.lab.setting import HALF
from fedpriv.attacks.scoring.scores import RECOVERED, errors, match_batches

SAMPLES = 4
"""How many samples at least."""
LARGEST = 64
"""Largest side of a crop, in pixels; for larger inputs it is scaled up."""


def on_same_net(
    attack: ImageAttack, observation: Observation, weights: Mapping[str, Tensor], seed: int, steps: Schedule | None = None
) -> Control:
    """Check that the attack recovers half of some images from undefended messages of the net that it attacks.

    As many images are behind each message, with the same schedule but batches in an order that no attacker knows, and the same
    layers are sent. The images are photographs; for
    an attacker who has public images, and so may have learned what they look like, some of these, which it then does not get.

    Args:
        observation: one of the messages.
        weights: those that the client began with, by the net's names, hidden ones too.
        steps: of a gradient that is the mean of those of several steps, these.
    """
    began, each = time.process_time(), observation.num_examples or 1
    count = samples_for(each)
    what, images, held = "photographs", photographs(count, observation.input_shape, seed), None
    if (public := observation.public) is not None:
        if len(public.images) < 2 * count:
            few = f"{len(public.images)} public images are too few to try {attack.name} on messages of this net"
            return Control("same net", False, few, _since(began))
        what, images = "public images", public.images[:count].to(images)
        held = public.labels[:count]  # who has learned what images of a class look like is tried on images of their classes
        observation = replace(observation, public=Public(public.images[count:], public.labels[count:]))
    draw = torch.Generator().manual_seed(seed)
    labels = labels_for(count, each, observation.classes, draw) if held is None else held
    pairs = zip(torch.split(images, each), torch.split(labels, each), strict=True)
    messages = [undefended(observation, weights, own, of, draw, steps) for own, of in pairs]
    try:
        with mounting():
            made = attack.run(messages, seed).raw.to(images)
    except Inapplicable as refusal:
        return Control("same net", False, f"{attack.name} refused undefended messages of this net ({refusal})", _since(began))
    recovered = int((errors(made[match_batches(made, images, each)], images) < RECOVERED).sum())
    passed = recovered >= HALF * count
    behind = "" if each == 1 else f", {each} behind one message"
    sentence = (
        f"from undefended messages of this net, {attack.name} recovers {recovered} of {count} {what}{behind} "
        f"(MSE below {RECOVERED:g}; at least {HALF:.0%} needed)"
    )
    return Control("same net", passed, sentence, _since(began))


def photographs(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Crops of photographs in [0, 1] as a net takes images: ``(count, *shape)`` for ``shape`` ``(C, H, W)``."""
    channels, height, width = shape
    images, _ = default_images(count, seed, side=min(max(height, width), LARGEST))
    if images.shape[2:] != (height, width):
        images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False)
    return images if channels == 3 else images.mean(1, keepdim=True).expand(-1, channels, -1, -1).contiguous()


def samples_for(each: int) -> int:
    """How many samples a control has, with ``each`` behind a message."""
    return max(1, SAMPLES // each) * each


def labels_for(count: int, each: int, classes: int, draw: torch.Generator) -> Tensor:
    """Labels ``(count,)``, different ones within each message as far as there are as many classes."""
    return torch.cat([torch.randperm(classes, generator=draw).repeat(each)[:each] for _ in range(count // each)])


def undefended(
    observation: Observation, weights: Mapping[str, Tensor], samples: Tensor, labels: Tensor, draw: torch.Generator,
    steps: Schedule | None = None,
) -> Observation:  # fmt: skip
    """A message like that observed, of the same net, kind, schedule and tensors, on other samples and without a defence.

    Args:
        weights, steps: see :func:`on_same_net`.
        samples, labels: see :func:`fedpriv.attacks.lab.explained.simulated`.
        draw: of the order of batches.
    """
    known = None if observation.labels is None else labels
    # Of an unknown schedule it has no weight decay, which attacks would otherwise undo.
    plain = replace(observation, labels=known, statistics={}, altered=UNALTERED, unlike=(), penalty=None, idle=None)
    taken = plain if steps is None else replace(plain, kind="change", weights=weights, schedule=steps)
    shared = {name: moved.detach() for name, moved in simulated(taken, weights, samples, labels, draw).items()}
    return replace(plain, shared=shared if steps is None else as_gradient(replace(taken, shared=shared)).shared)


def _since(began: float) -> float:
    return time.process_time() - began
