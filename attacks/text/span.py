"""Tokens and their positions, from a gradient that need not be the embedding's (DAGER, Petrov et al. 2024).

The weight gradient of a linear layer is ``sum_t signal_t input_t^T`` over the tokens. While there are fewer tokens than the layer
has inputs, every true input lies in the span of the gradient's rows, and hardly any other vector does. The inputs of the first
layers of a transformer depend on one token and its position, and the attacker can compute them: so it tries all pairs of a word
and a position. A masked or frozen embedding does not prevent this. Noise does, rounding of the weights does where their change is
sent, and so do adapters whose ranks sum to less than the number of tokens. In a batch the span also holds pairs that are sums of
three true ones (word a at p and q, word b at p: also b at q), which the search for whole sentences rules out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacks.core.observation import Observation, TextFacts
from attacks.core.reconstruction import Inapplicable
from attacks.core.text_reconstruction import TextReconstruction
from attacks.core.text_registry import register
from attacks.gradients.multistep import as_gradient
from attacks.gradients.rank import rank
from attacks.text.case import facts_of, text_case
from attacks.text.mixture import Places
from attacks.text.rank import longest, total_tokens
from attacks.text.sentence_search import SearchOptions, Sought, known_labels, one_by_one, seek

TOGETHER = 256
"""Words per forward pass."""


class _Reached(Exception):
    """Ends a forward pass at the layer in question, since the rest of the net is not needed."""


@dataclass(frozen=True)
class Span:
    """The span of the gradients' rows, for the first linear layers.

    Attributes:
        layers: linear layers with the same input, which at a position depends on the token there alone: query, key and value.
        basis: orthonormal ``(d, r)``; the batch holds ``r`` pairs of token and position.
    """

    layers: tuple[str, ...]
    basis: Tensor


def first_span(observation: Observation) -> Span:
    """The span at the shared layers whose inputs depend on single tokens.

    Raises:
        Inapplicable: no such layer was shared, its input is not known, or the span is full: noise, or too many tokens.
    """
    text = facts_of(observation)
    if hidden := [name for name in _of_body(observation) if name not in observation.weights]:
        raise Inapplicable(f"the inputs of the first layers cannot be computed without the weights of {hidden[0]!r}")
    shared, best = as_gradient(observation).shared, None
    for layers in _fed_single_tokens(copy.deepcopy(observation.net).eval(), observation, text):
        weights = [shared[f"{layer}.weight"] for layer in layers if f"{layer}.weight" in shared]
        rows = torch.cat([weight / weight.norm() for weight in weights if bool(weight.any())] or [torch.zeros(1, 1)])
        found = rank(rows) if len(rows) > 1 else None
        if found and (best is None or found > best.basis.shape[1]):
            best = Span(layers, torch.linalg.svd(rows.double(), full_matrices=False).Vh[:found].T)
    if best is None:
        raise Inapplicable(
            "no shared layer has single tokens as inputs and a gradient below full rank (noise, or too many tokens)"
        )
    return best


@torch.no_grad()
def off_span(observation: Observation, span: Span, length: int) -> Tensor:
    """Distance of each word at each of ``length`` positions from the span, relative to its norm ``(V, length)``, in [0, 1]."""
    text = facts_of(observation)
    net, words = copy.deepcopy(observation.net).eval(), len(observation.weights[text.words])
    found = []
    for some in torch.split(torch.arange(words), TOGETHER):
        reached = _fed_to(net, span.layers[0], observation, some[:, None].expand(-1, length))
        assert reached is not None, "first_span found this layer by reaching it"
        fed = reached.to(span.basis)
        left = fed - fed @ span.basis @ span.basis.T
        found.append((left.norm(dim=2) / fed.norm(dim=2).clamp_min(1e-30)).float())
    off = torch.cat(found)
    off[text.pad] = 1
    return off


@register("span")
@dataclass(frozen=True)
class SpanAttack(SearchOptions):
    """Tokens with their positions from the span of the first linear layers' gradients (DAGER), then a search for the sentences.

    Attributes:
        tolerance: largest relative distance from the span at which a token counts as found.
    """

    tolerance: float = 0.01

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """See :class:`attacks.core.text_registry.TextAttack`. The loss is the unexplained share of the gradient."""
        return one_by_one(observations, lambda observation: self._one(observation, seed))

    def _one(self, observation: Observation, seed: int) -> Sought:
        case, span = text_case(observation), first_span(observation)
        # The vectors of one sentence's tokens are independent, so it has at most as many as the span has dimensions.
        off = off_span(observation, span, min(longest(observation) or observation.input_shape[0], span.basis.shape[1]))
        hits = off <= self.tolerance
        places = _places(hits, case.text, case.samples, total_tokens(observation))
        found, name, rank = int(hits.sum()), span.layers[0], span.basis.shape[1]
        note = f"{found} pairs of token and position in the span of {name!r}, whose rank is {rank}"
        return seek(self, case, places, known_labels(observation), note, seed)


def _places(hits: Tensor, text: TextFacts, samples: int, total: int | None) -> Places:
    """The words allowed at each place by the pairs ``(V, L)`` that were found.

    Raises:
        Inapplicable: they form no sentence: a position has no token, or none has the closing one.
    """
    filled = hits.any(0)
    most = int(filled.long().cumprod(0).sum())
    if most == 0:
        raise Inapplicable("no token lies in the span at the first position: the message is not one gradient of this net")
    closing = text.special[-1] if text.special else None
    ends = [most] if closing is None else (hits[closing, :most].nonzero().flatten() + 1).tolist()
    if not ends:
        raise Inapplicable("the closing token lies in the span at no position: the message is not one gradient of this net")
    lengths = _lengths(ends, samples, total)
    words = hits[:, :most].any(1).nonzero().flatten()
    allowed = torch.zeros(samples, max(lengths), len(words), dtype=torch.bool)
    for row, length in zip(allowed, lengths, strict=True):
        row[:length] = hits[words, :length].T
        if closing is not None:
            row[: length - 1, words == closing] = False
            row[length - 1] = words == closing
    return Places(words, allowed)


def _lengths(ends: list[int], samples: int, total: int | None) -> list[int]:
    """A length for each sentence out of ``ends``: each used at least once if possible, and with the right total if one fits."""
    if len(ends) >= samples:
        return sorted(ends)[-samples:]
    rest = combinations_with_replacement(ends, samples - len(ends))
    fits = next((list(r) for r in rest if total is None or sum(ends) + sum(r) == total), [max(ends)] * (samples - len(ends)))
    return sorted([*ends, *fits], reverse=True)


def _of_body(observation: Observation) -> list[str]:
    return [f"body.{name}" for name, _ in observation.net.body.named_parameters()]


@torch.no_grad()
def _fed_single_tokens(net: nn.Module, observation: Observation, text: TextFacts) -> list[tuple[str, ...]]:
    """Linear layers whose input at a position depends on the token there and on no other, grouped by equal inputs.

    Found by trial inputs, so that it works for any architecture.
    """
    words = [word for word in range(len(observation.weights[text.words])) if word not in (text.pad, *text.special)][:2]
    ids = torch.tensor([[words[0]] * 4, [words[0], words[0], words[1], words[0]]])
    found: list[tuple[Tensor, list[str]]] = []
    for name, module in net.named_modules():
        fed = _fed_to(net, name, observation, ids) if isinstance(module, nn.Linear) else None
        if fed is None or fed.shape[:2] != ids.shape or (fed[0] == fed[1]).all(1).tolist() != [True, True, False, True]:
            continue
        group = next((names for other, names in found if torch.equal(other, fed)), None)
        if group is None:
            found.append((fed, [name]))
        else:
            group.append(name)
    return [tuple(names) for _, names in found]


def _fed_to(net: nn.Module, layer: str, observation: Observation, ids: Tensor) -> Tensor | None:
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
