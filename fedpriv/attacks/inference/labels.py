"""The labels that a client trained on, from the gradient of the last layer, whose outputs are the logits.

With mean cross-entropy over n samples the bias gradient of that layer is ``mean_i p_i - counts / n`` and the weight gradient
``mean_i (p_i - y_i) h_i^T``; all rules below follow from these two. They also take weight changes, converted by
:mod:`fedpriv.attacks.gradients.multistep`. Where the layer is hidden they raise ``Inapplicable``;
:mod:`fedpriv.attacks.inference.shadow` does without it. :mod:`fedpriv.attacks.api.label_rules` lists the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.core.columns import made_up_rows
from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import (
    SharedLinear,
    known_net,
    layer_inputs,
    normalise_images,
    output_layer,
    training_net,
    weight_dtype,
)
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.labels.class_shares import class_shares, likely_change, path_of, with_bias

LONG = 16
"""Number of words of a random text."""
ENTRIES = 4_000_000
"""Largest number of entries of the mean gradients of all classes; of a wider layer, the largest inputs are used."""


@dataclass(frozen=True)
class Samples:
    """The attacker's samples of the same kind as the client's; none of them is the client's.

    Attributes:
        inputs: as the net takes them: images ``(m, C, H, W)`` normalised, token ids ``(m, L)``, rows ``(m, d)``, or pairs.
        labels: ``(m,)``.
    """

    inputs: object
    labels: Tensor


def idlg_label(observation: Observation) -> int:
    """The label of a single sample: the row of the weight gradient with the smallest sum (Zhao et al. 2020, iDLG, section 3).

    Right for features that are not negative (behind ReLU or sigmoid).
    """
    return int(output_layer(as_gradient(observation)).weight.sum(dim=1).argmin())


def bias_label(observation: Observation) -> int:
    """The label of a single sample from the bias gradient ``p - y``; features may have any sign."""
    return int(_bias(observation).argmin())


def present_classes(observation: Observation) -> Tensor:
    """``(C,)`` bool: classes whose bias gradient is negative.

    Without noise each of them is in the batch, since the bias gradient of an absent class is a mean of probabilities. Other
    classes may be in the batch, too, where the model is already confident. Of a single sample, the class with the smallest
    gradient.
    """
    layer, bias = output_layer(as_gradient(observation)), _bias(observation)
    return _negative(bias, layer.error, observation.num_examples)


def row_classes(observation: Observation, samples: Samples | None = None) -> Tensor:
    """``(C,)`` bool: classes whose row of the weight gradient has a negative sum, as in Zhao et al. (2020) for one sample.

    It needs no bias, and is as certain as :func:`present_classes` if features are not negative.

    Args:
        samples: on which the signs of features are checked; ``None``: on random images.

    Raises:
        Inapplicable: features may be negative.
    """
    layer = output_layer(as_gradient(observation))
    if samples is not None:
        lowest = float(features(observation, layer, samples.inputs)(0.0).min())
    else:
        lowest = -math.inf if len(observation.input_shape) != 3 else layer_inputs(observation)[layer.name].lowest
    if not lowest >= 0:
        raise Inapplicable("the signs of the rows of the weight gradient tell classes where features are never negative")
    error = (as_gradient(observation).altered.variance.get(f"{layer.name}.weight", 0.0) * layer.weight.shape[1]) ** 0.5
    return _negative(layer.weight.sum(dim=1), error, observation.num_examples)


def _negative(values: Tensor, error: float, n: int | None) -> Tensor:
    """``(C,)`` bool: which of the values ``(C,)`` are negative; of a single sample, the smallest.

    Under noise of deviation s (``error``) a class counts as present if a present class explains its value better than an absent
    class with noise. Absent classes lie around the median m of the positive values, present ones anywhere within a range R down
    to the lowest. So the classes below ``m - s sqrt(2 log(R / (s sqrt(2 pi))))`` are present, or those below 0 if this is
    positive.
    """
    if n == 1:
        return torch.arange(len(values), device=values.device) == values.argmin()
    if not error or not bool((values >= 0).any()):
        return values < 0
    middle = float(values[values >= 0].median())
    odds = (middle - float(values.min())) / (error * math.sqrt(2 * math.pi))
    return values < min(0.0, middle - error * math.sqrt(2 * math.log(max(odds, 1.0))))


def bias_counts(observation: Observation, mean_probability: Tensor | None = None) -> Tensor:
    """``(C,)`` counts ``n (mean p - dL/db)``, rounded to sum to n (Geng et al. 2021, "Towards general deep leakage", section on
    batch labels). Exact where the mean prediction is known.

    Args:
        mean_probability: ``(C,)`` the attacker's estimate of the mean prediction over the batch; default
            :func:`guessed_probability`.
    """
    guess = (guessed_probability(observation) if mean_probability is None else mean_probability).double().cpu()
    bias = _bias(observation).double().cpu()
    return to_counts(guess - bias / clipped_to(as_gradient(observation), bias, guess), _examples(observation))


def embedding_counts(observation: Observation, mean_probability: Tensor | None = None) -> Tensor:
    """``(C,)`` counts from class-wise embeddings (Ma et al. 2023, "Instance-wise batch label restoration via gradients").

    Row c of the weight gradient over the bias gradient is about the mean feature of class c, for which the layer's weights give
    the prediction P. The counts then solve the linear system ``dL/db = (P^T - I) counts / n``, with counts that are not negative
    and sum to n. Of a change of several steps, P is its mean over the steps (:mod:`fedpriv.attacks.labels.class_shares`).

    Args:
        mean_probability: as for :func:`bias_counts`; used where the gradient is known up to a factor.

    Raises:
        Inapplicable: the attacker does not know the layer's weights, or the layer was not shared.
    """
    seen = as_gradient(observation)
    layer = output_layer(seen)
    bias, rows = _bias(seen).double().cpu(), layer.weight.double().cpu()
    if seen.altered.rescaled:
        guess = guessed_probability(seen) if mean_probability is None else mean_probability
        factor = clipped_to(seen, bias, guess.double().cpu())
        bias, rows = bias / factor, rows / factor
    embeddings = (rows / torch.where(bias.abs() < 1e-12, 1e-12, bias)[:, None]).nan_to_num(0.0)
    gradient = with_bias(rows, bias)
    of_bias = torch.zeros_like(gradient)
    of_bias[:, -1] = 1
    path = path_of(observation, layer)
    if seen.altered.rescaled:  # the unknown factor is estimated from the predictions at the start, so only the start is used
        path = replace(path, until=0.0)
    shares = class_shares(path, gradient, of_bias, lambda t: embeddings, torch.arange(len(bias)), sums_to_one=True)
    return to_counts(shares, _examples(observation))


def public_counts(observation: Observation, samples: Samples) -> Tensor:
    """``(C,)`` counts by least squares of the last layer's gradient on the mean gradients of public samples of each class.

    As LLG with auxiliary data (Wainakh et al. 2022, "User-level label leakage from gradients in federated learning", section 4.3)
    but with all entries of the gradient, and along the client's path (:mod:`fedpriv.attacks.labels.class_shares`). It needs no
    bias; noise, clipping and pruning change only some of the equations, or all of them alike.

    Raises:
        Inapplicable: the attacker does not know all weights, or the last layer was not shared.
    """
    seen = as_gradient(observation)
    layer = output_layer(seen)
    of = features(observation, layer, samples.inputs)
    path, gradient = path_of(observation, layer), with_bias(layer.weight, layer.bias)
    variances = [seen.altered.variance.get(f"{layer.name}.{kind}", 0.0) for kind in ("weight", "bias")]
    used = torch.ones_like(gradient) if layer.kept is None else with_bias(layer.kept, torch.ones(len(gradient)))
    kept = seen.altered.kept.get(f"{layer.name}.bias")
    used[:, -1] *= 1.0 if kept is None else kept.double().cpu()
    used[:, -1] *= 0.0 if layer.bias is None else (variances[0] / variances[1]) ** 0.5 if all(variances) else 1.0
    largest = of(0.0).square().sum(0).topk(max(1, min(layer.weight.shape[1], ENTRIES // len(gradient) ** 2))).indices
    outside = torch.ones(layer.weight.shape[1] + 1, dtype=torch.bool)
    outside[largest], outside[-1] = False, False
    used[:, outside] = 0
    shares = class_shares(path, gradient, used, of, samples.labels.cpu(), not seen.altered.rescaled)
    return to_counts(shares, _examples(observation))


@torch.no_grad()
def features(observation: Observation, layer: SharedLinear, inputs: object) -> Callable[[float], Tensor]:
    """The inputs of a layer ``(m, d)`` for inputs ``(m, ...)`` of the net, as a function of the place on the client's path.

    The path is the line from the client's first weights (0) to its last ones (1).

    Raises:
        Inapplicable: not all of the weights below are known, or the layer gets several vectors for each sample.
    """
    net, weights = training_net(observation)
    change = likely_change(observation)

    def at(weights: dict[str, Tensor]) -> Tensor:
        fed = list[Tensor]()
        hook = net.get_submodule(layer.name).register_forward_pre_hook(lambda module, args: fed.append(args[0]))
        try:
            functional_call(net, weights, (inputs,))
        finally:
            hook.remove()
        inputs_of_layer = fed[0].double().cpu()
        if inputs_of_layer.ndim != 2 or not bool(inputs_of_layer.isfinite().all()):
            raise Inapplicable("what public samples are like at the last layer is not known, as weights below it are not")
        return inputs_of_layer

    first = at(weights)
    if not change:
        return lambda t: first
    last = at({name: weight + change[name].to(weight) if name in change else weight for name, weight in weights.items()})
    return lambda t: (1 - t) * first + t * last


def clipped_to(seen: Observation, bias: Tensor, probability: Tensor) -> float:
    """The factor by which clipping or an unknown schedule scaled the bias gradient ``(C,)``, given the mean prediction ``(C,)``;
    1 where neither did.

    ``bias_c = factor (p_c - counts_c / n)``, so ``bias_c / p_c`` is the factor for an absent class, and less for the others.
    Where no class is absent, the rarest one is taken as absent.

    Args:
        seen: the message, read by :func:`fedpriv.attacks.gradients.multistep.as_gradient`.
    """
    if not seen.altered.rescaled:
        return 1.0
    return float((bias / probability.clamp_min(1e-12)).max().clamp_min(1e-300))


def batch_labels(observation: Observation) -> Tensor:
    """The labels ``(n,)`` of a message in ascending order, by the best rule here that applies.

    That is :func:`bias_label` for a single sample (:func:`idlg_label` without a bias), else :func:`embedding_counts`, or
    :func:`bias_counts` where the weights of the layer are not known.

    Raises:
        Inapplicable: none applies.
    """
    if _examples(observation) == 1:
        layer = output_layer(as_gradient(observation))
        return torch.tensor([idlg_label(observation) if layer.bias is None else bias_label(observation)])
    known = f"{output_layer(as_gradient(observation)).name}.weight" in observation.weights
    counts = embedding_counts(observation) if known else bias_counts(observation)
    return torch.arange(len(counts)).repeat_interleave(counts)


@torch.no_grad()
def guessed_probability(observation: Observation, images: int = 256, seed: int = 0) -> Tensor:
    """``(C,)`` estimate of the mean prediction of the client's model without its data.

    It is the mean on random images, words or rows (Geng et al.'s dummy data), and uniform where not all weights are known.
    """
    net, weights = known_net(observation)
    device, dtype = weight_dtype(observation)
    if any(name not in weights for name in state_names(net)):
        return torch.full((observation.classes,), 1 / observation.classes, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    if observation.encoding is not None:
        inputs = made_up_rows(observation.encoding, images, generator).to(device, dtype)
    elif observation.text is None:
        drawn = torch.rand(images, *observation.input_shape, generator=generator).to(device, dtype)
        inputs = normalise_images(observation, drawn)
    else:
        shape = (images, min(LONG, observation.input_shape[0]))
        words = len(weights[observation.text.words]) - 1
        inputs = torch.randint(words, shape, generator=generator).to(device)
        inputs += (inputs >= observation.text.pad).long()  # any word but padding
    logits: Tensor = functional_call(net, weights, (inputs,))
    return logits.softmax(dim=1).mean(dim=0)


def to_counts(shares: Tensor, n: int) -> Tensor:
    """Round shares ``(C,)`` to counts that sum to ``n``, by largest remainders; negative shares count as 0."""
    shares = shares.clamp(min=0)
    total = shares.sum()
    exact = (shares / total if total > 0 else torch.full_like(shares, 1 / len(shares))) * n
    counts = exact.floor().long()
    counts[(exact - counts).argsort(descending=True)[: n - int(counts.sum())]] += 1
    return counts


def count_accuracy(inferred: Tensor, true: Tensor) -> float:
    """Share of the samples whose label is among the inferred counts ``(C,)``, given the true counts ``(C,)``."""
    return float(torch.minimum(inferred, true.to(inferred)).sum() / true.sum().clamp(min=1))


def _bias(observation: Observation) -> Tensor:
    layer: SharedLinear = output_layer(as_gradient(observation))
    if layer.bias is None:
        raise Inapplicable("this rule needs the bias gradient of the last layer, which was not shared")
    return layer.bias


def _examples(observation: Observation) -> int:
    if observation.num_examples is None:
        raise Inapplicable("counting labels needs the number of samples")
    return observation.num_examples
