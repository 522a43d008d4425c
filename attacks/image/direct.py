"""The image attacks other than gradient matching, as the registry needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.core.observation import Observation
from attacks.core.reconstruction import Inapplicable, Reconstruction
from attacks.core.registry import register
from attacks.gradients.analytic import AnalyticOptions, Candidates, leaky_layers, row_ratios, single_sample
from attacks.image.feature_inversion import InversionOptions, invert_features
from attacks.image.unrolled import UnrolledOptions, unroll
from attacks.lab.setting import Setting


@dataclass(frozen=True)
class _One:
    """The reconstruction of one message: images ``(B, C, H, W)``, labels ``(B,)``, loss along the way, losses of the starts."""

    images: Tensor
    labels: Tensor
    curve: list[float]
    losses: tuple[float, ...]


@register("analytic")
@dataclass(frozen=True)
class Analytic(AnalyticOptions):
    """Images read off the first shared linear layer (weight over bias gradient) where it is fed the image; no optimisation."""

    control: ClassVar = Setting(net="one for each", least=0.5)
    at_once: ClassVar = 128
    optimises: ClassVar = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """See :class:`attacks.core.registry.ImageAttack`.

        The loss is the share of the layer's gradient that one sample leaves unexplained; for a batch, the share of pixels outside
        the range of images. Where there are fewer candidates than samples, the rest is grey.
        """
        return _together(observations, self._one)

    def _one(self, observation: Observation) -> _One:
        found = row_ratios(observation, self)[0]
        if not found.is_image:
            raise Inapplicable(f"the input of {found.layer!r} is features, not the image; analytic-features inverts those")
        if observation.num_examples == 1:
            one, loss = single_sample(observation, self.undo_decay)[0]
            return _One(one.values, torch.tensor([-1]), [loss], (loss,))
        images = _first(found, observation.num_examples or 1)
        loss = float(1 - found.in_range[: len(images)].mean()) if len(found.values) else 1.0
        return _One(images, torch.full((len(images),), -1), [loss], (loss,))


@register("analytic-features")
@dataclass(frozen=True)
class AnalyticFeatures(InversionOptions):
    """For one sample: features read off the first shared linear layer, then an image with these features and gradients."""

    control: ClassVar = Setting(layers=2, masked=1, images=2)
    usual: ClassVar = {"adam": 300, "lbfgs": 20}

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """See :class:`attacks.core.registry.ImageAttack`."""
        return _together(observations, lambda observation: self._one(observation, seed))

    @staticmethod
    def check(observation: Observation) -> None:
        """See :class:`attacks.lab.setting.Declared`."""
        if observation.num_examples not in (1, None):
            raise Inapplicable("the features of a batch are mixtures: analytic-features is for one sample")
        if not leaky_layers(observation):
            raise Inapplicable("no linear layer with a bias was shared: its features cannot be read off")

    def _one(self, observation: Observation, seed: int) -> _One:
        self.check(observation)
        image, loss, curve = invert_features(observation, self, seed)
        return _One(image, torch.tensor([-1]), [*curve, loss], (loss,))


@register("unrolled")
@dataclass(frozen=True)
class Unrolled(UnrolledOptions):
    """Dummy images whose simulated local training changes the weights as observed; for a few local steps."""

    control: ClassVar = Setting(net="perceptron", steps=2, images=2)
    usual: ClassVar = {"iterations": 20, "restarts": 0}
    at_once: ClassVar = 4
    most_steps: ClassVar = 8

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """See :class:`attacks.core.registry.ImageAttack`."""
        return _together(observations, lambda observation: self._one(observation, seed))

    @staticmethod
    def check(observation: Observation) -> None:
        """See :class:`attacks.lab.setting.Declared`."""
        if observation.kind == "gradient":
            raise Inapplicable("the unrolled attack needs a weight change; for a gradient there is gradient matching")

    def _one(self, observation: Observation, seed: int) -> _One:
        found = unroll(observation, self, seed=seed)
        return _One(found.images, found.labels.argmax(dim=1), list(found.curve), found.losses)


def _first(found: Candidates, n: int) -> Tensor:
    grey = found.values.new_full((n, *found.values.shape[1:]), 0.5)
    grey[: len(found.values)] = found.values[:n]
    return grey


def _together(observations: Sequence[Observation], attack: Callable[[Observation], _One]) -> Reconstruction:
    """Attack one message after the other, as none of these attacks gains from a batch of messages."""
    start = time.process_time()
    ones = [attack(observation) for observation in observations]
    steps = max(len(one.curve) for one in ones)
    curve = torch.full((steps, len(ones)), torch.nan)
    for column, one in enumerate(ones):
        curve[: len(one.curve), column] = torch.tensor(one.curve)
    losses = [torch.tensor(one.losses) for one in ones]
    return Reconstruction(
        raw=torch.cat([one.images for one in ones]),
        labels=torch.cat([one.labels for one in ones]),
        loss=torch.stack([each.min() for each in losses]),
        curve=curve,
        iterations=torch.tensor([len(one.curve) * len(one.losses) for one in ones]),
        restart=torch.stack([each.argmin() for each in losses]),
        cpu_seconds=time.process_time() - start,
    )
