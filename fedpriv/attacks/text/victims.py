"""The reference client of text attacks: a small random BERT, random sentences, and one gradient on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.core.observation import Observation, SplitNet, TextFacts, ThreatModel, blank

PAD, FIRST, LAST = 0, 1, 2
"""Special token ids of the reference client; words follow."""


class MeanPooled(nn.Module):
    """A transformer on token ids ``(B, L)``, followed by the mean of its outputs ``(B, d)`` without padding."""

    def __init__(self, transformer: nn.Module, pad: int) -> None:
        super().__init__()
        self.transformer, self.pad = transformer, pad

    def forward(self, ids: Tensor) -> Tensor:
        """``(B, L)`` -> ``(B, d)``."""
        there = ids != self.pad
        states: Tensor = self.transformer(input_ids=ids, attention_mask=there.long()).last_hidden_state
        weight = there[..., None].to(states.dtype)
        return (states * weight).sum(1) / weight.sum(1)


@dataclass(frozen=True)
class Size:
    """The size of the reference client's net; small, so that a control takes seconds."""

    words: int = 200
    width: int = 48
    layers: int = 2
    heads: int = 4
    length: int = 24
    classes: int = 6


SMALL = Size()


def small_bert(seed: int, size: Size = SMALL) -> SplitNet:
    """A random BERT for ids below ``size.words``, and a linear layer to the classes, in evaluation mode."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=size.words, hidden_size=size.width, num_hidden_layers=size.layers, num_attention_heads=size.heads,
        intermediate_size=2 * size.width, max_position_embeddings=size.length, pad_token_id=PAD,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = MeanPooled(BertModel(config, add_pooling_layer=False), PAD)
        return SplitNet(body, nn.Linear(size.width, size.classes)).eval()


def facts(size: Size = SMALL) -> TextFacts:
    """The facts of :func:`small_bert`."""
    table = "body.transformer.embeddings.{}_embeddings.weight"
    return TextFacts(table.format("word"), table.format("position"), PAD, (FIRST, LAST), size.length)


def sentences(lengths: Sequence[int], seed: int, size: Size = SMALL) -> Tensor:
    """Random padded sentences ``(n, L)``; ``lengths`` include the two special tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        words = torch.randint(LAST + 1, size.words, (length - 2,), generator=generator)
        rows.append(torch.cat([torch.tensor([FIRST]), words, torch.tensor([LAST])]))
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def observe_text(
    net: SplitNet, ids: Tensor, labels: Tensor, text: TextFacts | None = None, threat: ThreatModel | None = None
) -> Observation:
    """The observation of a gradient on sentences ``(n, L)`` with labels ``(n,)``.

    The gradients of parameters with ``requires_grad`` are shared, and all weights are known.
    """
    parameters = dict(net.named_parameters())
    learn = {name: p for name, p in parameters.items() if p.requires_grad}
    loss = F.cross_entropy(net(ids), labels)
    shared = dict(zip(learn, torch.autograd.grad(loss, list(learn.values())), strict=True))
    weights = {name: p.detach().clone() for name, p in parameters.items()}
    threat, text = threat or ThreatModel(), text or facts()
    classes = int(net(ids[:1]).shape[1])
    observation = Observation(
        shared, "gradient", weights, blank(net), (text.length,), classes, threat, num_examples=len(ids), text=text
    )
    return replace(observation, labels=labels.clone()) if threat.labels else observation
