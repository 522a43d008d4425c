"""The input of a shared linear layer in closed form from its gradient, without any optimisation.

For ``a = W x + b`` and any loss: ``dL/db = dL/da`` and ``dL/dW = dL/da x^T`` for one sample, so every row of ``dL/dW`` over its
entry of ``dL/db`` is ``x``, whatever layers follow (Phong et al. 2018, section 3). For a batch a row gives the mean of
the inputs, weighted by that neuron's ``dL/da``; a neuron that only one sample activates gives that sample. A weight change of
many local steps has the same rows once :mod:`fedpriv.attacks.gradients.multistep` has undone the weight decay.

Noise, rounding and pruning move each row away from the others of its image. So rows count as one image where they differ by no
more than their known errors, on the entries that both sent; of these, the row with the least error stands for the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import (
    LayerInput,
    SharedLinear,
    denormalise_images,
    layer_inputs,
    per_channel,
    shared_linears,
    single_sample_input,
)
from fedpriv.attacks.gradients.multistep import as_gradient, rounding

CERTAIN = 3.0
"""A bias gradient is used as a divisor only above so many standard deviations of its error."""
CLEAR = 0.4
"""A row whose error is more than this share of its norm is no image."""
ACROSS, ALONG = 2.0, 4.0
"""Two rows are one within so many standard deviations of the error across the first, which is a mean over all entries, and along
it, where the error of the bias is a single number and strays further."""
OVERLAP = 0.1
"""Two rows are compared if both sent at least this share of the entries, since few are equal by chance."""


@dataclass(frozen=True)
class AnalyticOptions:
    """
    Attributes:
        same: two candidates that differ by less than this share of their norm, beyond what their errors explain, count as one.
        slack: how far outside [0, 1] a pixel may lie, beyond its error, and count as in range.
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
        neurons: ``(m,)`` of the neurons that gave the candidate, the one with the least error, or, where there is none, with the
            largest bias gradient; -1 for all together.
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


def layers_with_bias(observation: Observation) -> list[SharedLinear]:
    """Shared linear layers with a bias, in the order of the net's modules."""
    return [layer for layer in shared_linears(observation) if layer.bias is not None]


def invertible_layers(observation: Observation) -> list[tuple[SharedLinear, LayerInput]]:
    """Shared linear layers with a bias that are fed one vector for each sample: those that are fed the image, then the others in
    the order in which the net calls them, which need not be that of its modules."""
    leaky = {layer.name: layer for layer in layers_with_bias(observation)}
    found = [(leaky[name], fed) for name, fed in layer_inputs(observation).items() if name in leaky and fed.once]
    return sorted(found, key=lambda pair: not pair[1].is_image)


def require_invertible_layers(observation: Observation) -> list[tuple[SharedLinear, LayerInput]]:
    """:func:`invertible_layers`, of which there is at least one.

    Raises:
        Inapplicable: there is none.
    """
    if not layers_with_bias(observation):
        raise Inapplicable("no linear layer with a bias was shared")
    if not (layers := invertible_layers(observation)):  # such as those of a transformer, which are fed one for each patch
        raise Inapplicable("no shared linear layer with a bias is fed one vector per sample")
    return layers


def row_ratios(observation: Observation, options: AnalyticOptions | None = None) -> list[Candidates]:
    """The candidates of every layer of :func:`invertible_layers`.

    Raises:
        Inapplicable: if there is no such layer.
    """
    options = options or AnalyticOptions()
    seen = as_gradient(observation, options.undo_decay)
    found = []
    for layer, fed in require_invertible_layers(seen):
        weight, bias = (_error(observation, seen, f"{layer.name}.{kind}") for kind in ("weight", "bias"))
        found.append(_layer(seen, replace(layer, error=bias), fed, options, weight))
    return found


def _error(observation: Observation, seen: Observation, name: str) -> float:
    """Standard deviation of the error of a tensor's entry in the message as a gradient, by noise and rounding."""
    return math.hypot(seen.altered.variance.get(name, 0.0) ** 0.5, rounding(observation, name))


def empty(observation: Observation) -> str | None:
    """Why the first layer of :func:`invertible_layers` shows nothing of any sample, as a clause; ``None``: it may.

    Its gradient is zero, up to the rounding of the client's steps: the last layer is still zero, or these steps changed nothing.
    Noise, and what else was done to the message after them, are no rounding: what they hide was there.
    """
    layers = invertible_layers(as_gradient(observation))
    if not layers:
        return None
    layer, _ = layers[0]
    assert layer.bias is not None
    if bool((layer.bias.abs() > CERTAIN * rounding(observation, f"{layer.name}.bias")).any()):
        return None
    return f"the gradient of {layer.name!r} is zero, which shows nothing of any image"


def single_sample(observation: Observation, undo_decay: bool = True) -> list[tuple[Candidates, float]]:
    """For a message of one sample: the least-squares input over all rows together, which is the most robust to noise.

    Returns:
        per layer the one candidate, and the share of the weight gradient's squared norm that it leaves unexplained: about 0 for
        one sample without noise, so that the attacker sees whether the assumption holds.
    """
    observation = as_gradient(observation, undo_decay)
    found = []
    for layer, fed in invertible_layers(observation):
        assert layer.bias is not None
        weight, bias = layer.weight.double(), layer.bias.double()
        x = single_sample_input(replace(layer, weight=weight, bias=bias))
        missed = weight - bias[:, None] * x
        if layer.kept is not None:
            missed, weight = missed * layer.kept, weight * layer.kept
        left = missed.square().sum() / weight.square().sum().clamp(min=1e-300)
        values, in_range = _checked(observation, x[None], fed, 0.01, x.new_zeros(1))
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


def _layer(observation: Observation, layer: SharedLinear, fed: LayerInput, options: AnalyticOptions, error: float) -> Candidates:
    """The candidates of a layer whose weight's entries have that standard deviation of their error."""
    rows = _Rows.of(layer, options.weakest, error)
    leaders, support = rows.distinct(options.same)
    noise, doubt = rows.noise[leaders], rows.doubt[leaders]
    values, in_range = _checked(observation, rows.ratios[leaders], fed, options.slack, rows.deviation[leaders])
    plausible = support > 1
    if fed.is_image:
        plausible = plausible | (in_range >= options.in_range)
    plausible = plausible & (noise <= CLEAR**2)
    neurons, strong = rows.neurons[leaders], rows.strength[leaders]
    # Plausible first, then those that several neurons gave, then the weakest: a neuron that few samples activate has a small bias
    # gradient. (The strongest are mixtures of all; of the first n by contrast or variation fewer are images.) But a small one has
    # the largest error, too, and the most entries that were not sent: of rows that this leaves in doubt, the surest first.
    # Stable sorts from the least to the most important key.
    rank = torch.arange(len(leaders))
    for key in (torch.where(doubt <= CLEAR**2, -strong, -1 - doubt), support, plausible.long()):
        rank = rank[key[rank].argsort(descending=True, stable=True)]
    return Candidates(
        layer.name, fed.is_image, values[rank], neurons[rank], support[rank], in_range[rank], strong[rank], plausible[rank]
    )


@dataclass(frozen=True)
class _Rows:
    """The row ratios of a layer, with what is known of their errors.

    Attributes:
        ratios: ``(m, in)``, 0 where an entry was not sent.
        neurons, strength: ``(m,)``, see :func:`quotients`.
        sent: ``(m, in)`` 1 where an entry was sent, else 0; ``None``: all were.
        each: ``(m,)`` standard deviation of the error of an entry by that of the weight.
        scale: ``(m,)`` standard deviation of the row's factor, by the error of the bias.
    """

    ratios: Tensor
    neurons: Tensor
    strength: Tensor
    sent: Tensor | None
    each: Tensor
    scale: Tensor

    @classmethod
    def of(cls, layer: SharedLinear, weakest: float, error: float) -> _Rows:
        assert layer.bias is not None
        ratios, neurons, strength = quotients(layer, weakest)
        bias = layer.bias.double().cpu()[neurons].abs()
        sent = None if layer.kept is None else layer.kept.cpu()[neurons].to(ratios)
        return cls(ratios if sent is None else ratios * sent, neurons, strength, sent, error / bias, layer.error / bias)

    @property
    def noise(self) -> Tensor:
        """Expected square of the error of what was sent, as a share of the row's square ``(m,)``."""
        size = self.ratios.square().sum(1)
        return self.scale.square() + self._entries * self.each.square() / size.clamp(min=1e-300)

    @property
    def doubt(self) -> Tensor:
        """The same of the whole row, of which nothing is known where entries were not sent ``(m,)``."""
        share = self._entries / self.ratios.shape[1]
        return 1 - share + share * self.noise

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of an entry's error ``(m,)``."""
        size = self.ratios.square().sum(1)
        return (self.noise * size / self._entries.clamp(min=1)).sqrt()

    @property
    def _entries(self) -> Tensor:
        """How many were sent ``(m,)``."""
        return self.ratios.new_full((len(self.ratios),), self.ratios.shape[1]) if self.sent is None else self.sent.sum(1)

    def distinct(self, same: float) -> tuple[Tensor, Tensor]:
        """Places of the row with the least error of each group of near-equal ones, and how many rows agree, without those whose
        error is so large that they agree with any."""
        near, clear = self._near(same), self.noise <= CLEAR**2
        free = torch.ones(len(near), dtype=torch.bool)
        leaders, support = list[int](), list[int]()
        for i in self.doubt.argsort(stable=True).tolist():
            if free[i]:
                group = near[i] & free
                group[i] = True
                leaders.append(i)
                support.append(max(1, int((group & clear).sum())))
                free &= ~group
        return torch.tensor(leaders, dtype=torch.long), torch.tensor(support, dtype=torch.long)

    def _near(self, same: float) -> Tensor:
        """Whether each row is that of the other within their errors, on the entries that both sent ``(m, m)``."""
        rows, m, width = self.ratios, *self.ratios.shape
        both = torch.full((m, m), width).to(rows) if self.sent is None else self.sent @ self.sent.T
        # Row by column: the square of the row on the entries that the column sent.
        size = rows.square().sum(1)[:, None].expand(m, m) if self.sent is None else rows.square() @ self.sent.T
        share = rows @ rows.T / size.clamp(min=1e-300)
        along, across = (share - 1).square() * size, (size.T - share.square() * size).clamp(min=0)
        each, scale = (_sums(one.square()) for one in (self.each, self.scale))
        left = (across - ACROSS**2 * both * each).clamp(min=0) + (along - ALONG**2 * (size * scale + each)).clamp(min=0)
        return (left <= same**2 * torch.maximum(size, size.T)) & (both >= OVERLAP * width)


def _sums(values: Tensor) -> Tensor:
    """Of each two of the values ``(m,)``, ``(m, m)``."""
    return values[:, None] + values


def _checked(observation: Observation, inputs: Tensor, fed: LayerInput, slack: float, error: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates ``(m, in)`` as images where they are, and the share of each one's entries that a true input could have, up to
    the slack and an error of that standard deviation ``(m,)``."""
    if fed.is_image:
        inputs = denormalise_images(observation, inputs.reshape(-1, *observation.input_shape))
        wide = slack + CERTAIN * error[:, None, None, None] * per_channel(observation, observation.std, inputs)
        fits = (inputs >= -wide) & (inputs <= 1 + wide)
    else:
        fits = inputs >= fed.lowest - slack * inputs.abs().amax(dim=1, keepdim=True) - CERTAIN * error[:, None]
    return inputs.to(observation.shared[next(iter(observation.shared))].dtype), fits.flatten(1).double().mean(dim=1)
