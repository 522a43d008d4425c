"""Imprint of tokens: the first feed-forward layer of a transformer becomes a histogram of the batch's tokens.

After "Robbing the Fed" (Fowl et al., ICLR 2022) and "Decepticons" (Fowl et al., ICLR 2023). The server switches the first block's
attention off, so that the feed-forward layer gets single tokens with their positions. All its rows measure one random statistic
``h(x)`` at the edges of bins, and the next layer has equal columns. So the difference of neighbouring rows' gradients is
``sum g x`` over the tokens near a bin. The activation is smooth, which spreads a token over a few bins, and tokens may share a
bin. So each pair of a word and a position is tested against the span of a few differences around its own bin. This also works
for more tokens than the layer is wide. It does not show which tokens belong to the same sentence.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedpriv.attacks.attack import TextAttack, register
from fedpriv.attacks.core.observation import Observation, SplitNet
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.gradients.linear import layer_input
from fedpriv.attacks.gradients.multistep import as_gradient, rounding
from fedpriv.attacks.gradients.rank import ROUNDING, noise_level
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.text.case import text_facts
from fedpriv.attacks.text.gradient_span import BATCH
from fedpriv.attacks.text.tokens import inferred_labels

ALIGNED = 0.9
"""Smallest cosine between the rows of an imprint and their mean."""


class Block(NamedTuple):
    """The layers of a BERT's first block that are altered, by name."""

    attended: str
    norm: str
    first: str
    second: str


@register("token-imprint")
@dataclass(frozen=True)
class TokenImprint(TextAttack):
    """Malicious server: the first feed-forward layer becomes a histogram; finds tokens and their positions.

    Attributes:
        scale: of the layer's inputs; larger inputs are resolved better in the change of rounded weights.
        outgoing: length of what the bins add to a token, over the scale.
        around: number of bins on each side of a token's own that are used.
        tolerance: largest relative distance from their span at which a token counts as found.
    """

    control: ClassVar = TextSetting()
    audit_options: ClassVar = None
    max_batch: ClassVar = None
    optimises: ClassVar = False
    scale: float = 100.0
    outgoing: float = 0.1
    around: int = 4
    tolerance: float = 0.02

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        """Args:
            public: token ids of other texts ``(m, L)``, for the quantiles of the statistic.

        Raises:
            Inapplicable: the net is no BERT, or the layers are not sent.
        """
        block, weights = block_of(observation), observation.weights
        draw = torch.Generator().manual_seed(seed)
        rows, width = weights[f"{block.first}.weight"].shape
        altered = {
            f"{block.attended}.weight": torch.zeros_like(weights[f"{block.attended}.weight"]),
            f"{block.attended}.bias": torch.zeros_like(weights[f"{block.attended}.bias"]),
            f"{block.norm}.weight": torch.full_like(weights[f"{block.norm}.weight"], self.scale),
            f"{block.norm}.bias": torch.zeros_like(weights[f"{block.norm}.bias"]),
        }
        known = replace(observation, weights={**weights, **altered})
        fed = layer_input(_at_rest(observation), block.first, known.weights, public.long())
        tokens = torch.unique(fed[public != text_facts(observation).pad].double(), dim=0)
        direction = torch.randn(width, generator=draw, dtype=torch.float64)
        direction /= (tokens @ direction).std().clamp(min=1e-12)
        edges = (tokens @ direction).quantile(torch.arange(rows, dtype=torch.float64) / rows)
        column = torch.randn(width, 1, generator=draw, dtype=torch.float64) * 2 * self.outgoing * self.scale / rows**2
        altered |= {
            f"{block.first}.weight": rows * direction.expand(rows, -1),
            f"{block.first}.bias": -rows * edges,
            f"{block.second}.weight": column.expand(-1, rows),
            f"{block.second}.bias": torch.zeros(width),
        }
        return {name: tensor.to(weights[name]).contiguous() for name, tensor in altered.items()}

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """Each word counts once at each of its positions."""
        began = time.process_time()
        hits_by_message = [self.find(observation) for observation in observations]
        counts = torch.stack([hits.long().sum(1) for hits in hits_by_message])
        for observation, own in zip(observations, counts, strict=True):
            special = list(text_facts(observation).special)
            own[special] = (own[special] > 0).long() * (observation.num_examples or 1)
        notes = tuple(f"{int(hits.sum())} pairs of token and position" for hits in hits_by_message)
        labels = torch.cat([inferred_labels(observation) for observation in observations])
        nothing = torch.full((len(hits_by_message),), torch.nan)
        return TextReconstruction(None, counts, labels, nothing, notes, time.process_time() - began)

    @torch.no_grad()
    def find(self, observation: Observation) -> Tensor:
        """Which words were found at which positions ``(V, L)``.

        Raises:
            Inapplicable: the download was honest, or the layers were not sent.
        """
        text, block, seen = text_facts(observation), block_of(observation), as_gradient(observation)
        rows = observation.weights[f"{block.first}.weight"].double()
        direction = rows.mean(0)
        if float(torch.cosine_similarity(rows, direction[None]).mean()) < ALIGNED:
            raise Inapplicable(f"{block.first!r} is as an honest server sends it: its rows do not measure one statistic")
        edges, order = (-observation.weights[f"{block.first}.bias"].double()).sort()
        name = f"{block.first}.weight"
        weight = seen.shared[name].double()[order]
        steps = weight - torch.cat([weight[1:], torch.zeros_like(weight[:1])])
        noise = ROUNDING * torch.finfo(seen.shared[name].dtype).eps * float(weight.norm(dim=1).max())
        window = 2 * self.around + 1
        padded = torch.cat([steps.new_zeros(self.around, steps.shape[1]), steps, steps.new_zeros(self.around, steps.shape[1])])
        near = padded.unfold(0, window, 1).transpose(1, 2)  # (m, window, d)
        values, bases = torch.linalg.svd(near, full_matrices=False)[1:]
        noise = max(noise, noise_level(rounding(observation, name) * 2**0.5, (window, steps.shape[1])))
        bases = bases * (values > noise)[..., None]
        net, most, hits = _at_rest(observation), observation.input_shape[0], []
        for words in torch.split(torch.arange(len(observation.weights[text.words])), BATCH):
            fed = layer_input(net, block.first, observation.weights, words[:, None].expand(-1, most))
            fed = fed.double()
            own = (torch.searchsorted(edges, fed @ direction) - 1).clamp(min=0)
            within = torch.einsum("nld,nlkd->nlk", fed, bases[own]).norm(dim=2)
            hits.append((1 - (within / fed.norm(dim=2)).square()).clamp(min=0).sqrt() <= self.tolerance)
        found_pairs = torch.cat(hits)
        found_pairs[text.pad] = False
        return found_pairs


def _at_rest(observation: Observation) -> SplitNet:
    """A copy of the net in evaluation mode; the mode of the observation's net shows whether the client trained with dropout."""
    return copy.deepcopy(observation.net).eval()


def block_of(observation: Observation) -> Block:
    """The layers of the first block.

    Raises:
        Inapplicable: the net has none of a BERT's, or adds no positions to words, or they are not sent.
    """
    if text_facts(observation).positions is None:
        raise Inapplicable("the net adds no position to a word, but an imprint needs inputs that depend on the position")
    inner = ".attention.output.dense.weight"
    begins = next((name.removesuffix(inner) for name in observation.weights if name.endswith(inner)), None)
    if begins is None:
        raise Inapplicable("the net has no block of a BERT, whose feed-forward layer follows attention and LayerNorm")
    block = Block(*(f"{begins}.{part}" for part in ("attention.output.dense", "attention.output.LayerNorm")),
                  *(f"{begins}.{part}" for part in ("intermediate.dense", "output.dense")))  # fmt: skip
    if hidden := [name for layer in block if (name := f"{layer}.weight") not in observation.shared]:
        raise Inapplicable(f"{hidden[0]!r} is not sent: an imprint needs the first block")
    return block
