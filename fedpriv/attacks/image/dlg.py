"""Deep Leakage from Gradients (DLG, Zhu et al. 2019) and improved DLG (iDLG, Zhao et al. 2020): as published, and robust.

The attacker knows the net, its weights and the client's cross-entropy. DLG minimises ``|dL(x, y)/dW - g|^2`` over a dummy image
``x`` and soft labels ``y`` by L-BFGS. iDLG first reads the label off the last layer: for one sample only the true class's logit
has a negative gradient, ``p_c - 1``. The robust forms keep the image in [0, 1] by a sigmoid, use a strong-Wolfe line search, and
restart failed starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack, register
from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.distances import Distance, per_layer, relative, squared
from fedpriv.attacks.gradients.matching import (
    Case,
    Data,
    Objective,
    batched_gradient_from_labels,
    build_case,
    gradient_from_labels,
)
from fedpriv.attacks.gradients.variables import Layout
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.lbfgs import SAFE_SCALE, LbfgsOptions
from fedpriv.attacks.optimise.search import STALLED, SearchResult, SolverResult, Starts, lbfgs, search

FAILED = 3.0
"""For a gradient with errors, a start has failed above this multiple of the distance expected at the true images."""


@register("dlg-published")
@dataclass(frozen=True)
class PublishedDlg(ImageAttack):
    """DLG as published: image and soft labels, L-BFGS without line search, 300 steps, one start, unbounded image."""

    infers_labels: ClassVar = False

    # A third of these runs diverge, so four images can only show that the attack can succeed.
    control: ClassVar = Setting(min_recovery=0.25)
    audit_options: ClassVar = None
    head: ClassVar = "shared"
    steps: int = 300

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        case = build_case(undefended(observations), bounded=False)
        labels = known_labels(case, self.infers_labels)
        objective = labels_together(case, squared, labels)

        def solve(objective: Objective, starts: Starts) -> SolverResult:
            return lbfgs(objective, starts.points, LbfgsOptions(), self.steps)

        best = search(objective, normal(objective.layout.size), solve, seed)
        return reconstruction(case, objective.layout, best, labels)


@register("idlg-published")
@dataclass(frozen=True)
class PublishedIdlg(PublishedDlg):
    """iDLG as published: the label by the sign rule, then as DLG."""

    infers_labels: ClassVar = True


@register("dlg")
@dataclass(frozen=True)
class Dlg(ImageAttack):
    """Robust DLG: strong-Wolfe line search, image kept in [0, 1], early stop, restart of starts that failed by their own loss.

    Attributes:
        steps: outer L-BFGS steps per start.
        restarts: largest number of further starts for failed images.
        enough: unexplained share of the gradient's squared norm at which a start ends.
        failed: unexplained share above which a start has failed.
        give_up: (outer step, share): a start above this share at this step is replaced by a new one, except in the last restart.
        stalled: (outer steps, share): a start ends if its loss fell by less than this share in so many steps; after success, it
            already ends when the loss falls by less than 25 %.
        history: of L-BFGS.
        normalised: give every tensor equal weight (:func:`fedpriv.attacks.gradients.distances.per_layer`), not every entry.
    """

    control: ClassVar = Setting()
    audit_options: ClassVar = {"restarts": 1}
    max_batch: ClassVar = 4
    head: ClassVar[Literal["shared", "hidden"]] = "shared"
    one_step: ClassVar = True
    any_labels: ClassVar = True
    infers_labels: ClassVar = False
    known_top: ClassVar = False
    """See :func:`label_matching`."""
    steps: int = 100
    restarts: int = ranged(4)
    enough: float = 5e-8
    failed: float = 1e-5
    give_up: tuple[int, float] = ranged((20, 1e-2))
    stalled: tuple[int, float] = ranged(STALLED)
    history: int = ranged(100, 1, 1000)
    normalised: bool = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        case = build_case(observations, bounded=True)
        labels = known_labels(case, self.infers_labels)
        objective = labels_together(case, per_layer if self.normalised else relative, labels, self.known_top)
        lbfgs_options = LbfgsOptions(history=self.history, line_search=True)
        noise = FAILED * case.expected()
        failed = max(self.failed, noise)

        def solve(objective: Objective, starts: Starts) -> SolverResult:
            limit = torch.where(starts.last, torch.inf, max(self.give_up[1], noise))
            return lbfgs(
                objective, starts.points, lbfgs_options, self.steps, self.enough, give_up=(self.give_up[0], limit),
                stalled=self.stalled, scale=SAFE_SCALE, of=starts.of, succeeded=failed,
            )  # fmt: skip

        best = search(objective, normal(objective.layout.size), solve, seed, self.restarts, failed, batch_restarts=True)
        return reconstruction(case, objective.layout, best, labels)


@register("idlg")
@dataclass(frozen=True)
class Idlg(Dlg):
    """Robust iDLG: the label by the sign rule, then as robust DLG."""

    any_labels: ClassVar = False
    infers_labels: ClassVar = True


def known_labels(case: Case, infers: bool) -> Tensor | None:
    """The labels ``(N, B)`` that are given or, with ``infers``, read off the last layer; ``None``: they are unknowns."""
    return case.labels if case.labels is not None else sign_rule(case) if infers else None


def sign_rule(case: Case) -> Tensor:
    """iDLG's labels ``(N, B)``: for one sample only the true class has a negative gradient at its logit.

    The last bias has the gradient of the logits. Without a bias, the row sums of the last weight's gradient have its sign if no
    feature is negative. For ``B`` samples, takes the ``B`` smallest entries, which is right if all labels differ.

    Raises:
        Inapplicable: the last layer's gradient is not shared, or there are more samples than classes.
    """
    if case.samples > case.classes:
        raise Inapplicable(
            f"the label rule is for labels that differ, and there are {case.samples} samples of {case.classes} classes"
        )
    last = [name for name, _ in case.net.top.named_parameters()][-1]
    observed = case.observed.get(f"top.{last}")
    if observed is None:
        raise Inapplicable("the label rule reads the last layer, and its gradient is not shared; head-free does without")
    scores = observed if observed.ndim == 2 else observed.flatten(2).sum(2)
    return scores.topk(case.samples, 1, largest=False).indices


def label_matching(case: Case, distance: Distance, labels: Tensor | None, known_top: bool = False) -> Objective:
    """The objective with unknown images, and unknown soft labels unless ``labels`` ``(N, B)`` are given.

    Args:
        known_top: whether gradients of ``top`` may be missing, as its weights are known.

    Raises:
        Inapplicable: the weights of ``top`` are not known, or its gradients are needed and not shared.
    """
    if not case.knows_top():
        raise Inapplicable("hidden layers have unknown weights; head-free does without them")
    if not known_top and not case.shared_top():
        raise Inapplicable("layers are hidden; known-head matches the gradient of the others")
    shapes: dict[str, tuple[int, ...]] = {"image": (case.samples, *case.shape)}
    data = case.data()
    if labels is None:
        shapes["label"] = (case.samples, case.classes)
    else:
        data["target"] = torch.nn.functional.one_hot(labels, case.classes).to(data[next(iter(data))].dtype)
    names = list(case.observed)

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        target = data["target"] if "target" in data else unknown["label"].softmax(-1)
        inputs = case.pixels.input(unknown["image"])
        guess = gradient_from_labels(case.net, case.weights_of(data), names, inputs, target)
        return case.distance(distance, guess, unknown["image"], data)

    return Objective(loss, Layout(shapes), data)


def labels_together(case: Case, distance: Distance, labels: Tensor | None, known_top: bool = False) -> Objective:
    """:func:`label_matching`, computed for all reconstructions at once."""
    objective, names = label_matching(case, distance, labels, known_top), list(case.observed)

    def apart(guess: Data, images: Tensor, data: Data) -> Tensor:
        return case.distance(distance, guess, images, data)

    def losses(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        targets = data["target"] if "target" in data else unknown["label"].softmax(-1)
        guess = batched_gradient_from_labels(case, names, data, case.pixels.input(unknown["image"]), targets)
        distances: Tensor = vmap_or_loop(apart, guess, unknown["image"], data)
        return distances

    return replace(objective, together=losses)


def reconstruction(case: Case, layout: Layout, best: SearchResult, labels: Tensor | None) -> Reconstruction:
    """The images and labels of the best unknowns."""
    unknown = layout.unpack(best.x)
    if labels is None:
        labels = unknown["label"].argmax(-1) if "label" in unknown else torch.full((case.n, case.samples), -1)
    raw = case.pixels.image(unknown["image"]).flatten(0, 1)
    return Reconstruction(raw, labels.flatten(), best.loss, best.curve, best.iterations, best.restart, best.cpu_seconds)


def normal(size: int) -> Callable[[torch.Generator], Tensor]:
    """A sampler of starts ``(size,)`` from N(0, 1)."""
    return lambda generator: torch.randn(size, generator=generator)


def undefended(observations: Sequence[Observation]) -> list[Observation]:
    """The messages as if undefended, as the published attacks assume."""
    return [replace(observation, altered=UNALTERED) for observation in observations]
