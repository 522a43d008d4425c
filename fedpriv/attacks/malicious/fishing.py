"""Fishing: the head is altered so that a batch's gradient is that of one class ("Fishing for User Data", Wen et al., ICML 2022).

All weights of the head are zero except those of the target class c, whose bias is far below the others'. Then ``p_c`` is about 0,
and the gradient of the loss at the features, ``sum_j W_j (p_j - y_j)``, is ``-W_c`` for samples of class c and 0 for all others
(class fishing, section 3.1). What the layers before the head send is the gradient of the few samples of that class, and an attack
of an honest server reconstructs them: read off where the first layer is linear, by DLG elsewhere.

It works for one local step only: the step moves the other classes' weights away from zero, and all samples are in the next
step's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import ByMessage, register
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction, SingleReconstruction, filled
from fedpriv.attacks.gradients.analytic import CERTAIN, invertible_layers
from fedpriv.attacks.gradients.linear import output_layer
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.image.direct import Analytic
from fedpriv.attacks.image.heads import KnownHead
from fedpriv.attacks.inference.labels import batch_labels, clipped_to
from fedpriv.attacks.lab.setting import HALF, Setting
from fedpriv.attacks.malicious.adapted import not_adapted

CLEAR = 0.1
"""Largest distance of an inferred number of samples from a whole number."""
ALONE = 1e-3
"""Largest weight of another class in an altered head, as a share of the target's."""


@register("fishing")
@dataclass(frozen=True)
class Fishing(ByMessage):
    """Malicious server: the head lets only the samples of one class into the gradient, which are then reconstructed.

    Attributes:
        target: the class; -1: the rarest class in the client's earlier message.
        below: logits by which the target's bias is below the others'.
        most: the largest number of samples of the class on which it is run.
        steps, restarts: of DLG.
    """

    control: ClassVar = Setting(threat=ThreatModel(download="altered"), images=8, per_message=8, min_recovery=0.5, targeted=True)
    audit_options: ClassVar = None
    max_batch: ClassVar = 8
    target: int = ranged(-1, -1)
    below: float = 20.0
    most: int = 4
    steps: int = 100
    restarts: int = 2

    @staticmethod
    def check(observation: Observation) -> None:
        if output_layer(observation).bias is None:
            raise Inapplicable("the last layer has no bias, which fishing sets")
        if observation.num_examples is None:
            raise Inapplicable("fishing needs the number of samples, to know how many are of the class")
        if observation.kind == "change" and observation.schedule is None:
            raise Inapplicable(
                "without the client's schedule it cannot be told how many samples of the class are behind its change"
            )
        if observation.schedule is not None and observation.schedule.steps > 1:
            raise Inapplicable(f"fishing is for one local step; the client takes {observation.schedule.steps}")

    @staticmethod
    def harder(observation: Observation) -> str | None:
        return not_adapted(observation)

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        self.check(observation)
        layer = output_layer(observation)
        target = self._target(observation)
        weight = torch.zeros_like(observation.weights[f"{layer.name}.weight"])
        weight[target] = observation.weights[f"{layer.name}.weight"][target]
        bias = torch.zeros_like(observation.weights[f"{layer.name}.bias"])
        bias[target] = -self.below
        return {f"{layer.name}.weight": weight, f"{layer.name}.bias": bias}

    def _target(self, observation: Observation) -> int:
        if self.target >= observation.classes:
            raise Inapplicable(f"the target {self.target} is none of the {observation.classes} classes")
        if self.target >= 0:
            return self.target
        counts = torch.bincount(batch_labels(observation).cpu(), minlength=observation.classes)
        return int(torch.where(counts > 0, counts, counts.max() + 1).argmin())

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        """The loss is that of the attack that reconstructs the class. Images of other classes are NaN."""
        alone, n = self.caught(observation), observation.num_examples or 1
        result = _read_off(alone, seed) or KnownHead(self.steps, self.restarts).run([alone], seed)
        labels = torch.full((n,), -1)
        assert alone.labels is not None, "those of the target class"
        labels[: len(result.raw)] = alone.labels
        return SingleReconstruction(filled(result.raw, n), labels, result.curve[:, 0].tolist(), (float(result.loss),))

    def caught(self, observation: Observation) -> Observation:
        """The message as one of the samples of the target class alone, without the head's gradient.

        Raises:
            Inapplicable: the head is not altered, or the message has none or too many samples of the class.
        """
        self.check(observation)
        seen, layer = as_gradient(observation), output_layer(observation)
        lengths = observation.weights[f"{layer.name}.weight"].norm(dim=1)
        target = int(lengths.argmax())
        if float(lengths.sort().values[-2]) > ALONE * float(lengths[target]):
            raise Inapplicable(f"{layer.name!r} is as an honest server sends it: it has weights of more than one class")
        n = observation.num_examples or 1
        of_class, clipped = _count(seen, layer.name, target)
        if not 0 < of_class <= self.most:
            raise Inapplicable(f"the message has {of_class} samples of class {target}, not 1 to {self.most}")
        factor = n / of_class / clipped
        shared = {name: factor * tensor for name, tensor in seen.shared.items() if not name.startswith(f"{layer.name}.")}
        labels = torch.full((of_class,), target)
        altered = seen.altered.scaled(lambda _: factor)
        return replace(seen, shared=shared, num_examples=of_class, labels=labels, altered=altered)


def _read_off(alone: Observation, seed: int) -> Reconstruction | None:
    """The samples by the closed form; ``None`` where it cannot be run, or gives mixtures of samples, as without a ReLU."""
    if not invertible_layers(alone) or Analytic.harder(alone) is not None:
        return None
    try:
        return Analytic().run([alone], seed)
    except Inapplicable:
        return None


def _count(seen: Observation, name: str, target: int) -> tuple[int, float]:
    """How many samples of a gradient behind an altered head are of the class, and the factor by which clipping scaled it.

    Every other class has the same probability for all samples. So the number of samples of a class follows from how far its bias
    gradient is below that of an absent class, which in turn shows the factor of clipping.

    Raises:
        Inapplicable: the number cannot be inferred.
    """
    name, n = f"{name}.bias", seen.num_examples or 1
    if (kept := seen.altered.kept.get(name)) is not None and not bool(kept.all()):
        raise Inapplicable(f"entries of {name!r} were not sent, so the number of samples of the class cannot be told")
    bias = seen.shared[name].double().cpu()
    others = bias[torch.arange(len(bias)) != target]
    absent = torch.full_like(others, 1 / len(others))
    clipped = clipped_to(seen, others, absent)
    error = CLEAR + CERTAIN * n * seen.altered.variance.get(name, 0.0) ** 0.5 / clipped
    counts = n * torch.cat([-bias[target][None] / clipped, absent - others / clipped])
    if error > HALF or float((counts - counts.round()).abs().max()) > error:
        why = "because of noise, clipping or another loss"
        raise Inapplicable(f"it cannot be told how many samples of class {target} there are, {why}")
    return int(counts[0].round()), clipped
