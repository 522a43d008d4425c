"""A recorded net that takes token ids, as attackers on texts know it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv.attacks.api.user_net import UserNet
from fedpriv.attacks.core.observation import TextFacts
from fedpriv.audit.record.attacker_view import opening, specials
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import Encoder


def token_probe(encoder: Encoder, length: int) -> Tensor:
    """Two texts of random tokens ``(2, length)``."""
    return torch.randint(len(encoder.tokenizer), (2, length), generator=torch.Generator().manual_seed(0))


def facts_of(net: UserNet, encoder: Encoder, length: int) -> TextFacts:
    """What attackers know of the net's word embedding, and of the tokenizer.

    Raises:
        UsageError: no embedding of the net takes the token ids.
    """
    probe, weights = token_probe(encoder, length), {id(weight): name for name, weight in net.split.named_parameters()}
    words, positions = list[str](), list[str]()

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and isinstance(module, nn.Embedding) and id(module.weight) in weights:
            ids = inputs[0]
            if ids.shape == probe.shape and torch.equal(ids, probe):
                words.append(weights[id(module.weight)])
            elif torch.equal(ids.reshape(-1, length)[0], torch.arange(length)):
                positions.append(weights[id(module.weight)])

    hooks = [module.register_forward_pre_hook(note) for module in net.split.modules() if isinstance(module, nn.Embedding)]
    try:
        with torch.no_grad():
            net.split(probe)
    finally:
        for hook in hooks:
            hook.remove()
    if not words:
        raise UsageError("no embedding of the net takes token ids (B, L), which a net of texts does")
    return TextFacts(
        words=words[0],
        positions=next(iter(positions), None),
        pad=encoder.pad,
        special=specials(encoder),
        length=length,
        opens=opening(encoder),
        unknown=encoder.unknown,
    )
