"""The positive and the negative control of attacks on images.

They run the attack at its full budget: a result of an attack that fails its control at a budget means nothing at that budget.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting, one_thread
from fedpriv.attacks.lab.control import Control, cached_controls, noise_like, run_control
from fedpriv.attacks.lab.setting import Alter, Setting
from fedpriv.attacks.scoring.baselines import flat, mean_image
from fedpriv.attacks.scoring.scores import RECOVERED, errors, match_batches, mse

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
    tasks = _Undefended(attack, setting, seed), _RandomGradients(attack, setting, seed)
    messages = [message for task in tasks for message in task.messages]
    try:
        with doing(f"positive and negative control of {attack.name}"):
            raw = attack.run(messages, seed).raw
    except Inapplicable:
        return [positive_control(attack, setting, seed), negative_control(attack, setting, seed)]
    cut = len(raw) * len(tasks[0].messages) // len(messages)
    judged = [task.judge(part) for task, part in zip(tasks, (raw[:cut], raw[cut:]), strict=True)]
    seconds = (time.process_time() - began) / len(messages)
    return [Control(task.control, *result, seconds * len(task.messages)) for task, result in zip(tasks, judged, strict=True)]


@one_thread()
@mounting()
def positive_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack recovers undefended images, as many as the setting requires."""
    return _run(_Undefended, attack, setting, seed)


@one_thread()
@mounting()
def negative_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack finds nothing in random gradients, whose tensors have the norms of the true ones.

    No image may be recovered, and the median error must be at least that of flat images of the right colour, or, of an attack
    that knows public images, that of their mean.
    """
    return _run(_RandomGradients, attack, setting, seed)


def _run(kind: type[_Undefended] | type[_RandomGradients], attack: ImageAttack, setting: Setting, seed: int) -> Control:
    def check() -> tuple[bool, str]:
        task = kind(attack, setting, seed)
        return task.judge(attack.run(task.messages, seed).raw)

    return run_control(kind.control, attack.name, kind.tried_on, check)


class _Undefended:
    """The messages of a positive control, and the judgement of reconstructions from them."""

    control: ClassVar = "positive"
    tried_on: ClassVar = "undefended images"

    def __init__(self, attack: ImageAttack, setting: Setting, seed: int) -> None:
        self.attack, self.setting = attack.name, setting
        self.images, labels = setting.truth(seed)
        self.messages = setting.observations(self.images, labels, seed, alteration(attack))

    def judge(self, raw: Tensor) -> tuple[bool, str]:
        """Whether reconstructions ``(n, C, H, W)`` pass, and the sentence."""
        n, setting = len(self.images), self.setting
        recovered = int((errors(_in_order(raw, self.images, setting.per_message), self.images) < RECOVERED).sum())
        goal = n // setting.per_message if setting.targeted else n
        of = f"the {goal} undefended images that it aims at," if setting.targeted else f"{n} undefended images"
        needed = f"MSE below {RECOVERED:g}; at least {setting.min_recovery:.0%} needed"
        sentence = f"{self.attack} recovered {recovered} of {of}{_size(setting)} ({needed})"
        return recovered >= setting.min_recovery * goal, sentence


class _RandomGradients:
    """The messages of a negative control, and the judgement of reconstructions from them."""

    control: ClassVar = "negative"
    tried_on: ClassVar = "random gradients"

    def __init__(self, attack: ImageAttack, setting: Setting, seed: int) -> None:
        if not setting.threat.public:
            setting = replace(setting, images=min(setting.images, MAX_NOISE_IMAGES))
        self.attack, self.setting, self.seed = attack.name, setting, seed
        self.images, labels = setting.truth(seed)
        generator = torch.Generator().manual_seed(seed)
        undefended = setting.observations(self.images, labels, seed, alteration(attack))
        self.messages = [replace(message, shared=noise_like(message, generator)) for message in undefended]

    def judge(self, raw: Tensor) -> tuple[bool, str]:
        """Whether reconstructions ``(n, C, H, W)`` pass, and the sentence."""
        images, granted = self.images, self.setting.granted(self.seed)
        raw = _in_order(raw, images, self.setting.per_message)
        guess, name = (flat(images), "flat images of the right colour") if granted is None else (
            mean_image(images, granted.images), "the mean of its public images"
        )  # fmt: skip
        error, baseline = mse(raw, images).median(), mse(guess, images).median()
        recovered = int((errors(raw, images) < RECOVERED).sum())
        sentence = (
            f"{self.attack} recovered {recovered} of {len(images)} images from random gradients{_size(self.setting)}"
            f" (median MSE {float(error):.3f}; {name}: {float(baseline):.3f})"
        )
        return recovered == 0 and bool(error >= baseline), sentence


def alteration(attack: ImageAttack) -> Alter | None:
    """How the attack alters the weights that the server sends; ``None`` for an honest server."""
    return attack.alter if attack.is_malicious() else None


def _in_order(raw: Tensor, images: Tensor, per_message: int) -> Tensor:
    """The reconstructions matched to the images of each message, since a gradient does not determine their order."""
    return raw[match_batches(raw, images, per_message)]


def _size(setting: Setting) -> str:
    behind = "" if setting.per_message == 1 else f", {setting.per_message} behind one message"
    return f" of {setting.side}x{setting.side} pixels{behind}"
