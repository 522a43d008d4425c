"""What the gradients of linear layers reveal of their inputs: the span in which these lie (DAGER, Petrov et al. 2024).

The weight gradient of a linear layer is ``sum_t signal_t input_t^T`` over the tokens. While there are fewer tokens than the
layer has inputs and outputs, every true input lies in the span of the gradient's rows, and hardly any other vector does. The
inputs of the first layers of a transformer depend on one token and its position, those of later ones on the whole sentence. The
attacker can compute both: so it can test all pairs of a word and a position, and any sentence.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.text.case import facts_of
from fedpriv.attacks.text.rank import is_linear, is_transposed, stacked, tokens_in

TOGETHER = 256
"""Words, or sentences, per forward pass."""
LATER = 4
"""So many inputs of later layers are looked at: in a BERT, those of the first block's three and of the second's attention."""

Reads = Literal["tokens", "sentences"]
"""What a layer's input at a position depends on: the token there alone, or the sentence."""


class _Reached(Exception):
    """Ends a forward pass at the layer in question, since the rest of the net is not needed."""


@dataclass(frozen=True, eq=False)
class Span:
    """The span of the gradients' rows, of linear layers with the same input.

    Attributes:
        net: the architecture in evaluation mode.
        layers: such as query, key and value.
        basis: orthonormal ``(d, r)``; of first layers, the batch holds ``r`` pairs of token and position, or more where these
            depend on each other; of later ones, ``r`` tokens.
    """

    net: nn.Module
    layers: tuple[str, ...]
    basis: Tensor

    def off(self, fed: Tensor) -> Tensor:
        """Distance of inputs ``(..., d)`` from the span, relative to their norms ``(...)``, in [0, 1]."""
        fed = fed.to(self.basis)
        left = fed - fed @ self.basis @ self.basis.T
        found: Tensor = (left.norm(dim=-1) / fed.norm(dim=-1).clamp_min(1e-30)).float()
        return found


def first_span(observation: Observation) -> Span:
    """The span at the shared layers whose inputs depend on single tokens.

    Raises:
        Inapplicable: no such layer was shared, its input is not known, or the span is full: noise, rounding, or too many tokens.
    """
    found = _spans(observation, "tokens")
    if not found:
        raise Inapplicable(
            "no shared layer has single tokens as inputs and a gradient below full rank (noise, rounding, or too many tokens)"
        )
    return max(found, key=lambda span: span.basis.shape[1])


def later_span(observation: Observation) -> Span | None:
    """The span at one of the first shared layers whose inputs depend on whole sentences.

    The one of the highest rank, as the others may have lost weak tokens to rounding; then that with most inputs, as fewest false
    ones lie in its span. ``None`` where there is none below full rank.
    """
    return max(_spans(observation, "sentences"), key=lambda span: (span.basis.shape[1], len(span.basis)), default=None)


@torch.no_grad()
def word_distances(observation: Observation, span: Span, length: int) -> Tensor:
    """Distance of each word at each of ``length`` positions from the span, relative to its norm ``(V, length)``, in [0, 1]."""
    text, words = facts_of(observation), torch.arange(len(observation.weights[facts_of(observation).words]))
    off = sentence_distances(observation, span, words[:, None].expand(-1, length))
    off[text.pad] = 1
    return off


@torch.no_grad()
def sentence_distances(observation: Observation, span: Span, ids: Tensor) -> Tensor:
    """Distance of the inputs at each place of sentences ``(n, L)``, without padding, from the span ``(n, L)``."""
    found = []
    for some in torch.split(ids, TOGETHER):
        reached = fed_to(span.net, span.layers[0], observation, some)
        assert reached is not None, "the span's layers were found by reaching them"
        found.append(span.off(reached))
    return torch.cat(found)


def _spans(observation: Observation, reads: Reads) -> list[Span]:
    """The spans below full rank of the shared layers that read tokens, or of the first few that read sentences."""
    text = facts_of(observation)
    if hidden := [name for name in _of_body(observation) if name not in observation.weights]:
        raise Inapplicable(f"the inputs of the first layers cannot be computed without the weights of {hidden[0]!r}")
    shared, found = as_gradient(observation).shared, list[Span]()
    net = copy.deepcopy(observation.net).eval()
    groups = _groups(net, observation, text, reads)
    transposed = {f"{layer}.weight": is_transposed(net.get_submodule(layer)) for group in groups for layer in group}
    by_rows = {name: shared[name].T if turned else shared[name] for name, turned in transposed.items() if name in shared}
    sent = [(group, some) for group in groups if (some := {n: by_rows[n] for g in group if (n := f"{g}.weight") in by_rows})]
    for layers, gradients in sent if reads == "tokens" else sent[:LATER]:
        rows, noise = stacked(observation, gradients)
        if len(rows) > 1 and (r := tokens_in(rows, noise)):
            found.append(Span(net, layers, torch.linalg.svd(rows.double(), full_matrices=False).Vh[:r].T))
    return found


def _of_body(observation: Observation) -> list[str]:
    return [f"body.{name}" for name, _ in observation.net.body.named_parameters()]


@torch.no_grad()
def _groups(net: nn.Module, observation: Observation, text: TextFacts, reads: Reads) -> list[tuple[str, ...]]:
    """Linear layers whose input at a position depends on the token there alone, or also on others, grouped by equal inputs.

    Found by trial inputs, so that it works for any architecture.
    """
    words = [word for word in range(len(observation.weights[text.words])) if word not in (text.pad, *text.special)][:2]
    ids = torch.tensor([[words[0]] * 4, [words[0], words[0], words[1], words[0]]])
    found: list[tuple[Tensor, list[str]]] = []
    for name, module in net.named_modules():
        fed = fed_to(net, name, observation, ids) if is_linear(module) else None
        if fed is None or fed.shape[:2] != ids.shape:
            continue
        same = (fed[0] == fed[1]).all(1).tolist()
        if same[2] or (same == [True, True, False, True]) != (reads == "tokens"):
            continue
        group = next((names for other, names in found if torch.equal(other, fed)), None)
        if group is None:
            found.append((fed, [name]))
        else:
            group.append(name)
    return [tuple(names) for _, names in found]


def fed_to(net: nn.Module, layer: str, observation: Observation, ids: Tensor) -> Tensor | None:
    """The input of ``layer`` for ids ``(B, L)``; ``None`` where it is not reached."""
    fed: list[Tensor] = []

    def reached(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        fed.append(args[0])
        raise _Reached

    hook = net.get_submodule(layer).register_forward_pre_hook(reached)
    try:
        functional_call(net, dict(observation.weights), (ids,))
    except _Reached:
        return fed[0]
    finally:
        hook.remove()
    return None
