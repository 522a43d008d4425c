"""Nets by name: architectures and plug-ins register encoders, to which :func:`build_model` adds projector, predictor and head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fedpriv.errors import UnknownName, UsageError
from fedpriv.models.net import HeadOn, Net
from fedpriv.registry import Registry, instance_of
from fedpriv.untrusted.names import shape_text

Shape = tuple[int, ...]
Projector = Literal["two_layers", "linear", "simclr", "barlow_twins"]
BuildEncoder = Callable[[Shape], tuple[nn.Module, int]]


@dataclass(frozen=True)
class ModelSpec:
    """A registered net."""

    name: str
    build: BuildEncoder
    """input_shape -> (encoder, feature_dim d)."""
    input_shape: Shape
    """The input shape in the net's source, (C, H, W); others work, too (see ``smallest``)."""
    classes: int
    """The number of classes in the net's source."""
    source: str
    """The paper or code the net comes from, in one line."""
    smallest: int | None = None
    """Smallest side of an image (C, H, W); None: an input of any shape fits."""
    initialise: Callable[[Net], None] | None = None
    """Initialises the parameters of the whole net, including the head; None: torch's defaults."""

    def fits(self, input_shape: Shape) -> bool:
        """Whether the encoder can be built for samples of this shape."""
        if not input_shape or min(input_shape) < 1:
            return False
        return self.smallest is None or (len(input_shape) == 3 and min(input_shape[1:]) >= self.smallest)


REGISTRY: Registry[ModelSpec] = Registry("model", "fedpriv.models", ["fedpriv.models.architectures"], *instance_of(ModelSpec))


def register_model(
    name: str,
    *,
    input_shape: Shape,
    classes: int,
    source: str,
    smallest: int | None = None,
    initialise: Callable[[Net], None] | None = None,
) -> Callable[[BuildEncoder], BuildEncoder]:
    """Decorator: register a function ``input_shape -> (encoder, feature_dim)`` as the net ``name``.

    The arguments are those of :class:`ModelSpec`. A plug-in lists its module, or a :class:`ModelSpec`, in the entry-point group
    ``fedpriv.models``.
    """

    def register(build: BuildEncoder) -> BuildEncoder:
        spec = ModelSpec(name, build, input_shape, classes, source, smallest, initialise)
        REGISTRY.add(name, spec, build)
        return build

    return register


def list_models() -> list[ModelSpec]:
    """All registered nets, sorted by name."""
    return list(REGISTRY.all().values())


def model_names() -> list[str]:
    """The names that :func:`build_model` knows, sorted."""
    return [spec.name for spec in list_models()]


def model_spec(name: str) -> ModelSpec:
    """The registered net of a name; raises UnknownName, which suggests the nearest name."""
    try:
        return REGISTRY.find(name)
    except UnknownName as error:
        raise UnknownName("model", name, error.known, "package.module:Name for a net of your own") from None


def build_model(
    name: str,
    input_shape: Shape,
    classes: int,
    projection: int | None = 128,
    predictor: bool | int = False,
    projector: Projector = "two_layers",
    head_on: HeadOn = "projection",
) -> Net:
    """Build a net, whose initial parameters are drawn from torch's *global* generator.

    Args:
        name: one of :func:`model_names`.
        input_shape: shape of one sample, such as (C, H, W).
        classes: number C of classes of all clients together.
        projection: width k of the projector's output; None: no projector.
        predictor: number of hidden units of a predictor as in BYOL and SimSiam: Linear(k, hidden) without bias, BatchNorm, ReLU,
            Linear(hidden, k); True: k hidden units; False: no predictor.
        projector: ``two_layers``: Linear(d, d), ReLU, Linear(d, k) (MOON, MpFedcon); ``linear``: Linear(d, k) (L-DAWA's code);
            ``simclr``: two layers with d hidden units, each with BatchNorm; ``barlow_twins``: three layers with k hidden units,
            the hidden ones with BatchNorm.
        head_on: the head's input: Linear(k, C) on the projection, or Linear(d, C) on the features.

    Raises:
        UnknownName: there is no such net.
        UsageError: the net does not fit the input, or a width is below one.
    """
    spec = model_spec(name)
    input_shape = tuple(input_shape)
    if not spec.fits(input_shape):
        raise UsageError(_misfit(spec, input_shape))
    net = assemble(*spec.build(input_shape), input_shape, classes, projection, predictor, projector, head_on)
    if spec.initialise is not None:
        spec.initialise(net)
    return net


def assemble(
    encoder: nn.Module,
    d: int,
    input_shape: Shape,
    classes: int,
    projection: int | None = 128,
    predictor: bool | int = False,
    projector: Projector = "two_layers",
    head_on: HeadOn = "projection",
) -> Net:
    """Add projector, predictor and head to an encoder with features ``(B, d)``; arguments as for :func:`build_model`."""
    hidden = None if predictor is False else int(predictor)
    for what, width in (("classes", classes), ("projection", projection), ("predictor", hidden)):
        if width is not None and width < 1:
            raise UsageError(f"the net's {what} must be at least 1, not {width}")
    k = d if projection is None else projection
    return Net(
        encoder,
        nn.Identity() if projection is None else _projector(projector, d, k),
        predictor_on(k, predictor),
        nn.Linear(k if head_on == "projection" else d, classes),
        input_shape=input_shape,
        feature_dim=d,
        projection_dim=k,
        classes=classes,
        head_on=head_on,
    )


def predictor_on(k: int, predictor: bool | int) -> nn.Module | None:
    """The predictor for projections of width k, or ``None``; see :func:`build_model`."""
    if predictor is False:
        return None
    hidden = k if predictor is True else predictor
    layers = OrderedDict[str, nn.Module](
        fc1=nn.Linear(k, hidden, bias=False), norm1=nn.BatchNorm1d(hidden), relu1=nn.ReLU(), fc2=nn.Linear(hidden, k)
    )
    return nn.Sequential(layers)


def _projector(kind: Projector, d: int, k: int) -> nn.Module:
    if kind == "two_layers":
        return nn.Sequential(OrderedDict[str, nn.Module](fc1=nn.Linear(d, d), relu1=nn.ReLU(), fc2=nn.Linear(d, k)))
    if kind == "linear":
        return nn.Sequential(OrderedDict[str, nn.Module](fc=nn.Linear(d, k)))
    if kind == "simclr":
        layers = nn.Sequential(*_normalised(d, d), nn.ReLU(), *_normalised(d, k))
    else:
        layers = nn.Sequential(*_normalised(d, k), nn.ReLU(), *_normalised(k, k), nn.ReLU(), nn.Linear(k, k))
    return nn.Sequential(OrderedDict[str, nn.Module](layers=layers))


def _normalised(width_in: int, width_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(width_in, width_out, bias=False), nn.BatchNorm1d(width_out)


def _misfit(spec: ModelSpec, input_shape: Shape) -> str:
    need = "sizes of at least 1" if spec.smallest is None else f"channels x height x width with sides of at least {spec.smallest}"
    others = [other.name for other in list_models() if other.fits(input_shape)]
    instead = f"; these nets fit: {', '.join(others)}" if others else ""
    return f"model {spec.name!r} does not fit inputs of {shape_text(input_shape)}: it needs {need}{instead}"
