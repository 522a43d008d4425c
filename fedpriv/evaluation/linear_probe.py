"""Linear probe: the accuracy of a linear classifier on an encoder's frozen features.

The protocol is that of L-DAWA (Rehman et al., ICCV 2023), except as noted. BatchNorm's running statistics are first re-estimated
in a pass over the training images, because their means over clients are not valid. (L-DAWA's code leaves the frozen encoder in
training mode instead: :mod:`fedpriv.evaluation.published_probe`.) Then features are computed once, in evaluation mode and without
augmentation. The classifier is trained by SGD with momentum for 100 epochs, and tested after the last one. With few labels this
is too few steps for features of a small scale, so the accuracy of a logistic regression on standardised features is reported,
too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from fedpriv.attacks.core.threads import one_thread
from fedpriv.client.model import CHUNK
from fedpriv.data.dataset import Dataset
from fedpriv.data.subsets import in_proportion
from fedpriv.errors import UsageError
from fedpriv.samples import laid_out
from fedpriv.seeding import generator, global_rng

FRACTIONS = (1.0, 0.1, 0.01)
"""Shares of the training labels that the classifier uses (L-DAWA, tables 2 and 3)."""
Where = Literal["pooled", "prepool"]
"""Features: the encoder's output, or the flattened input of its last pooling."""


@dataclass(frozen=True)
class Protocol:
    """How the classifier is trained; by default as in L-DAWA."""

    epochs: int = 100
    lr: float = 0.01
    momentum: float = 0.9
    drops: tuple[int, ...] = (60, 80)
    """Epochs after which the learning rate is divided by 10."""
    batch_size: int = 128
    nesterov: bool = False


@dataclass(frozen=True)
class Probed:
    """The result of a probe.

    Attributes:
        fraction, samples: share and number of the training labels that were used.
        accuracy: on all test images, in [0, 1].
        accuracy_as_is: the accuracy with the run's BatchNorm statistics; ``None`` without BatchNorm.
        accuracy_logistic: the accuracy of a logistic regression on the same features; ``None`` if not requested.
    """

    fraction: float
    samples: int
    accuracy: float
    accuracy_as_is: float | None
    accuracy_logistic: float | None


@dataclass(frozen=True)
class Samples:
    """Images that are normalised when they are read.

    Attributes:
        images: positions ``(n,)`` -> images ``(n, C, H, W)`` on the device.
        labels: ``(N,)`` on the device.
    """

    images: Callable[[Tensor], Tensor]
    labels: Tensor


def samples(dataset: Dataset, shape: Sequence[int], device: torch.device, normalised: bool = True) -> tuple[Samples, Samples]:
    """Training and test samples of a data set, resized to ``(C, H, W)`` and normalised by its mean and standard deviation.

    Args:
        normalised: false: images are in [0, 1].

    Raises:
        UsageError: the data set has another number of channels.
    """
    channels, *sides = shape
    if dataset.input_shape[0] != channels:
        raise UsageError(
            f"the run's encoder takes images of {channels} channel{'s' * (channels != 1)}, {dataset.name} has "
            f"{dataset.input_shape[0]}; --dataset names another"
        )
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))

    def of(images: Tensor, labels: Tensor) -> Samples:
        def pick(index: Tensor) -> Tensor:
            chosen = images[index.to(images.device)].to(device).float() / 255
            if list(chosen.shape[2:]) != sides:
                chosen = F.interpolate(chosen, sides, mode="bilinear", antialias=True, align_corners=False)
            return laid_out((chosen - mean) / std if normalised else chosen)

        return Samples(pick, labels.to(device))

    return of(dataset.train_images, dataset.train_labels), of(dataset.test_images, dataset.test_labels)


def probe(
    encoder: nn.Module,
    train: Samples,
    test: Samples,
    classes: int,
    fractions: Sequence[float] = (1.0,),
    seed: int = 0,
    where: Where = "pooled",
    protocol: Protocol | None = None,
    logistic: bool = True,
) -> list[Probed]:
    """Probe an encoder, which does not change.

    Args:
        encoder: (B, C, H, W) -> (B, d).
        fractions: shares of the training samples, each a fixed stratified subset.
        where: the features: the encoder's output, or the input of its last pooling (as in L-DAWA's code).

    Returns:
        the results, one for each fraction.

    Raises:
        UsageError: a fraction leaves a class without a sample, or the encoder has no pooling at its end.
    """
    labels = train.labels.cpu().numpy()
    chosen = [choose_labelled(labels, fraction) for fraction in fractions]
    plain = copy.deepcopy(encoder).eval().requires_grad_(False)
    versions = [plain]
    if any(isinstance(module, _BatchNorm) for module in plain.modules()):
        versions.insert(0, recalibrate(plain, train, seed))
    accuracies: list[list[float]] = []
    fitted: list[float | None] = [None] * len(chosen)
    for version in versions:
        x, unseen = (features(version, part, where) for part in (train, test))
        if logistic and not accuracies:
            fitted = [fit_logistic(x[index], train.labels[index], unseen, test.labels) for index in chosen]
        accuracies.append([])
        for index in chosen:
            classifier = fit(x[index], train.labels[index], classes, seed, protocol or Protocol())
            accuracies[-1].append(float((classifier(unseen).argmax(1) == test.labels).double().mean()))
    as_is = accuracies[1] if len(accuracies) > 1 else [None] * len(chosen)
    results = zip(fractions, chosen, accuracies[0], as_is, fitted, strict=True)
    return [Probed(fraction, len(index), accuracy, *others) for fraction, index, accuracy, *others in results]


@one_thread()
def fit_logistic(x: Tensor, labels: Tensor, unseen: Tensor, true: Tensor) -> float:
    """Accuracy on ``unseen`` features of a logistic regression (L2, C = 1) that is fitted to standardised features ``(n, d)``."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    regression.fit(x.cpu().numpy(), labels.cpu().numpy())
    return float(regression.score(unseen.cpu().numpy(), true.cpu().numpy()))


def recalibrate(encoder: nn.Module, train: Samples, seed: int) -> nn.Module:
    """A copy of the encoder with BatchNorm statistics that are re-estimated in one pass over the training images."""
    copied, count = copy.deepcopy(encoder), len(train.labels)
    order = torch.randperm(count, generator=generator(seed, "probe", "batch norm"))
    # Batches of equal size, up to one sample: in a small last batch, samples would have more weight.
    parts = torch.tensor_split(order, max(1, round(count / CHUNK)))
    with global_rng(seed, "probe", "dropout"):
        update_bn((train.images(part) for part in parts), copied)
    return copied.eval()


@torch.no_grad()
def features(encoder: nn.Module, of: Samples, where: Where = "pooled") -> Tensor:
    """The features of all samples ``(N, d)``, in order."""
    with seeing(encoder, where) as look:
        return torch.cat([look(images) for images in _chunks(of)])


@contextmanager
def seeing(encoder: nn.Module, where: Where) -> Iterator[Callable[[Tensor], Tensor]]:
    """A block that yields a function from images ``(B, C, H, W)`` to features ``(B, d)``.

    Raises:
        UsageError: ``where`` is ``prepool``, and the encoder has no pooling at its end.
    """
    if where == "pooled":
        yield encoder
        return
    pools = [module for module in encoder.modules() if isinstance(module, nn.AdaptiveAvgPool2d)]
    if not pools:
        raise UsageError("features before the pooling need an encoder with average pooling at its end, such as resnet18 or vgg16")
    inputs: list[Tensor] = []
    hook = pools[-1].register_forward_pre_hook(lambda module, args: inputs.append(args[0].flatten(1)))

    def look(images: Tensor) -> Tensor:
        encoder(images)
        return inputs.pop()

    try:
        yield look
    finally:
        hook.remove()


def _chunks(of: Samples) -> Iterator[Tensor]:
    for part in torch.split(torch.arange(len(of.labels)), CHUNK):
        yield of.images(part)


def fit(x: Tensor, labels: Tensor, classes: int, seed: int, protocol: Protocol) -> nn.Linear:
    """Train a linear classifier on features ``(n, d)``."""
    return fit_on(lambda index: x[index], x.shape[1], labels, classes, seed, protocol)


def fit_on(
    look: Callable[[Tensor], Tensor], width: int, labels: Tensor, classes: int, seed: int, protocol: Protocol, least: int = 1
) -> nn.Linear:
    """Train a linear classifier on features that are computed when they are needed.

    Args:
        look: positions ``(B,)`` -> features ``(B, width)``.
        labels: ``(n,)``.
        least: smaller batches are skipped.
    """
    with global_rng(seed, "probe", "classifier"):
        classifier = nn.Linear(width, classes)
    classifier.to(labels.device)
    optimiser = torch.optim.SGD(classifier.parameters(), lr=protocol.lr, momentum=protocol.momentum, nesterov=protocol.nesterov)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(protocol.drops))
    draw = generator(seed, "probe", "shuffle")
    for _ in range(protocol.epochs):
        for index in torch.split(torch.randperm(len(labels), generator=draw).to(labels.device), protocol.batch_size):
            if len(index) < least:
                continue
            optimiser.zero_grad()
            F.cross_entropy(classifier(look(index)), labels[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    return classifier.requires_grad_(False)


def choose_labelled(labels: np.ndarray[tuple[int], np.dtype[np.int64]], fraction: float) -> Tensor:
    """The positions of a share of the samples ``(n,)``: a fixed stratified subset."""
    if not 0 < fraction <= 1:
        raise UsageError(f"--fraction {fraction:g}: must be above 0 and at most 1")
    chosen = in_proportion(labels, round(fraction * len(labels)))
    if missing := sorted(set(np.unique(labels).tolist()) - set(labels[chosen].tolist())):
        raise UsageError(f"--fraction {fraction:g} of {len(labels)} leaves no sample of class {missing[0]}; take more")
    return torch.from_numpy(chosen)
