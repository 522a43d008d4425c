"""The rules that infer a client's classes from its message, each an attack of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import training_net
from fedpriv.attacks.inference.labels import Samples, bias_counts, embedding_counts, present_classes, public_counts, row_classes
from fedpriv.attacks.labels.stated import LabelSet, read_label_set

PUBLIC_SAMPLES = 128
"""So many public samples are enough: with four times as many, counts are hardly better."""


@dataclass(frozen=True)
class Rule:
    """A way to infer classes from a message.

    Attributes:
        rests_on: what it uses and assumes, for readers.
        read: the message, and the attacker's own samples -> what it shows. Raises ``Inapplicable``.
    """

    rests_on: str
    read: Callable[[Observation, Samples | None], LabelSet]


@dataclass(frozen=True)
class Inferred:
    """
    Attributes:
        by: rule -> what it shows.
        not_applicable: rule -> why not.
    """

    by: Mapping[str, LabelSet]
    not_applicable: Mapping[str, str]


def infer(observation: Observation, samples: Samples | None, only: Collection[str] | None = None) -> Inferred:
    """The classes of a message by every rule that applies.

    Args:
        samples: those that the attacker has; ``None``: none.
        only: the rules to try; ``None``: all.
    """
    by, why = dict[str, LabelSet](), dict[str, str]()
    for name in RULES if only is None else only:
        try:
            by[name] = RULES[name].read(observation, samples)
        except Inapplicable as reason:
            why[name] = str(reason)
    return Inferred(by, why)


def balanced(labels: Tensor, classes: int) -> Tensor:
    """Positions ``(m,)`` of about :data:`PUBLIC_SAMPLES` of the labels ``(n,)``, as many of each class, at least two."""
    each = max(2, -(-PUBLIC_SAMPLES // classes))
    return torch.cat([(labels == c).nonzero().flatten()[:each] for c in range(classes)])


def _set(present: Tensor, observation: Observation) -> LabelSet:
    """The classes, and their counts where there is one sample."""
    present = present.cpu()
    return LabelSet(present, present.long() if observation.num_examples == 1 else None)


def _counted(counts: Tensor) -> LabelSet:
    return LabelSet(counts > 0, counts)


@torch.no_grad()
def _guessed(observation: Observation, samples: Samples | None) -> Tensor | None:
    """``(C,)`` the mean prediction of the client's first model on the attacker's samples; uniform where weights are not known.

    ``None``: the attacker has none.
    """
    if samples is None:
        return None
    net, weights = training_net(observation)
    logits: Tensor = functional_call(net, weights, (samples.inputs,))
    predicted = logits.softmax(dim=1).mean(dim=0)
    return predicted if bool(predicted.isfinite().all()) else torch.full_like(predicted, 1 / observation.classes)


def _public_counts(observation: Observation, samples: Samples | None) -> LabelSet:
    if samples is None:
        raise Inapplicable("it needs public samples, and there are none")
    return _counted(public_counts(observation, samples))


STATED = "the message names its classes in clear"
RULES: Mapping[str, Rule] = {
    STATED: Rule(
        "what was sent beside the model: a list of classes, their counts or their centres",
        lambda observation, samples: read_label_set(observation),
    ),
    "last layer: sign of the bias gradient": Rule(
        "without noise certain for each class that it names; a class of few samples may be missing",
        lambda observation, samples: _set(present_classes(observation), observation),
    ),
    "last layer: sign of the sums of the weight gradient's rows": Rule(
        "as the sign of the bias gradient, where features are never negative; it needs no bias",
        lambda observation, samples: _set(row_classes(observation, samples), observation),
    ),
    "last layer: bias gradient less a guessed mean prediction": Rule(
        "the mean prediction over the client's samples is guessed from the attacker's own, or from random ones",
        lambda observation, samples: _counted(bias_counts(observation, _guessed(observation, samples))),
    ),
    "last layer: class-wise embeddings": Rule(
        "weight over bias gradient of a class is about its mean feature, by which the layer's weights give its prediction",
        lambda observation, samples: _counted(embedding_counts(observation, _guessed(observation, samples))),
    ),
    "last layer: least squares on public samples": Rule(
        "the gradient is about a mix of the mean gradients of public samples of each class; the mixing weights are the class "
        "shares",
        _public_counts,
    ),
}
"""By name."""
