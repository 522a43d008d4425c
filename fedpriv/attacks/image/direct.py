"""Registered image attacks other than gradient matching: row ratios, feature inversion, SPEAR and unrolled training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedpriv.attacks.attack import ByMessage, register
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Empty, Inapplicable, SingleReconstruction, filled
from fedpriv.attacks.gradients.analytic import invertible_layers, require_invertible_layers, row_ratios, single_sample, why_empty
from fedpriv.attacks.gradients.linear import denormalise_images, is_rectified
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.gradients.spear import SpearOptions, projected, rectified_layer, unmix
from fedpriv.attacks.image.feature_inversion import InversionOptions, invert_features
from fedpriv.attacks.image.unrolled import UnrolledOptions, unroll
from fedpriv.attacks.lab.setting import Setting


@register("analytic")
@dataclass(frozen=True)
class Analytic(ByMessage):
    """Images read off the first shared linear layer (weight over bias gradient) where it is fed the image; no optimisation."""

    control: ClassVar = Setting(net="one for each", min_recovery=0.5)
    max_batch: ClassVar = 128
    optimises: ClassVar = False
    simulates: ClassVar = False

    empty = staticmethod(why_empty)

    @staticmethod
    def harder(observation: Observation) -> str | None:
        gradient = as_gradient(observation)
        first = invertible_layers(gradient)[0][0].name
        if observation.num_examples == 1 or is_rectified(gradient, first):
            return None
        return f"no ReLU follows {first!r}, so that every image behind a message moves every neuron"

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        """The loss is the share of the layer's gradient that one sample leaves unexplained; for a batch, the share of pixels out
        of range. If there are fewer candidates than samples, the rest is NaN. If the number of samples is unknown, all plausible
        candidates are returned.
        """
        layer, fed = require_invertible_layers(as_gradient(observation))[0]
        if not fed.is_image:
            raise Inapplicable(f"the input of {layer.name!r} is features, not the image; analytic-features inverts those")
        if why := why_empty(observation):
            raise Empty(why)
        if observation.num_examples == 1:
            recovered, loss = single_sample(observation)[0]
            return SingleReconstruction(recovered.values, torch.tensor([-1]), [loss], (loss,))
        candidates, n = row_ratios(observation)[0], observation.num_examples
        images = candidates.values[candidates.plausible] if n is None else filled(candidates.values, n)
        loss = float(1 - candidates.in_range[: len(images)].mean()) if len(candidates.values) and len(images) else 1.0
        return SingleReconstruction(images, torch.full((len(images),), -1), [loss], (loss,))


@register("analytic-features")
@dataclass(frozen=True)
class AnalyticFeatures(InversionOptions, ByMessage):
    """For one sample: features read off the first shared linear layer, then an image with these features and gradients."""

    control: ClassVar = Setting(layers=2, masked=1, images=2)
    audit_options: ClassVar = {"adam": 300, "lbfgs": 20}
    simulates: ClassVar = False
    one_step: ClassVar = True

    empty = staticmethod(why_empty)

    @staticmethod
    def check(observation: Observation) -> None:
        if observation.num_examples not in (1, None):
            raise Inapplicable("the features of a batch are mixtures: analytic-features is for one sample")
        require_invertible_layers(observation)

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        self.check(observation)
        if why := why_empty(observation):
            raise Empty(why)
        image, loss, curve = invert_features(observation, self, seed)
        return SingleReconstruction(image, torch.tensor([-1]), [*curve, loss], (loss,))


@register("spear")
@dataclass(frozen=True)
class Spear(SpearOptions, ByMessage):
    """All images of a batch from a first linear layer with ReLU, whose gradient is made of sparse columns (SPEAR)."""

    control: ClassVar = Setting(net="rectified")
    audit_options: ClassVar = {"most": 16}
    max_batch: ClassVar = 16
    optimises: ClassVar = False
    simulates: ClassVar = False

    empty = staticmethod(why_empty)

    @staticmethod
    def check(observation: Observation) -> None:
        layer, error = rectified_layer(observation)
        if not why_empty(observation):  # else another message may reveal something
            projected(layer, SpearOptions.most, error)

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        """The loss is the share of neurons and samples at which an image and its column of the gradient disagree. If fewer images
        are found than there are samples, the rest is NaN.
        """
        layer, error = rectified_layer(observation)
        if why := why_empty(observation):
            raise Empty(why)
        weight, bias = (observation.weights[f"{layer.name}.{kind}"] for kind in ("weight", "bias"))
        recovered = unmix(layer, weight, bias, self, error, seed)
        n = observation.num_examples or recovered.rank
        inputs = recovered.inputs.reshape(-1, *observation.input_shape).to(layer.weight)
        images = filled(denormalise_images(observation, inputs), n)
        loss = 1 - float(recovered.agreement[:n].sum()) / n
        return SingleReconstruction(images, torch.full((n,), -1), [loss], (loss,))


@register("unrolled")
@dataclass(frozen=True)
class Unrolled(UnrolledOptions, ByMessage):
    """Dummy images whose simulated local training changes the weights as observed; for a few local steps."""

    control: ClassVar = Setting(net="perceptron", steps=2, images=2)
    audit_options: ClassVar = {"iterations": 40, "restarts": 1}
    max_batch: ClassVar = 4
    most_steps: ClassVar = 10

    @staticmethod
    def check(observation: Observation) -> None:
        if observation.kind == "gradient":
            raise Inapplicable("the unrolled attack needs a weight change; for a gradient there is gradient matching")

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        recovered = unroll(observation, self, seed=seed)
        return SingleReconstruction(recovered.images, recovered.labels.argmax(dim=1), list(recovered.curve), recovered.losses)
