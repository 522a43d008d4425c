"""Gradient matching on the shared layers with a substitute for a hidden head: known, random, or optimised weights.

All match the gradients of the shared layers alone, as DLG does for a whole net. The hidden head's gradients are not needed, but
its weights are: from this round's or the first broadcast (known-head), at random as in MpFedcon's paper (random-head), or as
further unknowns (joint-head).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import ImageAttack, register
from fedpriv.attacks.core.observation import Observation, SplitNet, ThreatModel, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.gradients.distances import per_layer, relative, squared
from fedpriv.attacks.gradients.matching import Case, Data, Objective, build_case, gradient_from_labels
from fedpriv.attacks.gradients.variables import Layout
from fedpriv.attacks.image.dlg import FAILED, Dlg, labels_together, normal, reconstruction, undefended
from fedpriv.attacks.image.head_free import adam_then_lbfgs, layer_calls
from fedpriv.attacks.lab.nets import WIDTHS, linear_layers, uniform_
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.lbfgs import PUBLISHED, SAFE_SCALE, STRONG_WOLFE
from fedpriv.attacks.optimise.search import STALLED, SolverResult, Starts, lbfgs, search


@register("known-head")
@dataclass(frozen=True)
class KnownHead(Dlg):
    """Gradient matching on the shared layers with known weights of the hidden ones: of this round's broadcast, or of round 0.

    Robust DLG without the gradient of the hidden layers; image and soft labels are the unknowns.
    """

    control: ClassVar = Setting(masked=1, threat=ThreatModel(top="initial"))
    any_labels: ClassVar = False
    known_top: ClassVar = True
    head: ClassVar = "hidden"


@register("random-head")
@dataclass(frozen=True)
class RandomHead(ImageAttack):
    """The naive attacker of MpFedcon's paper: DLG on the shared layers through a random head, which is wrong.

    Attributes:
        assumed: number of linear layers of the assumed head (``at`` in the paper), with the reference nets' widths.
        steps: outer steps of L-BFGS; the loss hardly changes after about 20.
        published: unbounded image and no line search, as in the paper, where the image diverges; otherwise as robust DLG.
    """

    control: ClassVar = Setting(masked=1, min_recovery=0)
    audit_options: ClassVar = {"steps": 30}
    head: ClassVar = "hidden"
    assumed: int = 1
    steps: int = 50
    restarts: int = 0
    published: bool = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        observations = undefended(observations) if self.published else observations
        case = with_random_head(build_case(observations, bounded=not self.published), self.assumed, seed)
        objective = labels_together(case, squared if self.published else relative, case.labels, known_top=True)
        options, stalled, scale = (PUBLISHED, (0, 0.0), 1.0) if self.published else (STRONG_WOLFE, STALLED, SAFE_SCALE)

        def solve(objective: Objective, starts: Starts) -> SolverResult:
            return lbfgs(objective, starts.points, options, self.steps, stalled=stalled, scale=scale)

        best = search(objective, normal(objective.layout.size), solve, seed, self.restarts, failed=-1.0)
        return reconstruction(case, objective.layout, best, case.labels)


@register("joint-head")
@dataclass(frozen=True)
class JointHead(ImageAttack):
    """Optimises a head together with image and soft labels: with the hidden architecture, or assumed linear layers.

    All weights of the head are unknowns (100,000 for two linear layers). Three times the steps and a second start recovered no
    more: 0 of 20 images either way.
    """

    control: ClassVar = Setting(masked=1, min_recovery=0)
    audit_options: ClassVar = {"adam_steps": 300}
    head: ClassVar = "hidden"
    assumed: int | None = None
    adam_steps: int = 500
    lr: float = 0.05
    steps: int = 20
    restarts: int = 0
    enough: float = 1e-7
    failed: float = 1e-4

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        case = build_case(observations, bounded=True)
        if self.assumed is not None:
            case = with_random_head(case, self.assumed, seed)
        objective = joint_matching(case)

        def start(generator: torch.Generator) -> Tensor:
            parts: dict[str, Tensor] = {}
            for name, shape in objective.layout.shapes.items():
                of_head = name.startswith("top.")
                drawn = (torch.rand if of_head else torch.randn)(1, *shape, generator=generator)
                parts[name] = drawn - 0.5 if of_head else drawn
            return objective.layout.pack(parts)[0]

        def solve(objective: Objective, starts: Starts) -> SolverResult:
            return adam_then_lbfgs(objective, starts.points, self.lr, self.adam_steps, STRONG_WOLFE, self.steps, self.enough)

        best = search(objective, start, solve, seed, self.restarts, max(self.failed, FAILED * case.expected()))
        return reconstruction(case, objective.layout, best, case.labels)


def with_random_head(case: Case, assumed: int, seed: int) -> Case:
    """The case with ``top`` replaced by ``assumed`` linear layers with random weights, U(-0.5, 0.5).

    Raises:
        Inapplicable: only ``top`` was shared, or no reference head has so many layers.
    """
    if assumed not in WIDTHS:
        raise Inapplicable(f"a head of {min(WIDTHS)} to {max(WIDTHS)} linear layers can be assumed, not {assumed}")
    body = case.body_only()
    if not body.observed:
        raise Inapplicable("none of the layers before the head is shared")
    top = nn.Sequential(*linear_layers(layer_calls(case)[1], case.classes, assumed)).to(next(iter(body.observed.values())).dtype)
    uniform_(top, torch.Generator().manual_seed(seed))
    head = {f"top.{name}": p.detach() for name, p in top.named_parameters()}
    net = SplitNet(case.net.body, top.eval()).requires_grad_(False)
    return replace(body, net=net, weights=body.weights | head)


def joint_matching(case: Case) -> Objective:
    """The objective with unknown images, soft labels (unless given) and all weights of ``top``.

    Raises:
        Inapplicable: none of the layers before the head is shared.
    """
    case = case.body_only()
    shapes: dict[str, tuple[int, ...]] = {"image": (case.samples, *case.shape)}
    data = case.data()
    if case.labels is None:
        shapes["label"] = (case.samples, case.classes)
    else:
        data["target"] = nn.functional.one_hot(case.labels, case.classes).to(next(iter(data.values())).dtype)
    shapes |= {f"top.{name}": tuple(p.shape) for name, p in case.net.top.named_parameters()}
    names = list(case.observed)
    if not names:
        raise Inapplicable("none of the layers before the head is shared")
    if buffers := [name for name in state_names(case.net.top) if f"top.{name}" not in shapes]:
        raise Inapplicable(f"this attack cannot optimise hidden layers with buffers ({buffers[0]})")

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        target = data["target"] if "target" in data else unknown["label"].softmax(-1)
        weights = case.weights_of(data) | {n: w for n, w in unknown.items() if n.startswith("top.")}
        guess = gradient_from_labels(case.net, weights, names, case.pixels.input(unknown["image"]), target)
        return case.distance(per_layer, guess, unknown["image"], data)

    return Objective(loss, Layout(shapes), data)
