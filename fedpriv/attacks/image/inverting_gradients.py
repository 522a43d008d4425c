"""Inverting Gradients (Geiping, Bauermeister, Dröge & Moeller, NeurIPS 2020): cosine distance, total variation, signed Adam.

Minimises ``1 - <g(x), g> / (|g(x)| |g|) + alpha TV(x)`` over the images ``x``, where ``g(x)`` is the gradient that they cause and
``g`` the observed one. The attacker knows the net, its weights and the client's cross-entropy; labels are inferred first. The
cosine ignores the gradient's norm, so clipping does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack, register
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import optional
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.gradients.distances import NEIGHBOURS, cosine
from fedpriv.attacks.gradients.matching import Case, Data, Objective, build_case
from fedpriv.attacks.gradients.variables import total_variation
from fedpriv.attacks.image.dlg import label_matching, normal, reconstruction
from fedpriv.attacks.image.statistics_prior import with_running_statistics
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.search import adam, search

RESOLVED = 1e-6
"""Precision of a cosine in float32."""


@register("inverting-gradients")
@dataclass(frozen=True)
class InvertingGradients(ImageAttack):
    """Cosine distance plus total variation, signed Adam; labels by sign or count. Independent of the gradient's norm.

    Attributes:
        steps: of signed Adam; 24,000 in the paper for its largest nets, 4,800 in the authors' code for one image.
        lr: falls to a tenth at 3/8, 5/8 and 7/8 of the steps, as in the authors' code.
        total_variation: its weight, 1e-1 in the authors' demonstration on CIFAR-10; ``None`` chooses it (:func:`log_posterior`).
        restarts: further full runs of every image; the one with the smallest loss is kept.
        running_statistics: weight of the batch statistics in the message, such as 1
            (:mod:`fedpriv.attacks.image.statistics_prior`); no effect on a message without any. In trials on a ResNet-8 it helped
            at the initial weights, but not at trained ones.
    """

    control: ClassVar = Setting(net="perceptron")
    audit_options: ClassVar = {"steps": 800}
    max_batch: ClassVar = 8
    head: ClassVar = "shared"
    one_step: ClassVar = True
    steps: int = 2000
    lr: float = 0.1
    total_variation: float | None = optional(float)
    restarts: int = 0
    running_statistics: float = 0.0

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        case = build_case(observations, bounded=True, scale_free=True)
        labels = (
            case.labels if case.labels is not None else torch.stack([batch_labels(observation) for observation in observations])
        )
        matching = replace(label_matching(case, cosine, labels, known_top=True), single=True)
        if self.running_statistics:
            matching = with_running_statistics(matching, case, observations, self.running_statistics)
        if self.total_variation is not None:
            objective = with_total_variation(matching, case, self.total_variation)
        else:
            objective = log_posterior(matching, case) if case.exact else matching
        milestones = (3 / 8, 5 / 8, 7 / 8)
        best = search(
            objective,
            normal(objective.layout.size),
            lambda o, starts: adam(o, starts.points, self.lr, self.steps, signed=True, milestones=milestones, enough=-math.inf),
            seed,
            self.restarts,
            failed=-math.inf,  # the smallest possible loss is unknown, so all steps and restarts are done
        )
        return reconstruction(case, objective.layout, best, labels)


def with_total_variation(objective: Objective, case: Case, weight: float) -> Objective:
    """The objective plus ``weight`` times the total variation of the net's input."""

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        return objective.loss(unknown, data) + weight * total_variation(case.pixels.input(unknown["image"]))

    return replace(objective, loss=loss)


def log_posterior(objective: Objective, case: Case) -> Objective:
    """The log of the distance plus total variation, with a weight that needs no tuning.

    A search matches the gradient only approximately (it has not converged, ReLU has kinks, a label may be wrong). For Gaussian
    errors whose unknown variance is replaced by its maximum likelihood estimate, and the prior of
    :func:`fedpriv.attacks.gradients.distances.negative_log_prior`, the maximum a posteriori images minimise
    ``entries / 2 * log(distance) + sum |differences of neighbours| / NEIGHBOURS``. Entries that are zero, as of inactive ReLU
    units, are not counted. So the relative weight of the total variation grows with the number of pixels and falls with the
    distance.

    If the errors' variance is known, :func:`fedpriv.attacks.gradients.distances.matching_loss` includes the prior already.
    """
    entries = torch.stack([(tensor != 0).flatten(1).sum(1) for tensor in case.observed.values()]).sum(0).clamp_min(1)
    pixels = case.samples * math.prod(case.shape)
    weight = 2 * pixels / NEIGHBOURS / entries.to(next(iter(case.observed.values())))

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        variation = total_variation(case.pixels.image(unknown["image"]))
        return (objective.loss(unknown, data) + RESOLVED).log() + data["variation"] * variation

    return replace(objective, loss=loss, data={**objective.data, "variation": weight})
