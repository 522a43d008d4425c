"""Membership by the row ratios of a linear layer, which show inputs of training samples.

A row of a linear layer's weight gradient over its entry of the bias gradient is a weighted mean of the layer's inputs
(:mod:`fedpriv.attacks.gradients.analytic`): of few samples, if few activated that neuron. So a candidate is the likelier a member
the nearer a row is to its input of the layer. The attack needs no label, no head and no shadow model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.analytic import layers_with_bias, quotients
from fedpriv.attacks.gradients.linear import training_net
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.inference.membership import Array

ENOUGH = 0.1
"""Smallest share of sent entries at which a pruned row is compared; few entries are near to any candidate."""
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class RowDistance:
    """The distances of candidates to the rows of a layer.

    Attributes:
        layer: the layer's name in the net of the observations.
        fed: the layer's input for each candidate ``(n, in)``, double precision.
    """

    layer: str
    fed: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, observation: Observation, candidates: Sequence[Any]) -> RowDistance:
        """For the first shared linear layer with a bias and one input vector per sample, at the weights that the client received.

        Args:
            candidates: inputs of the net, normalised; in consecutive parts, which go through the net one after another.

        Raises:
            Inapplicable: there is no such layer, or layers before it are not known.
        """
        layers = {layer.name for layer in layers_with_bias(observation)}
        if not layers:
            raise Inapplicable("no linear layer with a bias was shared, and the distance to its rows needs one")
        net, weights = _at_received_weights(observation)
        reached = [_first_fed(net, weights, part, layers) for part in candidates]
        name, fed = reached[0][0], torch.cat([inputs for _, inputs in reached]).double().cpu()
        if not bool(fed.isfinite().all()):
            raise Inapplicable(f"layers before {name}, the first shared linear layer with a bias, are not known")
        return cls(name, fed)

    def __call__(self, observation: Observation) -> Array:
        """Minus the relative distance of each candidate to the nearest row ratio ``(n,)``; higher for likelier members.

        Weight decay and momentum are undone. Where no bias changed there is no ratio, and the only row is zero.

        Raises:
            Inapplicable: the layer was not shared.
        """
        tensors = {name: observation.shared[name] for name in _tensors(self.layer) if name in observation.shared}
        layers = layers_with_bias(as_gradient(replace(observation, shared=tensors)))
        if not layers:
            raise Inapplicable(f"{self.layer} was not shared with its bias")
        rows, neurons, _ = quotients(layers[0])
        if not len(rows):
            rows, neurons = torch.zeros(1, self.fed.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.long)
        if observation.altered.kept:
            return self._of_what_was_sent(rows, observation.shared[_tensors(self.layer)[0]].cpu()[neurons] != 0)
        size = self.fed.norm(dim=1).clamp(min=_TINY)
        score: Array = (-torch.cdist(self.fed, rows).amin(dim=1) / size).numpy()
        return score

    def _of_what_was_sent(self, rows: Tensor, sent: Tensor) -> Array:
        """The score on only the entries that were ``sent`` ``(m, in)``, of rows with enough of them (:data:`ENOUGH`)."""
        enough = sent.double().mean(dim=1) >= ENOUGH
        if not bool(enough.any()):
            return -torch.ones(len(self.fed), dtype=torch.float64).numpy()
        rows, kept = rows[enough] * sent[enough], sent[enough].double()
        sizes = self.fed.square() @ kept.T
        squares = (sizes - 2 * self.fed @ rows.T + rows.square().sum(dim=1)).clamp(min=0)
        score: Array = -(squares / sizes.clamp(min=_TINY)).amin(dim=1).sqrt().numpy()
        return score


def _tensors(layer: str) -> tuple[str, str]:
    return f"{layer}.weight", f"{layer}.bias"


def _at_received_weights(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """The net and its known weights; unknown ones are NaN. BatchNorm normalises by the batch, as in training."""
    net, known = training_net(observation)
    device = next(iter(observation.shared.values())).device
    return net.to(device), {name: tensor.to(device) for name, tensor in known.items()}


class _ReachedError(Exception):
    """Ends a forward pass early: later layers are not needed, and may not be known."""

    def __init__(self, layer: str, fed: Tensor) -> None:
        self.layer, self.fed = layer, fed


def _first_fed(net: nn.Module, weights: dict[str, Tensor], samples: Any, layers: set[str]) -> tuple[str, Tensor]:
    """The first of the layers with an input ``(n, in)``, and that input."""

    def watch(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            if args[0].ndim == 2:
                raise _ReachedError(name, args[0])

        return hook

    hooks = [net.get_submodule(name).register_forward_pre_hook(watch(name)) for name in layers]
    try:
        functional_call(net, weights, (samples,))
    except _ReachedError as reached:
        return reached.layer, reached.fed
    finally:
        for hook in hooks:
            hook.remove()
    raise Inapplicable("no shared linear layer with a bias has one input vector per sample")
