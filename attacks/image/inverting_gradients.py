"""Inverting Gradients (Geiping, Bauermeister, Dröge & Moeller 2020): cosine distance, total variation, signed Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.registry import register
from fedpriv.attacks.gradients.distances import cosine
from fedpriv.attacks.gradients.matching import Case, Data, Objective, case_of
from fedpriv.attacks.gradients.variables import total_variation
from fedpriv.attacks.image.dlg import label_matching, normal, reconstruction
from fedpriv.attacks.image.statistics_prior import with_running_statistics
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.search import adam, search


@register("inverting-gradients")
@dataclass(frozen=True)
class InvertingGradients:
    """Cosine distance plus total variation, signed Adam; labels by sign or count. Independent of the gradient's norm.

    Attributes:
        steps: 24,000 in the paper for its largest nets; its code has 4,800 for one image.
        lr: falls to a tenth at 3/8, 5/8 and 7/8 of the steps, as in the authors' code.
        total_variation: its weight; 1e-1 in the authors' demonstration on CIFAR-10.
        restarts: further full runs of every image; the one with the least loss is kept.
        running_statistics: weight of the batch statistics that a message gives away
            (:mod:`fedpriv.attacks.image.statistics_prior`), such as 1; of a message without any it does nothing. In trials on
            a ResNet-8 it helped at the initial weights, and not at trained ones.
    """

    control: ClassVar = Setting(net="perceptron")
    usual: ClassVar = {"steps": 800, "total_variation": 1e-3}
    at_once: ClassVar = 8
    head: ClassVar = "shared"
    one_step: ClassVar = True
    steps: int = 2000
    lr: float = 0.1
    total_variation: float = 1e-4
    restarts: int = 0
    running_statistics: float = 0.0

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """See :class:`fedpriv.attacks.core.registry.ImageAttack`."""
        case = case_of(observations, bounded=True, scale_free=True)
        labels = case.labels if case.labels is not None else torch.stack([batch_labels(one) for one in observations])
        objective = with_total_variation(label_matching(case, cosine, labels, known_top=True), case, self.total_variation)
        if self.running_statistics:
            objective = with_running_statistics(objective, case, observations, self.running_statistics)
        milestones = (3 / 8, 5 / 8, 7 / 8)
        best = search(
            objective,
            normal(objective.layout.size),
            lambda o, x, last: adam(o, x, self.lr, self.steps, signed=True, milestones=milestones),
            seed,
            self.restarts,
            failed=-1.0,  # with total variation the loss never reaches 0, so all restarts run
        )
        return reconstruction(case, objective.layout, best, labels)


def with_total_variation(objective: Objective, case: Case, weight: float) -> Objective:
    """The objective plus ``weight`` times the total variation of the net's input."""

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        return objective.loss(unknown, data) + weight * total_variation(case.pixels.input(unknown["image"]))

    return Objective(loss, objective.layout, objective.data)
