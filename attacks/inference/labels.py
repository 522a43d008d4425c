"""The labels that a client trained on, from the gradient of the last layer, whose outputs are the logits.

With mean cross-entropy over n samples the bias gradient of that layer is ``mean_i p_i - counts / n`` and the weight gradient
``mean_i (p_i - y_i) h_i^T``; all rules below follow from these two. They also take weight changes, converted by
:mod:`fedpriv.attacks.gradients.multistep`. Where the layer is hidden they raise ``Inapplicable``;
:mod:`fedpriv.attacks.inference.shadow` does without it.
"""

from __future__ import annotations

import math

import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import SharedLinear, from_picture, known_net, output_layer, weight_dtype
from fedpriv.attacks.gradients.multistep import as_gradient

LONG = 16
"""Words of a random text."""


def idlg_label(observation: Observation) -> int:
    """Label of the one sample: the row of the weight gradient with the smallest sum (Zhao et al. 2020, iDLG, section 3).

    Right for a single sample whose features are not negative (behind ReLU or sigmoid).
    """
    return int(output_layer(as_gradient(observation)).weight.sum(dim=1).argmin())


def bias_label(observation: Observation) -> int:
    """Label of the one sample from the bias gradient ``p - y``; features may have any sign."""
    return int(_bias(observation).argmin())


def present_classes(observation: Observation) -> Tensor:
    """``(C,)`` bool: classes whose bias gradient is negative.

    Without noise each of them is certainly in the batch, since the bias gradient of an absent class is a mean of probabilities.
    Others may be in it too, where the model is already confident. Under noise of known deviation s a class counts as present
    where this is more likely than that noise made it so: absent classes lie around the median m of the positive ones, present
    ones anywhere down to the lowest, a range of R, so that the classes below ``m - s sqrt(2 log(R / (s sqrt(2 pi))))`` are, if
    this is negative.
    """
    layer, bias = output_layer(as_gradient(observation)), _bias(observation)
    if not layer.error or not bool((bias >= 0).any()):
        return bias < 0
    middle = float(bias[bias >= 0].median())
    odds = (middle - float(bias.min())) / (layer.error * math.sqrt(2 * math.pi))
    return bias < min(0.0, middle - layer.error * math.sqrt(2 * math.log(max(odds, 1.0))))


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


def embedding_counts(observation: Observation) -> Tensor:
    """``(C,)`` counts from class-wise embeddings (Ma et al. 2023, "Instance-wise batch label restoration via gradients").

    Row c of weight over bias gradient is about the mean feature of class c, and the layer's weights give the prediction P for it.
    The counts then solve the linear system ``dL/db = (P^T - I) counts / n``, here with counts that are not negative and sum to n.

    Raises:
        Inapplicable: the attacker does not know the layer's weights, or the layer was not shared.
    """
    seen = as_gradient(observation)
    layer = output_layer(seen)
    bias, rows = _bias(seen).double().cpu(), layer.weight.double().cpu()
    if seen.altered.rescaled:
        factor = clipped_to(seen, bias, guessed_probability(seen).double().cpu())
        bias, rows = bias / factor, rows / factor
    known = [observation.weights.get(f"{layer.name}.{kind}") for kind in ("weight", "bias")]
    if known[0] is None or known[1] is None:
        raise Inapplicable("class-wise embeddings need the weights of the last layer")
    weight, offset = (k.double().cpu() for k in known if k is not None)
    embeddings = rows / torch.where(bias.abs() < 1e-12, 1e-12, bias)[:, None]
    predicted = (embeddings @ weight.T + offset).softmax(dim=1).nan_to_num(1 / len(bias))
    # The columns of P^T - I sum to zero, so only the last equation fixes the total. It is known exactly and weighs more.
    system = torch.cat(
        [predicted.T - torch.eye(len(bias), dtype=torch.float64), 10 * torch.ones(1, len(bias), dtype=torch.float64)]
    )
    shares, _ = nnls(system.numpy(), torch.cat([bias, torch.tensor([10.0], dtype=torch.float64)]).numpy())
    return to_counts(torch.from_numpy(shares), _examples(observation))


def clipped_to(seen: Observation, bias: Tensor, probability: Tensor) -> float:
    """The factor by which clipping or an unknown schedule scaled the bias gradient ``(C,)``, given the mean prediction ``(C,)``;
    1 where neither did.

    ``bias_c = factor (p_c - counts_c / n)``, so ``bias_c / p_c`` is the factor for an absent class and less for every other
    class. Where no class is absent, the rarest counts as absent.

    Args:
        seen: the message, read by :func:`fedpriv.attacks.gradients.multistep.as_gradient`.
    """
    if not seen.altered.rescaled:
        return 1.0
    return float((bias / probability.clamp_min(1e-12)).max().clamp_min(1e-300))


def batch_labels(observation: Observation) -> Tensor:
    """The labels ``(n,)`` of a message in ascending order, by the best rule here that applies: :func:`bias_label` for one sample,
    else :func:`embedding_counts`, or :func:`bias_counts` where the weights of the layer are not known.

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
    """``(C,)`` estimate of the mean prediction of the client's model without its data: on random images, or on random words,
    where the weights are known (Geng et al.'s dummy data), else uniform."""
    net, weights = known_net(observation)
    device, dtype = weight_dtype(observation)
    if any(name not in weights for name in state_names(net)):
        return torch.full((observation.classes,), 1 / observation.classes, dtype=dtype)
    draw = torch.Generator().manual_seed(seed)
    if observation.text is None:
        drawn = torch.rand(images, *observation.input_shape, generator=draw).to(device, dtype)
        inputs = from_picture(observation, drawn)
    else:
        shape = (images, min(LONG, observation.input_shape[0]))
        words = len(weights[observation.text.words]) - 1
        inputs = torch.randint(words, shape, generator=draw).to(device)
        inputs += (inputs >= observation.text.pad).long()  # any word but padding
    logits: Tensor = functional_call(net, weights, (inputs,))
    return logits.softmax(dim=1).mean(dim=0)


def to_counts(shares: Tensor, n: int) -> Tensor:
    """Shares ``(C,)`` that sum to about 1 -> integers that sum to ``n`` (largest remainders; negative shares count as 0)."""
    shares = shares.clamp(min=0)
    total = shares.sum()
    exact = (shares / total if total > 0 else torch.full_like(shares, 1 / len(shares))) * n
    counts = exact.floor().long()
    counts[(exact - counts).argsort(descending=True)[: n - int(counts.sum())]] += 1
    return counts


def count_accuracy(found: Tensor, true: Tensor) -> float:
    """Share of the samples whose label was found, each true label matched at most once: ``(C,)`` and ``(C,)`` -> [0, 1]."""
    return float(torch.minimum(found, true.to(found)).sum() / true.sum().clamp(min=1))


def _bias(observation: Observation) -> Tensor:
    layer: SharedLinear = output_layer(as_gradient(observation))
    if layer.bias is None:
        raise Inapplicable("this rule needs the bias gradient of the last layer, which was not shared")
    return layer.bias


def _examples(observation: Observation) -> int:
    if observation.num_examples is None:
        raise Inapplicable("counting labels needs the number of samples")
    return observation.num_examples
