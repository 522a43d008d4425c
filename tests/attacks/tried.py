"""Attacks as tests try them: for a few steps, or as those of another package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedpriv.attacks.attack import ImageAttack, image_attack
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import defaults_of
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.lab.setting import Setting

SHORT = {"steps": 1, "adam_steps": 2, "restarts": 0, "iterations": 1, "adam": 2, "lbfgs": 1}


def short(name: str) -> Any:
    attack = image_attack(name)()
    return replace(attack, **{option: SHORT[option] for option in defaults_of(attack).keys() & SHORT.keys()})


class Foreign(ImageAttack):
    """An attack of another package, which says where it must work."""

    name, control = "foreign", Setting(net="perceptron")

    def __init__(self) -> None:
        self.runs = 0

    def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
        self.runs += 1
        return image_attack("analytic")().run(seen, seed)
