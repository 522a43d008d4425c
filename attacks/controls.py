"""Controls that run with every attack: a broken attack makes every defence look good, a leaking harness every attack."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from attacks.baselines import grey
from attacks.images import default_images
from attacks.nets import observe, reference_victim
from attacks.observation import Observation, ThreatModel
from attacks.registry import ImageAttack
from attacks.scores import mse

RECOVERED = 1e-2
"""Mean squared error below which an image counts as recovered."""
LEAST_RATE = 0.8
"""Share of images that the positive control must recover (audit rule 1 of the method card)."""
ENOUGH = 3e-6
"""Unexplained share of the gradient at which the positive control stops: its images then have an error of 5e-4 to 4e-3, clear of
:data:`RECOVERED`. The attacks go on to 5e-8, for three times the steps."""
FEW = {"steps": 10, "adam_steps": 100, "restarts": 0}
"""What the negative control allows at most: what leaks into an attack shows at once, and there is nothing to find in noise."""


@dataclass(frozen=True)
class Setting:
    """The reference victim that the controls attack: see :func:`attacks.nets.reference_victim`.

    Attributes:
        masked: linear layers at the end that are hidden.
        threat: what the attacker knows of them.
    """

    layers: int = 1
    masked: int = 0
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)

    def observations(self, images: Tensor, labels: Tensor, seed: int) -> list[Observation]:
        """One step on each image."""
        net = reference_victim(seed, layers=self.layers, masked=self.masked)
        pairs = zip(torch.split(images, 1), torch.split(labels, 1), strict=True)
        return [observe(net, image, label, self.threat, hidden=self.masked > 0) for image, label in pairs]


UNDEFENDED = Setting()


@dataclass(frozen=True)
class Control:
    """What a control found."""

    name: str
    passed: bool
    sentence: str
    cpu_seconds: float


def positive_control(attack: ImageAttack, setting: Setting = UNDEFENDED, n: int = 4, seed: int = 0) -> Control:
    """The attack recovers images where it must: without a defence, from the default images; with its own options."""
    began = time.process_time()
    images, labels = default_images(n, seed)
    found = _with(attack, max, {"enough": ENOUGH}).run(setting.observations(images, labels, seed), seed)
    recovered = int((mse(found.images, images) < RECOVERED).sum())
    passed = recovered >= LEAST_RATE * n
    needed = f"MSE below {RECOVERED:g}; at least {LEAST_RATE:.0%} needed"
    sentence = f"{attack.name} recovered {recovered} of {n} undefended images ({needed})"
    return Control("positive", passed, sentence, time.process_time() - began)


def negative_control(attack: ImageAttack, setting: Setting = UNDEFENDED, n: int = 4, seed: int = 0) -> Control:
    """The attack finds nothing in noise: gradients drawn at random, every tensor as long as the true one."""
    began = time.process_time()
    images, labels = default_images(n, seed)
    draw = torch.Generator().manual_seed(seed)
    observations = [replace(o, shared=_noise_like(o, draw)) for o in setting.observations(images, labels, seed)]
    found = _with(attack, min, FEW).run(observations, seed)
    error, flat = mse(found.images, images), mse(grey(images), images)
    recovered = int((error < RECOVERED).sum())
    passed = recovered == 0 and bool(error.median() >= flat.median())
    sentence = (
        f"{attack.name} recovered {recovered} of {n} images from random gradients"
        f" (median MSE {float(error.median()):.3f}; a grey image scores {float(flat.median()):.3f})"
    )
    return Control("negative", passed, sentence, time.process_time() - began)


def _with(attack: ImageAttack, choose: Callable[[float, float], float], bounds: Mapping[str, float]) -> ImageAttack:
    """The attack with those of its options that are in ``bounds`` chosen between what they are and the bound."""
    own = {f.name for f in fields(attack)} & bounds.keys()  # type: ignore[arg-type]
    changed: ImageAttack = replace(attack, **{name: choose(getattr(attack, name), bounds[name]) for name in own})  # type: ignore[type-var]
    return changed


def _noise_like(observation: Observation, draw: torch.Generator) -> dict[str, Tensor]:
    found = {}
    for name, tensor in observation.shared.items():
        noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype)
        found[name] = noise * tensor.norm() / noise.norm()
    return found
