"""The linear probe as in L-DAWA's code, for comparison with its tables (Rehman et al., ICCV 2023).

It differs from :func:`fedpriv.evaluation.linear_probe.probe` in five points:

* the classifier gets the feature map before the last pooling (512 x 4 x 4 numbers of a ResNet-18 for 32 x 32 pixels);
* images are in [0, 1], although training normalises them;
* SGD has Nesterov momentum;
* only the encoder's weights are frozen: in training mode, BatchNorm normalises by the batch and updates its running statistics,
  which the test uses, so the result does not depend on the averaged statistics;
* since features depend on the batch, they are computed anew in each step: 100 passes over the images instead of one.
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
    """Probe an encoder, which does not change.

    Args:
        encoder: (B, C, H, W) -> (B, d).
        train, test: images that are not normalised (``samples(..., normalised=False)``).

    Returns:
        the results, one for each fraction; they have only ``accuracy``.

    Raises:
        UsageError: a fraction leaves a class without a sample, or the encoder has no pooling at its end.
    """
    results = []
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
        results.append(Probed(fraction, len(chosen), float(right.double().mean()), None, None))
    return results
