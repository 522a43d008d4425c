"""The positive and the negative control of attacks on images.

They run the attack at its full budget: a result of an attack that fails its control at a budget means nothing at that budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting
from fedpriv.attacks.core.threads import one_thread
from fedpriv.attacks.lab.control import Control, behind_a_message, cached_controls, noise_like, run_control
from fedpriv.attacks.lab.setting import Alter, Setting
from fedpriv.attacks.scoring.baselines import flat, mean_image
from fedpriv.attacks.scoring.scores import RECOVERED, errors, match_batches, mse

Judge = Callable[[Tensor], tuple[bool, str]]
"""Reconstructions ``(n, C, H, W)`` -> whether the control is passed, and its sentence."""
Task = Callable[[ImageAttack, Setting, int], tuple[list[Observation], Judge]]
"""Attack, setting and seed -> the messages of a control, and the judge of what is reconstructed from them."""
UNDEFENDED = Setting()
MAX_NOISE_IMAGES = 2
"""Images of a negative control; a leak shows in every one. An attack that knows public images is tried on all of the setting's:
it may come near one or two by chance, and more cost it little."""


@cache
def controls(attack: ImageAttack, setting: Setting, seed: int) -> tuple[Control, ...]:
    """The positive and the negative control, from the cache if they are in it; only the negative one where the setting requires
    no recovery."""
    return cached_controls(attack, setting, seed, compute=lambda: _run_both(attack, setting, seed))


@one_thread()
@mounting()  # also the nets, whose layers draw from the global generator before they are given their values
def _run_both(attack: ImageAttack, setting: Setting, seed: int) -> list[Control]:
    """Both controls from one batch of messages, which is cheaper than two; one by one where the attack refuses the batch.

    CPU seconds are divided in proportion to the number of messages.
    """
    if not setting.min_recovery:
        return [negative_control(attack, setting, seed)]
    began = time.process_time()
    (undefended, judge), (noise, judge_noise) = _undefended(attack, setting, seed), _random_gradients(attack, setting, seed)
    n, of_both = len(undefended), len(undefended) + len(noise)
    try:
        with doing(f"positive and negative control of {attack.name}"):
            raw = attack.run([*undefended, *noise], seed).raw
    except Inapplicable:
        return [positive_control(attack, setting, seed), negative_control(attack, setting, seed)]
    cut = len(raw) * n // of_both
    positive, negative, seconds = judge(raw[:cut]), judge_noise(raw[cut:]), (time.process_time() - began) / of_both
    return [Control("positive", *positive, seconds * n), Control("negative", *negative, seconds * (of_both - n))]


@one_thread()
@mounting()
def positive_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack recovers undefended images, as many as the setting requires."""
    return _run("positive", "undefended images", _undefended, attack, setting, seed)


@one_thread()
@mounting()
def negative_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack finds nothing in random gradients, whose tensors have the norms of the true ones.

    No image may be recovered, and the median error must be at least that of flat images of the right colour, or, of an attack
    that knows public images, that of their mean.
    """
    return _run("negative", "random gradients", _random_gradients, attack, setting, seed)


def _run(name: str, tried_on: str, task: Task, attack: ImageAttack, setting: Setting, seed: int) -> Control:
    def check() -> tuple[bool, str]:
        messages, judge = task(attack, setting, seed)
        return judge(attack.run(messages, seed).raw)

    return run_control(name, attack.name, tried_on, check)


def _undefended(attack: ImageAttack, setting: Setting, seed: int) -> tuple[list[Observation], Judge]:
    images, labels = setting.truth(seed)

    def judge(raw: Tensor) -> tuple[bool, str]:
        n = len(images)
        recovered = int((errors(_in_order(raw, images, setting.per_message), images) < RECOVERED).sum())
        goal = n // setting.per_message if setting.targeted else n
        of = f"the {goal} undefended images that it aims at," if setting.targeted else f"{n} undefended images"
        needed = f"MSE below {RECOVERED:g}; at least {setting.min_recovery:.0%} needed"
        sentence = f"{attack.name} recovered {recovered} of {of}{_size(setting)} ({needed})"
        return recovered >= setting.min_recovery * goal, sentence

    return setting.observations(images, labels, seed, alteration(attack)), judge


def _random_gradients(attack: ImageAttack, setting: Setting, seed: int) -> tuple[list[Observation], Judge]:
    if not setting.threat.public:
        setting = replace(setting, images=min(setting.images, MAX_NOISE_IMAGES))
    images, labels = setting.truth(seed)
    generator, granted = torch.Generator().manual_seed(seed), setting.granted(seed)
    undefended = setting.observations(images, labels, seed, alteration(attack))

    def judge(raw: Tensor) -> tuple[bool, str]:
        raw = _in_order(raw, images, setting.per_message)
        guess, name = (flat(images), "flat images of the right colour") if granted is None else (
            mean_image(images, granted.images), "the mean of its public images"
        )  # fmt: skip
        error, baseline = mse(raw, images).median(), mse(guess, images).median()
        recovered = int((errors(raw, images) < RECOVERED).sum())
        sentence = (
            f"{attack.name} recovered {recovered} of {len(images)} images from random gradients{_size(setting)}"
            f" (median MSE {float(error):.3f}; {name}: {float(baseline):.3f})"
        )
        return recovered == 0 and bool(error >= baseline), sentence

    return [replace(message, shared=noise_like(message, generator)) for message in undefended], judge


def alteration(attack: ImageAttack) -> Alter | None:
    """How the attack alters the weights that the server sends; ``None`` for an honest server."""
    return attack.alter if attack.is_malicious() else None


def _in_order(raw: Tensor, images: Tensor, per_message: int) -> Tensor:
    """The reconstructions matched to the images of each message, since a gradient does not determine their order."""
    return raw[match_batches(raw, images, per_message)]


def _size(setting: Setting) -> str:
    return f" of {setting.side}x{setting.side} pixels{behind_a_message(setting.per_message)}"
