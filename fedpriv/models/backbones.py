"""Image encoders of pairs: any classifier of torchvision without its last layer, or an untrained net of ours."""

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

from fedpriv.errors import UnknownName, UsageError
from fedpriv.models.registry import Shape, model_names, model_spec, shape_text

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
    import torchvision

    name = name or USUAL
    if not pretrained and name in model_names():
        spec = model_spec(name)
        if not spec.fits(input_shape):
            raise UsageError(f"model.backbone {name} does not fit images of {shape_text(input_shape)}")
        with torch.device("meta"):
            _, width = spec.build(input_shape)
        return Backbone(name, width, lambda: spec.build(input_shape)[0])
    known = torchvision.models.list_models(torchvision.models)  # classifiers: not detectors, nor nets of videos
    if name not in known:
        raise UnknownName("model.backbone", name, known if pretrained else {*known, *model_names()})
    return Backbone(name, _width(name, input_shape), lambda: _behead(_classifier(name, pretrained)))


def _classifier(name: str, pretrained: bool) -> Any:
    from torchvision.models import get_model

    try:
        with redirect_stdout(sys.stderr):  # where it says that it downloads
            return get_model(name, weights="DEFAULT" if pretrained else None)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise UsageError(
            f"torchvision's weights of {name} cannot be loaded ({(str(error).strip() or type(error).__name__).splitlines()[0]}); "
            f"put them into {torch.hub.get_dir()}/checkpoints, or --set model.pretrained=false"
        ) from None


def _behead(net: Any) -> nn.Module:
    """The net with nothing in the place of its last linear layer, and without the classifiers that some add for their training.

    Raises:
        UsageError: it does not end in a linear layer.
    """
    for name in ("AuxLogits", "aux1", "aux2"):
        if hasattr(net, name):
            net.aux_logits = False
            setattr(net, name, None)
    path, last = [(path, module) for path, module in net.named_modules() if next(module.parameters(False), None) is not None][-1]
    if not isinstance(last, nn.Linear):
        raise UsageError(f"the backbone {type(net).__name__} ends in a {type(last).__name__}, not in a linear layer to leave out")
    owner, _, attribute = path.rpartition(".")
    setattr(net.get_submodule(owner), attribute, nn.Identity())
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks on activations and torch.func need the values to survive
    return net  # type: ignore[no-any-return]


def _width(name: str, input_shape: Shape) -> int:
    """d, from a pass without values.

    Raises:
        UsageError: the images do not fit.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # on how weights are drawn that are never used
        net = _behead(_classifier(name, pretrained=False)).eval().to("meta")
    with torch.no_grad():
        try:
            features: torch.Tensor = net(torch.empty(1, *input_shape, device="meta"))
        except (RuntimeError, AssertionError) as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"model.backbone {name} does not take images of {shape_text(input_shape)} ({why}); --set data.image_size=224 "
                "resizes them, or name another"
            ) from None
    return features.shape[1]
