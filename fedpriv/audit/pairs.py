"""A message of image-text pairs as an attack on images sees it.

Late fusion concatenates the features of text and image for the layers above. Where the text's features are known, only the images
are unknown, and every attack on images applies to a net with these features as constants. They are zeros where the client has no
texts; for a single pair, they are in the gradient of the first layer above (weight over bias), dropout included. Otherwise no
attack can compute the layers above, which then count as hidden; attacks that do not need them still apply.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.observation import Observation, SplitNet
from fedpriv.attacks.gradients.analytic import layers_with_bias
from fedpriv.attacks.gradients.linear import single_sample_input
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.audit.record.base import Message, Record
from fedpriv.errors import UsageError
from fedpriv.models.pairs.fusion import WIDTH, Fusion

_FUSION, _IMAGE = "body.encoder.", "body.encoder.image."
_BESIDE, _UNKNOWN = "body.encoder.beside.text", "top.beside.text"
"""The text's features where they are known, and where they are not."""
MANY = "several pairs are behind one message, and their features are mixed"
UNCOUNTED = "how many pairs are behind the message is not known"
NO_BIAS = "the first layer above was not sent with its bias"


class BesideText(nn.Module):
    """Image features ``(B, W)`` -> input of the layers above ``(B, 2 W)``: the features of one text appended to each.

    Args:
        known: whether the text's features ``(1, W)`` are among the known weights; otherwise they are an unknown parameter. One
            row stands for all samples of a message: exact for one sample, a simplification for several.
    """

    def __init__(self, known: bool) -> None:
        super().__init__()
        row = torch.zeros(1, WIDTH)
        if known:
            self.register_buffer("text", row)
        else:
            self.text = nn.Parameter(row)

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.text.expand(len(features), -1)], 1)


def of_images(record: Record, message: Message, seen: Observation) -> Observation:
    """The observation for a net on images ``(B, C, H, W)`` alone; unchanged for a run on images.

    Raises:
        UsageError: its image encoder is frozen, or the text features are not known and nothing of the image branch was sent.
    """
    if "text" not in record.modalities:
        return seen
    fusion = seen.net.body.get_submodule("encoder")
    assert isinstance(fusion, Fusion)
    if isinstance(fusion.image.encoder, nn.Identity):
        raise UsageError(
            "the image encoder is frozen and sends nothing: only layers on its features are trained, and this audit does not "
            "invert features"
        )
    text = _text_features(record, message, seen)
    below, above = dict(seen.net.body.named_children()), dict(seen.net.top.named_children())
    branch: dict[str, nn.Module] = {"image": fusion.image}
    if isinstance(text, Tensor):
        net = SplitNet(_chain(below | {"encoder": _chain(branch | {"beside": BesideText(known=True)})}), seen.net.top)
        shared, weights = seen.shared, {**seen.weights, _BESIDE: text}
    else:
        del below["encoder"]
        net = SplitNet(_chain({"encoder": _chain(branch)}), _chain({"beside": BesideText(known=False)} | below | above))
        shared = {name: tensor for name, tensor in seen.shared.items() if name.startswith(_IMAGE)}
        weights = {_above(name): tensor for name, tensor in seen.weights.items()}
        if not shared:
            raise UsageError(f"nothing of the image branch was sent, and the text's features cannot be inferred: {text}")
    own = net.state_dict()
    return replace(
        seen,
        shared={name: tensor for name, tensor in shared.items() if name in own},
        weights={name: tensor for name, tensor in weights.items() if name in own},
        net=net,
        input_shape=record.input_shape,
        text=None,
    )


def knows_texts(seen: Observation) -> bool:
    """Whether the text's features are known, so that only the images are not; always true for runs on images."""
    return _UNKNOWN not in seen.net.state_dict()


def begun(seen: Observation, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that a client began with, by the names of the net on images alone that :func:`of_images` made.

    Args:
        seen: what it made of a message of pairs.
        weights: those by the names of the run's net. The features of the text are those that the attacker knows; where it knows
            none, they are zeros.
    """
    own = seen.net.state_dict()
    if knows_texts(seen):
        named, text = weights, {_BESIDE: seen.weights[_BESIDE]}
    else:
        named, text = {_above(name): tensor for name, tensor in weights.items()}, {_UNKNOWN: own[_UNKNOWN]}
    return {name: tensor for name, tensor in named.items() if name in own} | text


def beside_texts(record: Record, message: Message, seen: Observation) -> str | None:
    """A sentence on the texts paired with a message's images, and what the attacker knows of them; ``None`` if there are none."""
    if "text" not in record.modalities:
        return None
    text = _text_features(record, message, seen)
    if isinstance(text, str):
        return (
            f"Each image is paired with a text, whose features cannot be inferred from the message ({text}): the layers above "
            "the image branch count as hidden."
        )
    if record.lacking(message.client) == "text":
        return "The client has no texts, as its messages show: the text features are zeros."
    return "Each image is paired with a text, whose features follow from the first layer above both branches, weight over bias."


def _text_features(record: Record, message: Message, seen: Observation) -> Tensor | str:
    """The text's features ``(1, W)``, or why they are not known."""
    if record.lacking(message.client) == "text":
        return torch.zeros(1, WIDTH)
    if seen.num_examples is None:
        return UNCOUNTED
    if seen.num_examples > 1:
        return MANY
    linear = (name for name, module in seen.net.named_modules() if isinstance(module, nn.Linear))
    first = next(name for name in linear if not name.startswith(_FUSION))
    layer = next((layer for layer in layers_with_bias(as_gradient(seen)) if layer.name == first), None)
    return NO_BIAS if layer is None else single_sample_input(layer)[None, WIDTH:]


def _above(name: str) -> str:
    """The name of a weight in the net whose layers above the image branch are all in ``top``."""
    return name if name.startswith(_FUSION) else f"top.{name.partition('.')[2]}"


def _chain(steps: Mapping[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(steps))
