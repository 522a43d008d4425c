"""Controls that run with every attack: a broken attack makes every defence look good, a leaking harness every attack."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.baselines import flat
from attacks.images import default_images
from attacks.nets import observe, perceptron, reference_victim
from attacks.observation import Observation, Schedule, ThreatModel
from attacks.registry import ImageAttack
from attacks.scores import RECOVERED, mse
from attacks.unrolled import local_run

ENOUGH = 3e-6
"""Unexplained share of the gradient at which the positive control stops: its images then have an error of 5e-4 to 4e-3, clear of
:data:`RECOVERED`. The attacks go on to 5e-8, for three times the steps."""
FEW = {"steps": 10, "adam_steps": 100, "adam": 100, "lbfgs": 5, "iterations": 10, "restarts": 0}
"""What the negative control allows at most: what leaks into an attack shows at once, and there is nothing to find in noise."""


@dataclass(frozen=True)
class Setting:
    """The victim that the controls of an attack attack.

    Attributes:
        net: :func:`attacks.nets.reference_victim` or :func:`attacks.nets.perceptron`.
        layers, masked: linear layers at the end of the reference victim, and how many of them are hidden.
        threat: what the attacker knows of them.
        steps: local steps behind a change of the weights; 0: a gradient.
        images: so many, each a message of its own.
        least: share of them that the positive control must recover (audit rule 1 of the method card: 0.8).
    """

    net: Literal["reference", "perceptron"] = "reference"
    layers: int = 1
    masked: int = 0
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)
    steps: int = 0
    images: int = 4
    least: float = 0.8

    def observations(self, images: Tensor, labels: Tensor, seed: int) -> list[Observation]:
        """One message on each image."""
        reference = self.net == "reference"
        net = reference_victim(seed, layers=self.layers, masked=self.masked) if reference else perceptron(seed)
        pairs = zip(torch.split(images, 1), torch.split(labels, 1), strict=True)
        found = [observe(net, image, label, self.threat, hidden=self.masked > 0) for image, label in pairs]
        if not self.steps:
            return found
        return [self._trained(*each) for each in zip(found, torch.split(images, 1), torch.split(labels, 1), strict=True)]

    def _trained(self, observation: Observation, image: Tensor, label: Tensor) -> Observation:
        schedule = Schedule(lr=0.1, steps=self.steps)
        target = F.one_hot(label, observation.classes).to(image)
        change = local_run(observation.net, observation.weights, list(observation.shared), image, target, schedule)
        shared = {name: tensor.detach() for name, tensor in change.items()}
        return replace(observation, kind="change", shared=shared, schedule=schedule)


UNDEFENDED = Setting()


@dataclass(frozen=True)
class Control:
    """What a control found."""

    name: str
    passed: bool
    sentence: str
    cpu_seconds: float


def positive_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """The attack recovers images where it must: without a defence, from the default images; with its own options."""
    began, n = time.process_time(), setting.images
    images, labels = default_images(n, seed)
    found = _with(attack, max, {"enough": ENOUGH}).run(setting.observations(images, labels, seed), seed)
    recovered = int((mse(found.images, images) < RECOVERED).sum())
    passed = recovered >= setting.least * n
    needed = f"MSE below {RECOVERED:g}; at least {setting.least:.0%} needed"
    sentence = f"{attack.name} recovered {recovered} of {n} undefended images ({needed})"
    return Control("positive", passed, sentence, time.process_time() - began)


def negative_control(attack: ImageAttack, setting: Setting = UNDEFENDED, seed: int = 0) -> Control:
    """The attack finds nothing in noise: gradients drawn at random, every tensor as long as the true one.

    Nothing: no image is recovered, and they come no nearer than flat images of the right colour.
    """
    began, n = time.process_time(), setting.images
    images, labels = default_images(n, seed)
    draw = torch.Generator().manual_seed(seed)
    observations = [replace(o, shared=_noise_like(o, draw)) for o in setting.observations(images, labels, seed)]
    found = _with(attack, min, FEW).run(observations, seed)
    error, blank = mse(found.images, images), mse(flat(images), images)
    recovered = int((error < RECOVERED).sum())
    passed = recovered == 0 and bool(error.median() >= blank.median())
    sentence = (
        f"{attack.name} recovered {recovered} of {n} images from random gradients"
        f" (median MSE {float(error.median()):.3f}; flat images of the right colour score {float(blank.median()):.3f})"
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
