"""Controls that run with every attack: a broken attack makes every defence look good, a leaking harness makes every attack.

They run the attack at its full budget: the result of an attack that fails its control at a budget means nothing at that budget.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting, one_thread
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
    return kept(attack, setting, seed, compute=lambda: _together(attack, setting, seed))


@one_thread()
@mounting()  # also the nets, whose layers draw from the global generator before they are given their values
def _together(attack: ImageAttack, setting: Setting, seed: int) -> list[Control]:
    """Both controls from one batch of messages; one after the other where the attack refuses the batch.

    An evaluation of six messages costs less than one of four and one of two. CPU seconds are divided by the number of messages.
    """
    if not setting.least:
        with doing(f"negative control of {attack.name}"):
            return [negative_control(attack, setting, seed)]
    began, must, none = time.process_time(), _Undefended(attack, setting, seed), _Noise(attack, setting, seed)
    try:
        with doing(f"positive and negative control of {attack.name}"):
            made = attack.run([*must.messages, *none.messages], seed).raw
    except Inapplicable:
        with doing(f"negative control of {attack.name}"):
            negative = negative_control(attack, setting, seed)
        with doing(f"positive control of {attack.name}"):
            return [positive_control(attack, setting, seed), negative]
    share = len(must.messages) / (len(must.messages) + len(none.messages))
    cut = len(made) * len(must.messages) // (len(must.messages) + len(none.messages))
    results = [must.judged(made[:cut]), none.judged(made[cut:])]
    spent = time.process_time() - began
    return [replace(one, cpu_seconds=spent * of) for one, of in zip(results, (share, 1 - share), strict=True)]


@one_thread()
@mounting()
def positive_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack recovers undefended images, as many as the setting requires."""
    return _alone(_Undefended, attack, setting, seed)


@one_thread()
@mounting()
def negative_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack finds nothing in random gradients, whose tensors have the norms of the true ones.

    No image may be recovered, and the median error must not be below that of flat images of the right colour; of an attacker who
    has public images, that of their mean.
    """
    return _alone(_Noise, attack, setting, seed)


def _alone(kind: type[_Undefended] | type[_Noise], attack: ImageAttack, setting: Setting, seed: int) -> Control:
    began, task = time.process_time(), kind(attack, setting, seed)
    try:
        result = task.judged(attack.run(task.messages, seed).raw)
    except Inapplicable as refusal:
        result = task.refused(refusal)
    return replace(result, cpu_seconds=time.process_time() - began)


class _Undefended:
    """The messages of a positive control, and what it makes of reconstructions from them ``(n, C, H, W)``."""

    def __init__(self, attack: ImageAttack, setting: Setting, seed: int) -> None:
        self.name, self.setting = attack.name, setting
        self.images, labels = setting.truth(seed)
        self.messages = setting.observations(self.images, labels, seed, alteration(attack))

    def judged(self, made: Tensor) -> Control:
        n, setting = len(self.images), self.setting
        recovered = int((errors(_in_order(made, self.images, setting.at_once), self.images) < RECOVERED).sum())
        goal = n // setting.at_once if setting.aimed else n
        of = f"the {goal} undefended images that it aims at," if setting.aimed else f"{n} undefended images"
        needed = f"MSE below {RECOVERED:g}; at least {setting.least:.0%} needed"
        sentence = f"{self.name} recovered {recovered} of {of}{_shown(setting)} ({needed})"
        return Control("positive", recovered >= setting.least * goal, sentence, None)

    def refused(self, refusal: Inapplicable) -> Control:
        return Control("positive", False, f"{self.name} refused undefended images ({refusal})", None)


class _Noise:
    """The messages of a negative control, and what it makes of reconstructions from them ``(n, C, H, W)``."""

    def __init__(self, attack: ImageAttack, setting: Setting, seed: int) -> None:
        if not setting.threat.public:
            setting = replace(setting, images=min(setting.images, OF_NOISE))
        self.name, self.setting, self.seed = attack.name, setting, seed
        self.images, labels = setting.truth(seed)
        draw = torch.Generator().manual_seed(seed)
        undefended = setting.observations(self.images, labels, seed, alteration(attack))
        self.messages = [replace(one, shared=_noise_like(one, draw)) for one in undefended]

    def judged(self, made: Tensor) -> Control:
        images, granted = self.images, self.setting.granted(self.seed)
        made = _in_order(made, images, self.setting.at_once)
        guess, name = (flat(images), "flat images of the right colour") if granted is None else (
            mean_image(images, granted.images), "the mean of its public images"
        )  # fmt: skip
        error, blank = mse(made, images), mse(guess, images)
        recovered = int((errors(made, images) < RECOVERED).sum())
        sentence = (
            f"{self.name} recovered {recovered} of {len(images)} images from random gradients{_shown(self.setting)}"
            f" (median MSE {float(error.median()):.3f}; {name}: {float(blank.median()):.3f})"
        )
        return Control("negative", recovered == 0 and bool(error.median() >= blank.median()), sentence, None)

    def refused(self, refusal: Inapplicable) -> Control:
        return Control("negative", True, f"{self.name} refused random gradients ({refusal})", None)


def alteration(attack: ImageAttack) -> Alter | None:
    """What the attack makes of the weights that the server sends; ``None``: nothing, as of an honest server."""
    return attack.alter if attack.is_malicious() else None


def _in_order(made: Tensor, images: Tensor, at_once: int) -> Tensor:
    """The reconstructions, matched to the images of each message, since a gradient does not determine their order."""
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
