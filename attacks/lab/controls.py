"""Controls that run with every attack: a broken attack makes every defence look good, a leaking harness makes every attack.

They run the attack at its full budget: the result of an attack that fails its control at a budget means nothing at that budget.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting, one_thread
from fedpriv.attacks.core.registry import ImageAttack, MaliciousAttack
from fedpriv.attacks.lab.kept import Control, kept
from fedpriv.attacks.lab.setting import Alter, Setting
from fedpriv.attacks.scoring.baselines import flat, mean_image
from fedpriv.attacks.scoring.scores import RECOVERED, errors, match_batches, mse

__all__ = ["Control", "controls", "negative_control", "positive_control"]

UNDEFENDED = Setting()
OF_NOISE = 2
"""Images of the negative control where each is a separate message; few are enough, as a leak shows in every one. An attacker who
has public images gets all: it may come near to one or two by chance, and more cost it little."""


@cache
def controls(attack: ImageAttack, setting: Setting, seed: int) -> tuple[Control, ...]:
    """Positive and negative control, or only the negative one where the setting requires no recovery; kept
    (:mod:`fedpriv.attacks.lab.kept`)."""

    def compute() -> list[Control]:
        with doing(f"negative control of {attack.name}"):
            negative = negative_control(attack, setting, seed)
        if not setting.least:
            return [negative]
        with doing(f"positive control of {attack.name}"):
            return [positive_control(attack, setting, seed), negative]

    return kept(attack, setting, seed, compute=compute)


@one_thread()
@mounting()  # also the nets, whose layers draw from the global generator before they are given their values
def positive_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack recovers undefended images, as many as the setting requires."""
    began = time.process_time()
    images, labels = setting.truth(seed)
    n = len(images)
    needed = f"MSE below {RECOVERED:g}; at least {setting.least:.0%} needed"
    try:
        made = _run(attack, setting.observations(images, labels, seed, alteration(attack)), images, setting.at_once, seed)
    except Inapplicable as refusal:
        return Control("positive", False, f"{attack.name} refused undefended images ({refusal})", time.process_time() - began)
    recovered = int((errors(made, images) < RECOVERED).sum())
    goal = n // setting.at_once if setting.aimed else n
    of = f"the {goal} undefended images that it aims at," if setting.aimed else f"{n} undefended images"
    sentence = f"{attack.name} recovered {recovered} of {of}{_shown(setting)} ({needed})"
    return Control("positive", recovered >= setting.least * goal, sentence, time.process_time() - began)


@one_thread()
@mounting()
def negative_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack finds nothing in random gradients, whose tensors have the norms of the true ones.

    No image may be recovered, and the median error must not be below that of flat images of the right colour; of an attacker who
    has public images, that of their mean.
    """
    began = time.process_time()
    if not setting.threat.public:
        setting = replace(setting, images=min(setting.images, OF_NOISE))
    images, labels = setting.truth(seed)
    draw = torch.Generator().manual_seed(seed)
    observations = [
        replace(o, shared=_noise_like(o, draw)) for o in setting.observations(images, labels, seed, alteration(attack))
    ]
    try:
        made = _run(attack, observations, images, setting.at_once, seed)
    except Inapplicable as refusal:
        return Control("negative", True, f"{attack.name} refused random gradients ({refusal})", time.process_time() - began)
    granted = setting.granted(seed)
    guess, name = (flat(images), "flat images of the right colour") if granted is None else (
        mean_image(images, granted.images), "the mean of its public images"
    )  # fmt: skip
    error, blank = mse(made, images), mse(guess, images)
    recovered = int((errors(made, images) < RECOVERED).sum())
    passed = recovered == 0 and bool(error.median() >= blank.median())
    sentence = (
        f"{attack.name} recovered {recovered} of {len(images)} images from random gradients{_shown(setting)}"
        f" (median MSE {float(error.median()):.3f}; {name}: {float(blank.median()):.3f})"
    )
    return Control("negative", passed, sentence, time.process_time() - began)


def alteration(attack: ImageAttack) -> Alter | None:
    """What the attack makes of the weights that the server sends; ``None``: nothing, as of an honest server."""
    return attack.alter if isinstance(attack, MaliciousAttack) else None


def _run(attack: ImageAttack, observations: Sequence[Observation], images: Tensor, at_once: int, seed: int) -> Tensor:
    """The reconstructions, matched to the images of each message, since a gradient does not determine their order."""
    made = attack.run(observations, seed).raw
    return made[match_batches(made, images, at_once)]


def _shown(setting: Setting) -> str:
    behind = "" if setting.at_once == 1 else f", {setting.at_once} behind one message"
    return f" of {setting.side}x{setting.side} pixels{behind}"


def _noise_like(observation: Observation, draw: torch.Generator) -> dict[str, Tensor]:
    found = {}
    for name, tensor in observation.shared.items():
        noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype)
        found[name] = noise * tensor.norm() / noise.norm()
    return found
