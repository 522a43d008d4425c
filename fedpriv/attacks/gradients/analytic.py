"""The input of a linear layer in closed form from its gradient (Phong et al. 2018, section 3).

For ``a = W x + b``, one sample and any loss, ``dL/db = dL/da`` and ``dL/dW = dL/da x^T``. So every row of ``dL/dW`` divided by
its entry of ``dL/db`` is ``x``, whatever layers follow. For a batch a row gives the mean of the inputs, weighted by the samples'
``dL/da`` at that neuron: a neuron that only one sample activates gives that sample. A weight change of several local steps has
the same rows once :mod:`fedpriv.attacks.gradients.multistep` has undone the weight decay.

Under noise, rounding and pruning the rows of one image differ. Rows that differ by no more than their expected errors, on the
entries that were sent of both, count as one image; the row with the smallest error represents it.
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
"""A bias gradient is used as a divisor only if it exceeds this many standard deviations of its error."""
CLEAR = 0.4
"""Largest error of a plausible row, as a share of its norm."""
ACROSS, ALONG = 2.0, 4.0
"""Two rows count as equal within this many standard deviations of their difference, orthogonal and parallel to the first row. The
orthogonal error averages over all entries; the parallel one comes from the bias alone and varies more."""
OVERLAP = 0.1
"""Two rows are compared only if at least this share of their entries was sent of both."""
SAME = 1e-3
"""Candidates that differ by less than this share of their norm, beyond their errors, count as one."""
SLACK = 0.01
"""Distance from [0, 1], beyond its error, up to which a pixel counts as in range."""
IN_RANGE = 0.98
"""Smallest share of pixels in range of a plausible image."""
WEAKEST = 1e-5
"""Neurons below this share of the largest bias gradient are skipped: rounding dominates their ratio."""


@dataclass(frozen=True)
class Candidates:
    """The inputs recovered from one layer, the most credible first.

    Attributes:
        layer: its name.
        is_image: whether ``values`` are images or rows; otherwise they are the layer's inputs.
        values: ``(m, C, H, W)`` in [0, 1], not clipped, or ``(m, in)``.
        neurons: ``(m,)``, the neuron whose row was taken: that with the smallest error, or the largest bias gradient if there
            are no errors; -1 for all together.
        support: ``(m,)``, the number of neurons that gave the candidate. Mixtures of samples rarely agree by chance.
        in_range: ``(m,)``, the share of entries that a true input could have.
        strength: ``(m,)``, the bias gradient of that neuron as a share of the largest.
        plausible: ``(m,)``, whether the attacker would show it.
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
    """Shared linear layers with a bias that get one vector per sample: first those that get the image, then in call order."""
    with_bias = {layer.name: layer for layer in layers_with_bias(observation)}
    layers = [(with_bias[name], kind) for name, kind in layer_inputs(observation).items() if name in with_bias and kind.once]
    return sorted(layers, key=lambda pair: not pair[1].is_image)


def require_invertible_layers(observation: Observation) -> list[tuple[SharedLinear, LayerInput]]:
    """:func:`invertible_layers`, at least one.

    Raises:
        Inapplicable: there are none.
    """
    if not layers_with_bias(observation):
        raise Inapplicable("no linear layer with a bias was shared")
    if not (layers := invertible_layers(observation)):  # a transformer's get one vector per patch
        raise Inapplicable("no shared linear layer with a bias is fed one vector per sample")
    return layers


def row_ratios(observation: Observation) -> list[Candidates]:
    """The candidates of every layer of :func:`invertible_layers`.

    Raises:
        Inapplicable: there is no such layer.
    """
    gradient, candidates = as_gradient(observation), []
    for layer, kind in require_invertible_layers(gradient):
        weight, bias = (_error(observation, gradient, f"{layer.name}.{part}") for part in ("weight", "bias"))
        candidates.append(_layer(gradient, replace(layer, error=bias), kind, weight))
    return candidates


def _error(observation: Observation, gradient: Observation, name: str) -> float:
    """Standard deviation of the error of an entry of the gradient ``name``, by noise and rounding."""
    return math.hypot(gradient.altered.variance.get(name, 0.0) ** 0.5, rounding(observation, name))


def why_empty(observation: Observation) -> str | None:
    """The reason why the first layer of :func:`invertible_layers` reveals nothing, as a clause; ``None`` if it may.

    Its gradient is zero up to the rounding of the client's steps: the last layer is still zero, or the steps changed nothing. A
    gradient hidden by a defence, such as noise, does not count.
    """
    layers = invertible_layers(as_gradient(observation))
    if not layers:
        return None
    layer, _ = layers[0]
    assert layer.bias is not None
    if bool((layer.bias.abs() > CERTAIN * rounding(observation, f"{layer.name}.bias")).any()):
        return None
    return f"the gradient of {layer.name!r} is zero, which shows nothing of any sample"


def single_sample(observation: Observation) -> list[tuple[Candidates, float]]:
    """The input of each layer by least squares over all rows, for a message of one sample; the estimate most robust to noise.

    Returns:
        per layer, its candidate and the share of the weight gradient's squared norm that it leaves unexplained: about 0 for one
        sample without noise, so the attacker can check the assumption.
    """
    observation, results = as_gradient(observation), []
    for layer, kind in invertible_layers(observation):
        assert layer.bias is not None
        weight, bias = layer.weight.double(), layer.bias.double()
        x = single_sample_input(replace(layer, weight=weight, bias=bias))
        residual = weight - bias[:, None] * x
        if layer.kept is not None:
            residual, weight = residual * layer.kept, weight * layer.kept
        unexplained = residual.square().sum() / weight.square().sum().clamp(min=1e-300)
        values, in_range = _checked(observation, x[None], kind, x.new_zeros(1))
        ones = torch.ones(1, dtype=torch.long)
        plausible = torch.tensor([bool(unexplained < 1e-3)])
        candidate = Candidates(layer.name, kind.is_image, values, -ones, ones, in_range, torch.ones(1), plausible)
        results.append((candidate, float(unexplained)))
    return results


def quotients(layer: SharedLinear) -> tuple[Tensor, Tensor, Tensor]:
    """Weight gradient over bias gradient, row by row, the neuron with the largest bias gradient first.

    Returns:
        ratios ``(m, in)`` in float64, their neurons ``(m,)``, and the neurons' bias gradients as shares of the largest ``(m,)``;
        m is 0 if all bias gradients are zero.
    """
    assert layer.bias is not None
    # Float64, since candidates are compared by differences of ratios of small numbers.
    bias, weight = layer.bias.double().cpu(), layer.weight.double().cpu()
    strength = bias.abs() / bias.abs().max().clamp(min=1e-300)
    order = strength.argsort(descending=True)
    # Below a few standard deviations of its error not even the sign of a bias gradient is known.
    order = order[(strength[order] > WEAKEST) & (bias[order].abs() > CERTAIN * layer.error)]
    return weight[order] / bias[order, None], order, strength[order]


def _layer(observation: Observation, layer: SharedLinear, kind: LayerInput, error: float) -> Candidates:
    """The candidates of a layer; ``error`` is the standard deviation of the error of its weight's entries."""
    rows = _Rows.of(layer, error)
    leaders, support = rows.distinct()
    noise, uncertainty = rows.noise[leaders], rows.uncertainty[leaders]
    values, in_range = _checked(observation, rows.ratios[leaders], kind, rows.deviation[leaders])
    plausible = support > 1
    if kind.is_image and observation.encoding is not None:
        # With two classes, neurons that the same rows activate agree on a mixture of them. Its categories are not one-hot.
        plausible = (in_range == 1) & (plausible if not observation.encoding.categories else True)
    elif kind.is_image:
        plausible = plausible | (in_range >= IN_RANGE)
    plausible = plausible & (noise <= CLEAR**2)
    strong = rows.strength[leaders]
    # Order: plausible, then supported by many neurons, then small bias gradient, since a neuron that few samples activate has a
    # small one and the largest belong to mixtures of all samples. Small ones also have the largest errors, so uncertain rows come
    # last, the least uncertain first. Stable sorts, from the least to the most important key.
    rank = torch.arange(len(leaders))
    for key in (torch.where(uncertainty <= CLEAR**2, -strong, -1 - uncertainty), support, plausible.long()):
        rank = rank[key[rank].argsort(descending=True, stable=True)]
    ranked = (part[rank] for part in (values, rows.neurons[leaders], support, in_range, strong, plausible))
    return Candidates(layer.name, kind.is_image, *ranked)


@dataclass(frozen=True)
class _Rows:
    """The row ratios of a layer and their errors.

    Attributes:
        ratios: ``(m, in)``, 0 where an entry was not sent.
        neurons, strength: ``(m,)``, see :func:`quotients`.
        sent: ``(m, in)``, 1 where an entry was sent, else 0; ``None``: all entries were sent.
        entry_error: ``(m,)``, standard deviation of an entry's error due to the weight gradient.
        factor_error: ``(m,)``, relative standard deviation of the whole row's error due to the bias gradient.
    """

    ratios: Tensor
    neurons: Tensor
    strength: Tensor
    sent: Tensor | None
    entry_error: Tensor
    factor_error: Tensor

    @classmethod
    def of(cls, layer: SharedLinear, error: float) -> _Rows:
        assert layer.bias is not None
        ratios, neurons, strength = quotients(layer)
        bias = layer.bias.double().cpu()[neurons].abs()
        sent = None if layer.kept is None else layer.kept.cpu()[neurons].to(ratios)
        return cls(ratios if sent is None else ratios * sent, neurons, strength, sent, error / bias, layer.error / bias)

    @property
    def noise(self) -> Tensor:
        """Expected squared error of the entries that were sent, as a share of the row's squared norm ``(m,)``."""
        size = self.ratios.square().sum(1)
        return self.factor_error.square() + self._entries * self.entry_error.square() / size.clamp(min=1e-300)

    @property
    def uncertainty(self) -> Tensor:
        """Expected squared error of the whole row ``(m,)``, relative to its squared norm; entries that were not sent count as
        errors."""
        share = self._entries / self.ratios.shape[1]
        return 1 - share + share * self.noise

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of an entry's error ``(m,)``."""
        size = self.ratios.square().sum(1)
        return (self.noise * size / self._entries.clamp(min=1)).sqrt()

    @property
    def _entries(self) -> Tensor:
        """The number of entries that were sent ``(m,)``."""
        return self.ratios.new_full((len(self.ratios),), self.ratios.shape[1]) if self.sent is None else self.sent.sum(1)

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Group equal rows: the index of each group's row with the smallest error, and the number of rows that agree with it.

        Rows with so large an error that they agree with any other do not count.
        """
        near, clear = self._near(), self.noise <= CLEAR**2
        free = torch.ones(len(near), dtype=torch.bool)
        leaders, support = list[int](), list[int]()
        for i in self.uncertainty.argsort(stable=True).tolist():
            if free[i]:
                group = near[i] & free
                group[i] = True
                leaders.append(i)
                support.append(max(1, int((group & clear).sum())))
                free &= ~group
        return torch.tensor(leaders, dtype=torch.long), torch.tensor(support, dtype=torch.long)

    def _near(self) -> Tensor:
        """Whether two rows are equal within their errors, on the entries that were sent of both ``(m, m)``."""
        rows, m, width = self.ratios, *self.ratios.shape
        overlap = torch.full((m, m), width).to(rows) if self.sent is None else self.sent @ self.sent.T
        # size[i, j]: the squared norm of row i on the entries that were sent of row j.
        size = rows.square().sum(1)[:, None].expand(m, m) if self.sent is None else rows.square() @ self.sent.T
        share = rows @ rows.T / size.clamp(min=1e-300)
        along, across = (share - 1).square() * size, (size.T - share.square() * size).clamp(min=0)
        entry_error, factor_error = (error.square()[:, None] + error.square() for error in (self.entry_error, self.factor_error))
        excess = (across - ACROSS**2 * overlap * entry_error).clamp(min=0) + (
            along - ALONG**2 * (size * factor_error + entry_error)
        ).clamp(min=0)
        return (excess <= SAME**2 * torch.maximum(size, size.T)) & (overlap >= OVERLAP * width)


def _checked(observation: Observation, inputs: Tensor, kind: LayerInput, error: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates ``(m, in)``, as images if the layer's input is one, and the share of their entries that a true input could have.

    Args:
        error: standard deviation of the candidates' errors ``(m,)``, a tolerance beside :data:`SLACK`.
    """
    if kind.is_image and observation.encoding is not None:
        fits = observation.encoding.valid(inputs, SLACK + CERTAIN * error[:, None])
    elif kind.is_image:
        inputs = denormalise_images(observation, inputs.reshape(-1, *observation.input_shape))
        margin = SLACK + CERTAIN * error[:, None, None, None] * per_channel(observation, observation.std, inputs)
        fits = (inputs >= -margin) & (inputs <= 1 + margin)
    else:
        fits = inputs >= kind.lowest - SLACK * inputs.abs().amax(dim=1, keepdim=True) - CERTAIN * error[:, None]
    return inputs.to(observation.shared[next(iter(observation.shared))].dtype), fits.flatten(1).double().mean(dim=1)
