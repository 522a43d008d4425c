"""Image encoders of pairs: any classifier of torchvision without its last layer, or an untrained net of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedpriv.errors import UnknownName, UsageError
from fedpriv.models.registry import Shape, model_names, model_spec

USUAL = "resnet50"


@dataclass(frozen=True)
class Backbone:
    """An image encoder by name: how a new one is made, and the width d of its features."""

    name: str
    width: int
    build: Callable[[], nn.Module]


def find_backbone(name: str | None, input_shape: Shape, pretrained: bool) -> Backbone:
    """The image encoder of a name.

    Args:
        name: of a torchvision classifier; without pretrained weights also one of ``fedpriv models``, which then comes first:
            it is made for the images' size. ``None``: ResNet-50.

    Raises:
        UsageError: no such net, it does not fit the images, or its weights are not to be had.
    """
    from torchvision.models import get_model, list_models

    name = name or USUAL
    if not pretrained and name in model_names():
        spec = model_spec(name)
        if not spec.fits(input_shape):
            raise UsageError(f"model.backbone {name} does not fit images of {'x'.join(map(str, input_shape))}")
        with torch.device("meta"):
            _, width = spec.build(input_shape)
        return Backbone(name, width, lambda: spec.build(input_shape)[0])
    if name not in list_models():
        raise UnknownName("model.backbone", name, {*list_models(), *model_names()})

    def build() -> nn.Module:
        try:
            net: nn.Module = get_model(name, weights="DEFAULT" if pretrained else None)
        except OSError as error:
            raise UsageError(
                f"torchvision's weights of {name} cannot be loaded ({error}); put them into {torch.hub.get_dir()}/checkpoints, "
                "or --set model.pretrained=false"
            ) from None
        _behead(net)
        return net

    with torch.device("meta"):
        width = _behead(get_model(name, weights=None))
    return Backbone(name, width, build)


def _behead(net: Any) -> int:
    """Replace the last linear layer by nothing; the width of what it was given."""
    where, last = [(path, module) for path, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    owner, _, attribute = where.rpartition(".")
    setattr(net.get_submodule(owner), attribute, nn.Identity())
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks on activations and torch.func need the values to survive
    return int(last.in_features)
