"""The input of a shared linear layer in closed form from its gradient, without any optimisation.

For ``a = W x + b`` and any loss: ``dL/db = dL/da`` and ``dL/dW = dL/da x^T`` for one sample, so every row of ``dL/dW`` over its
entry of ``dL/db`` is ``x``, whatever layers follow (Phong et al. 2018, section 3). For a batch a row gives the mean of
the inputs, weighted by that neuron's ``dL/da``; a neuron that only one sample activates gives that sample. A weight change of
many local steps has the same rows once :mod:`fedpriv.attacks.gradients.multistep` has undone the weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import LayerInput, SharedLinear, fed_by_one, layer_inputs, shared_linears, to_picture
from fedpriv.attacks.gradients.multistep import as_gradient

CERTAIN = 3.0
"""A bias gradient is used as a divisor only above so many standard deviations of its error."""


@dataclass(frozen=True)
class AnalyticOptions:
    """
    Attributes:
        same: two candidates nearer than this share of their norm count as one.
        slack: how far outside [0, 1] a pixel may lie and count as in range.
        in_range: share of such pixels that makes a candidate plausible.
        weakest: neurons with less than this share of the largest bias gradient are left out (rounding dominates their ratio).
        undo_decay: whether the weight decay of a change is undone first.
    """

    same: float = 1e-3
    slack: float = 0.01
    in_range: float = 0.98
    weakest: float = 1e-5
    undo_decay: bool = True


@dataclass(frozen=True)
class Candidates:
    """The inputs recovered from one layer, the most credible first.

    Attributes:
        layer: its name.
        is_image: whether ``values`` are images in [0, 1] ``(m, C, H, W)``, not clipped; else the layer's inputs ``(m, in)``.
        neurons: ``(m,)`` of the neurons that gave the candidate, the one with the largest bias gradient; -1 for all together.
        support: ``(m,)`` how many neurons gave the candidate. Two or more rarely agree by chance, as their mixtures differ.
        in_range: ``(m,)`` share of entries that a true input could have.
        strength: ``(m,)`` bias gradient of that neuron, as a share of the largest.
        plausible: ``(m,)`` whether the attacker would show it.
    """

    layer: str
    is_image: bool
    values: Tensor
    neurons: Tensor
    support: Tensor
    in_range: Tensor
    strength: Tensor
    plausible: Tensor


def leaky_layers(observation: Observation) -> list[SharedLinear]:
    """Shared linear layers with a bias, in the order of the net's modules."""
    return [layer for layer in shared_linears(observation) if layer.bias is not None]


def fed_layers(observation: Observation) -> list[tuple[SharedLinear, LayerInput]]:
    """Shared linear layers with a bias that are fed one vector for each sample: those that are fed the image, then the others in
    the order in which the net calls them, which need not be that of its modules."""
    leaky = {layer.name: layer for layer in leaky_layers(observation)}
    found = [(leaky[name], fed) for name, fed in layer_inputs(observation).items() if name in leaky and fed.once]
    return sorted(found, key=lambda pair: not pair[1].is_image)


def row_ratios(observation: Observation, options: AnalyticOptions | None = None) -> list[Candidates]:
    """The candidates of every layer of :func:`fed_layers`.

    Raises:
        Inapplicable: if there is no such layer.
    """
    options = options or AnalyticOptions()
    observation = as_gradient(observation, options.undo_decay)
    layers = fed_layers(observation)
    if not layers:
        raise Inapplicable("no linear layer with a bias was shared: the weight-by-bias quotient needs one")
    return [_layer(observation, layer, fed, options) for layer, fed in layers]


def single_sample(observation: Observation, undo_decay: bool = True) -> list[tuple[Candidates, float]]:
    """For a message of one sample: the least-squares input over all rows together, which is the most robust to noise.

    Returns:
        per layer the one candidate, and the share of the weight gradient's squared norm that it leaves unexplained: about 0 for
        one sample without noise, so that the attacker sees whether the assumption holds.
    """
    observation = as_gradient(observation, undo_decay)
    found = []
    for layer, fed in fed_layers(observation):
        assert layer.bias is not None
        weight, bias = layer.weight.double(), layer.bias.double()
        x = fed_by_one(replace(layer, weight=weight, bias=bias))
        missed = weight - bias[:, None] * x
        if layer.kept is not None:
            missed, weight = missed * layer.kept, weight * layer.kept
        left = missed.square().sum() / weight.square().sum().clamp(min=1e-300)
        values, in_range = _checked(observation, x[None], fed, 0.01)
        one = torch.ones(1, dtype=torch.long)
        plausible = torch.tensor([bool(left < 1e-3)])
        found.append((Candidates(layer.name, fed.is_image, values, -one, one, in_range, torch.ones(1), plausible), float(left)))
    return found


def quotients(layer: SharedLinear, weakest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weight over bias gradient of a layer with a bias, the neuron with the largest bias gradient first.

    Args:
        weakest: see :class:`AnalyticOptions`.

    Returns:
        the ratios ``(m, in)`` in double precision, their neurons ``(m,)``, and each one's bias gradient as a share of the largest
        ``(m,)``; m is 0 where no bias has a gradient.
    """
    assert layer.bias is not None
    # Double, because near-equality of candidates is decided by differences of ratios of small numbers.
    bias, weight = layer.bias.double().cpu(), layer.weight.double().cpu()
    strength = bias.abs() / bias.abs().max().clamp(min=1e-300)
    order = strength.argsort(descending=True)
    # Below a few standard deviations of its error not even the sign of a bias gradient is known.
    order = order[(strength[order] > weakest) & (bias[order].abs() > CERTAIN * layer.error)]
    return weight[order] / bias[order, None], order, strength[order]


def _layer(observation: Observation, layer: SharedLinear, fed: LayerInput, options: AnalyticOptions) -> Candidates:
    ratios, order, strength = quotients(layer, options.weakest)
    leaders, support = _distinct(ratios, options.same)
    values, in_range = _checked(observation, ratios[leaders], fed, options.slack)
    plausible = support > 1
    if fed.is_image:
        plausible = plausible | (in_range >= options.in_range)
    neurons, strong = order[leaders], strength[leaders]
    # Plausible first, then those that several neurons gave, then the weakest: a neuron that few samples activate has a small bias
    # gradient. (The strongest are mixtures of all; of the first n by contrast or variation fewer are images.)
    # Stable sorts from the least to the most important key.
    rank = torch.arange(len(leaders))
    for key in (-strong, support, plausible.long()):
        rank = rank[key[rank].argsort(descending=True, stable=True)]
    return Candidates(
        layer.name, fed.is_image, values[rank], neurons[rank], support[rank], in_range[rank], strong[rank], plausible[rank]
    )


def _distinct(ratios: Tensor, same: float) -> tuple[Tensor, Tensor]:
    """Indices of the first of each group of near-equal rows of ``(n, in)``, and the sizes of the groups."""
    size = ratios.norm(dim=1)
    near = torch.cdist(ratios, ratios) <= same * torch.maximum(size[:, None], size[None, :])
    free = torch.ones(len(ratios), dtype=torch.bool)
    leaders, support = [], []
    for i in range(len(ratios)):
        if free[i]:
            group = near[i] & free
            group[i] = True
            leaders.append(i)
            support.append(int(group.sum()))
            free &= ~group
    return torch.tensor(leaders, dtype=torch.long), torch.tensor(support, dtype=torch.long)


def _checked(observation: Observation, inputs: Tensor, fed: LayerInput, slack: float) -> tuple[Tensor, Tensor]:
    """Candidates ``(m, in)`` as images where they are, and the share of each one's entries that a true input could have."""
    if fed.is_image:
        inputs = to_picture(observation, inputs.reshape(-1, *observation.input_shape))
        fits = (inputs >= -slack) & (inputs <= 1 + slack)
    else:
        fits = inputs >= fed.lowest - slack * inputs.abs().amax(dim=1, keepdim=True)
    return inputs.to(observation.shared[next(iter(observation.shared))].dtype), fits.flatten(1).double().mean(dim=1)
