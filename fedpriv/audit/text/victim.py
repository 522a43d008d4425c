"""A text classifier as the victim of attacks on text, and the message of one gradient step on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, SplitNet, TextFacts, ThreatModel, blank
from fedpriv.audit.record.attacker_view import text_facts
from fedpriv.defenses import build_transforms, sent_names
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import Encoder
from fedpriv.models.text.transformer import Tune, text_encoder
from fedpriv.noise_source import SeededSource
from fedpriv.seeding import kept_rng
from fedpriv.wire import Payload, Transform, TransformContext

TRAINED = 0.02
"""Standard deviation of LoRA's matrices B, which start at zero in training; while they are zero, the gradients of A are zero."""


@dataclass(frozen=True, eq=False)
class TextVictim:
    """An encoder with a new linear layer on it, and the transforms of the client's gradient.

    Attributes:
        net: in evaluation mode, so that there is no dropout.
        facts: ``None`` where the net's inputs are features of a frozen encoder.
        transforms: fedpriv's defences, such as masks and noise.
        longest: the maximum number of tokens of a sentence.
    """

    net: SplitNet
    facts: TextFacts | None
    classes: int
    longest: int
    transforms: tuple[Transform, ...]

    def observe(self, ids: Tensor, labels: Tensor, size: int, threat: ThreatModel, seed: int) -> Iterator[Observation]:
        """One gradient step on every ``size`` of the sentences ``(n, L)``; lazily, as each message is as large as the net.

        Args:
            ids: token ids, or features ``(n, d)`` where those are the net's inputs.
            seed: of the noise.
        """
        parameters = dict(self.net.named_parameters())
        learn = {name: parameters[name] for name in _learning(self.net)}
        weights = {name: parameter.detach() for name, parameter in parameters.items()}
        linear = _linear(self.net)
        for number, (some, true) in enumerate(zip(torch.split(ids, size), torch.split(labels, size), strict=True)):
            trim = getattr(self.net.body, "trim", lambda whole: whole)
            gradients = torch.autograd.grad(F.cross_entropy(self.net(trim(some)), true), list(learn.values()))
            sent = Payload(dict(zip(learn, gradients, strict=True)), round=1, client=number, kind="gradient")
            for place, transform in enumerate(self.transforms):
                draw = SeededSource(seed).noise(number, place, "what one step sends")
                sent = transform(sent, TransformContext({}, tuple(learn), draw, linear))
            hidden = not any(name.startswith("top.") for name in sent.tensors)
            known = {n: w for n, w in weights.items() if threat.top != "unknown" or not (hidden and n.startswith("top."))}
            yield Observation(
                dict(sent.tensors), "gradient", known, blank(self.net), (self.longest,), self.classes, threat,
                num_examples=len(some) if threat.num_examples else None, text=self.facts,
                labels=true if threat.labels else None,
            )  # fmt: skip


def text_victim(
    encoder: Encoder,
    classes: int,
    longest: int,
    tune: Tune = "full",
    mask_embeddings: bool = False,
    transforms: Sequence[Transform] = (),
    seed: int = 0,
) -> TextVictim:
    """The victim of single steps.

    Args:
        tune: what is trained and sent besides the head; ``lora``: adapters as after some training.
        mask_embeddings: the embeddings of words and positions are not sent.
        transforms: further transforms of the message.

    Raises:
        UsageError: embeddings to be masked are not sent anyway, or a mask leaves nothing.
    """
    with kept_rng():
        torch.manual_seed(seed)
        body: nn.Module = nn.Identity() if tune == "head" else text_encoder(encoder, tune)
        for name, parameter in body.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=TRAINED)
        net = SplitNet(body, nn.Linear(int(encoder.config.hidden_size), classes)).eval()
    facts = text_facts(net, encoder)
    if mask_embeddings:
        if facts is None or tune != "full":
            raise UsageError(f"with tune {tune} no embedding is sent, so there is none to mask")
        embeddings = [name for name in (facts.words, facts.positions) if name is not None]
        transforms = [*build_transforms([{"name": "mask", "names": embeddings}]), *transforms]
    sent_names(_learning(net), transforms, _linear(net))  # raises for an invalid mask
    return TextVictim(net, facts, classes, longest, tuple(transforms))


def _learning(net: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, parameter in net.named_parameters() if parameter.requires_grad)


def _linear(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
