"""The linear evaluation as L-DAWA's code does it, to compare with its tables (Rehman et al., 2023).

It differs from :func:`fedpriv.evaluation.linear_probe.probe` in five things. The classifier sees the feature map before the last
pooling (512 x 4 x 4 numbers of a ResNet-18 on 32 x 32 pixels). Images are in [0, 1], although they were normalised in training.
Momentum is Nesterov's. Only the encoder's weights are frozen: the net is in training mode, so BatchNorm normalises by the batch,
and its running statistics follow the batches of all epochs; the test uses these, which hides what averaging did to them. And
since features depend on the batch, the encoder computes them anew in each step: 100 passes over the images in place of one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from fedpriv.evaluation.linear_probe import Probed, Protocol, Samples, Where, choose_labelled, features, fit_on, seeing
from fedpriv.seeding import global_rng

PUBLISHED = Protocol(nesterov=True)


def published_probe(
    encoder: nn.Module,
    train: Samples,
    test: Samples,
    classes: int,
    fractions: Sequence[float] = (1.0,),
    seed: int = 0,
    where: Where = "prepool",
    protocol: Protocol = PUBLISHED,
) -> list[Probed]:
    """Probe an encoder, which is not changed.

    Args:
        encoder: (B, C, H, W) -> (B, d).
        train, test: images that are not normalised (``samples(..., normalised=False)``).

    Returns:
        a result for each fraction, in their order; without the accuracies that this protocol does not have.

    Raises:
        UsageError: a fraction leaves a class without a sample, or the encoder has no pooling at its end.
    """
    found = []
    for fraction in fractions:
        chosen = choose_labelled(train.labels.cpu().numpy(), fraction).to(train.labels.device)
        copied = copy.deepcopy(encoder).eval().requires_grad_(False)
        with seeing(copied, where) as look, global_rng(seed, "probe", "dropout"):
            width = look(test.images(torch.arange(1))).shape[1]
            copied.train()
            classifier = fit_on(
                lambda index, chosen=chosen, look=look: look(train.images(chosen[index])),  # type: ignore[misc]
                width,
                train.labels[chosen],
                classes,
                seed,
                protocol,
                least=2,  # BatchNorm cannot normalise maps of one pixel by a single sample
            )
        right = classifier(features(copied.eval(), test, where)).argmax(1) == test.labels
        found.append(Probed(fraction, len(chosen), float(right.double().mean()), None, None))
    return found
