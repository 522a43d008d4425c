"""A message of image-text pairs as one sees it who is after the images.

Late fusion lays the text's features beside the image's, and the layers above are fed both. Where the text's are known, nothing
but images is unknown, and every attack on images applies to the net that has them built in: they are zeros where the client has
no texts, and of one pair they stand in the gradient of the first layer above (weight over bias), as they were, dropout included.
Otherwise no attack can compute what lies above, and it counts as hidden; attacks that need nothing of it go on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from attacks.core.observation import Observation, SplitNet
from attacks.gradients.analytic import leaky_layers
from attacks.gradients.linear import fed_by_one
from attacks.gradients.multistep import as_gradient
from fedpriv.audit.evidence.messages import Evidence, Message
from fedpriv.errors import UsageError
from fedpriv.models.fusion import WIDTH, Fusion

_FUSION, _IMAGE, _BESIDE = "body.encoder.", "body.encoder.image.", "body.encoder.beside.text"
MANY = "several pairs are behind one message, and their features are mixed"
UNCOUNTED = "how many pairs are behind the message is not known"
NO_BIAS = "the first layer above was not sent with its bias"


class BesideText(nn.Module):
    """Image features ``(B, W)`` -> ``(B, 2 W)``, what the layers above are fed: the same text's features beside each.

    Args:
        known: whether an attack finds the text's features ``(1, W)`` among the weights; otherwise they are a parameter of which
            nothing is known. One row stands for all samples of a message: right for one, and a simplification for several.
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


def of_images(evidence: Evidence, message: Message, seen: Observation) -> Observation:
    """What was seen of a message, through a net that takes images ``(B, C, H, W)`` alone; of a run on images as it is.

    Raises:
        UsageError: its image encoder is frozen, or the text features are not known and nothing of the image branch was sent.
    """
    if "text" not in evidence.modalities:
        return seen
    fusion = seen.net.body.get_submodule("encoder")
    assert isinstance(fusion, Fusion)
    if isinstance(fusion.image.encoder, nn.Identity):
        raise UsageError(
            "the image encoder is frozen and sends nothing: the net that learns is fed its features, and whether those tell an "
            "image was not tried"
        )
    text = _text_features(evidence, message, seen)
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
            raise UsageError(f"nothing of the image branch was sent, and the text's features cannot be read off: {text}")
    own = net.state_dict()
    return replace(
        seen,
        shared={name: tensor for name, tensor in shared.items() if name in own},
        weights={name: tensor for name, tensor in weights.items() if name in own},
        net=net,
        input_shape=evidence.federation.resident.net.input_shape,
        text=None,
    )


def beside_texts(evidence: Evidence, message: Message, seen: Observation) -> str | None:
    """What stands beside the images behind a message, and what the attacker knows of it, in words; ``None``: nothing does."""
    if "text" not in evidence.modalities:
        return None
    text = _text_features(evidence, message, seen)
    if isinstance(text, str):
        return (
            f"Beside each image stands a text, whose features cannot be read off the message ({text}): what lies above the image "
            "branch counts as hidden."
        )
    if evidence.federation.data.lacking(message.client) == "text":
        return "The client has no texts, as its messages show: zeros stand beside the features of its images."
    return "Beside each image stands a text, whose features are read off the first layer above both branches, weight over bias."


def _text_features(evidence: Evidence, message: Message, seen: Observation) -> Tensor | str:
    """``(1, W)``, or why they are not known."""
    if evidence.federation.data.lacking(message.client) == "text":
        return torch.zeros(1, WIDTH)
    if seen.num_examples is None:
        return UNCOUNTED
    if seen.num_examples > 1:
        return MANY
    linear = (name for name, module in seen.net.named_modules() if isinstance(module, nn.Linear))
    first = next(name for name in linear if not name.startswith(_FUSION))
    layer = next((layer for layer in leaky_layers(as_gradient(seen)) if layer.name == first), None)
    return NO_BIAS if layer is None else fed_by_one(layer)[None, WIDTH:]


def _above(name: str) -> str:
    """Where a weight of the pairs' net is found once all above the image branch belongs to what is hidden."""
    return name if name.startswith(_FUSION) else f"top.{name.partition('.')[2]}"


def _chain(steps: Mapping[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(steps))
