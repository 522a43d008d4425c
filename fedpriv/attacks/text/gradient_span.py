"""The span of a linear layer's inputs, from its gradient (DAGER, Petrov et al., NeurIPS 2024).

The weight gradient of a linear layer is ``sum_t (dL/da_t) x_t^T`` over the tokens. With fewer tokens than its width, every
true input lies in the span of the gradient's rows, and hardly any other vector does. In a transformer the inputs of the first
layers depend on one token and its position, those of later layers on the whole sentence. The attacker knows the
weights and can compute both, so it can test all pairs of word and position, and any sentence.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import layer_input
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.text.case import text_facts
from fedpriv.attacks.text.rank import is_linear, is_transposed, stacked, tokens_in

BATCH = 256
"""Number of words, or sentences, per forward pass."""
LATER = 4
"""Number of different inputs of later layers that are tried: in BERT, three of the first block and the second's attention."""

Reads = Literal["tokens", "sentences"]
"""Whether a layer's input at a position depends on the token there alone, or on the whole sentence."""


@dataclass(frozen=True, eq=False)
class Span:
    """The span of the gradients' rows of linear layers with the same input.

    Attributes:
        net: the architecture in evaluation mode.
        layers: their names, such as query, key and value.
        basis: orthonormal ``(d, r)``. ``r`` is the number of independent pairs of token and position in the batch for first
            layers, of tokens for later ones.
    """

    net: nn.Module
    layers: tuple[str, ...]
    basis: Tensor

    def distance(self, inputs: Tensor) -> Tensor:
        """Distance ``(...)`` of vectors ``(..., d)`` from the span, as a share of their norms."""
        inputs = inputs.to(self.basis)
        residual = inputs - inputs @ self.basis @ self.basis.T
        share: Tensor = (residual.norm(dim=-1) / inputs.norm(dim=-1).clamp_min(1e-30)).float()
        return share


def first_span(observation: Observation) -> Span:
    """The span at a shared layer whose inputs depend on single tokens, that of the highest rank.

    Raises:
        Inapplicable: no such layer was shared, its input cannot be computed, or its rank is full (noise, rounding, or too many
            tokens).
    """
    spans = _spans(observation, "tokens")
    if not spans:
        raise Inapplicable(
            "no shared layer has single tokens as inputs and a gradient below full rank (noise, rounding, or too many tokens)"
        )
    return max(spans, key=lambda span: span.basis.shape[1])


def later_span(observation: Observation) -> Span | None:
    """The span at one of the first shared layers whose inputs depend on whole sentences; ``None`` if all have full rank.

    Takes the highest rank, as others may have lost tokens to rounding, then the widest input, whose span holds the fewest false
    sentences.
    """
    return max(_spans(observation, "sentences"), key=lambda span: (span.basis.shape[1], len(span.basis)), default=None)


@torch.no_grad()
def word_distances(observation: Observation, span: Span, length: int) -> Tensor:
    """Distance of each word at each of ``length`` positions from the span, relative to its norm: ``(V, length)``, in [0, 1]."""
    text, words = text_facts(observation), torch.arange(len(observation.weights[text_facts(observation).words]))
    distances = sentence_distances(observation, span, words[:, None].expand(-1, length))
    distances[text.pad] = 1
    return distances


@torch.no_grad()
def sentence_distances(observation: Observation, span: Span, ids: Tensor) -> Tensor:
    """Distance ``(n, L)`` from the span at each place of sentences ``(n, L)`` without padding."""
    distances = []
    for batch in torch.split(ids, BATCH):
        distances.append(span.distance(layer_input(span.net, span.layers[0], observation.weights, batch)))
    return torch.cat(distances)


def _spans(observation: Observation, reads: Reads) -> list[Span]:
    """The spans below full rank, at the shared layers that read tokens or the first few that read sentences."""
    text = text_facts(observation)
    body = [f"body.{name}" for name, _ in observation.net.body.named_parameters()]
    if hidden := [name for name in body if name not in observation.weights]:
        raise Inapplicable(f"the inputs of the first layers cannot be computed without the weights of {hidden[0]!r}")
    shared, spans = as_gradient(observation).shared, list[Span]()
    net = copy.deepcopy(observation.net).eval()
    groups = _groups(net, observation, text, reads)
    transposed = {f"{layer}.weight": is_transposed(net.get_submodule(layer)) for group in groups for layer in group}
    by_rows = {name: shared[name].T if turned else shared[name] for name, turned in transposed.items() if name in shared}
    sent = [
        (group, sent_gradients)
        for group in groups
        if (sent_gradients := {n: by_rows[n] for g in group if (n := f"{g}.weight") in by_rows})
    ]
    for layers, gradients in sent if reads == "tokens" else sent[:LATER]:
        rows, noise = stacked(observation, gradients)
        if len(rows) > 1 and (r := tokens_in(rows, noise)):
            spans.append(Span(net, layers, torch.linalg.svd(rows.double(), full_matrices=False).Vh[:r].T))
    return spans


@torch.no_grad()
def _groups(net: nn.Module, observation: Observation, text: TextFacts, reads: Reads) -> list[tuple[str, ...]]:
    """Names of the linear layers that read tokens or sentences, grouped by equal inputs.

    Tested with trial sentences, so it works for any architecture.
    """
    words = [word for word in range(len(observation.weights[text.words])) if word not in (text.pad, *text.special)][:2]
    ids = torch.tensor([[words[0]] * 4, [words[0], words[0], words[1], words[0]]])
    groups: list[tuple[Tensor, list[str]]] = []
    for name, module in net.named_modules():
        if not is_linear(module):
            continue
        try:
            inputs = layer_input(net, name, observation.weights, ids)
        except Inapplicable:  # never called
            continue
        if inputs.shape[:2] != ids.shape:
            continue
        same = (inputs[0] == inputs[1]).all(1).tolist()
        if same[2] or (same == [True, True, False, True]) != (reads == "tokens"):
            continue
        group = next((names for other, names in groups if torch.equal(other, inputs)), None)
        if group is None:
            groups.append((inputs, [name]))
        else:
            group.append(name)
    return [tuple(names) for _, names in groups]
