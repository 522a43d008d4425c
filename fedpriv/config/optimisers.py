"""The clients' optimisers and learning-rate schedules by name, with their options: those of torch, known without importing it.

Every option has the name that torch's class gives it, and is passed on only if it is set; so its default is torch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from fedpriv.untrusted import plain_yaml

_options = dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
Beta = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]

OptimiserName = Literal[
    "sgd", "adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "rprop", "adagrad", "adadelta", "asgd"
]  # fmt: skip
"""The optimisers of ``torch.optim`` whose steps are elementwise, so that they are the same on a flat row as on its tensors."""
NOT_ELEMENTWISE = {
    "adafactor": "factorises the second moments of each matrix",
    "lbfgs": "evaluates the loss several times in a step, and combines all tensors",
    "muon": "orthogonalises each matrix",
    "sparseadam": "needs sparse gradients",
}
"""The others, and what their steps do instead."""


class OptimiserOptions:
    """Options of an optimiser besides its learning rate, its weight decay and, of SGD, its momentum: those are keys of their own.

    Attributes:
        torch_name: the class in ``torch.optim``.
    """

    torch_name: ClassVar[str]

    @property
    def decays_in_gradient(self) -> bool:
        """Whether weight decay is a part of the gradient, as in Adam; in AdamW it is not."""
        return True


@_options
class SGD(OptimiserOptions):
    torch_name = "SGD"
    dampening: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False


@_options
class Adam(OptimiserOptions):
    torch_name = "Adam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NonNegativeFloat = 1e-8
    amsgrad: bool = False


@_options
class AdamW(Adam):
    torch_name = "AdamW"

    @property
    def decays_in_gradient(self) -> bool:
        return False


@_options
class Adamax(OptimiserOptions):
    torch_name = "Adamax"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NonNegativeFloat = 1e-8


@_options
class RAdam(Adamax):
    torch_name = "RAdam"
    decoupled_weight_decay: bool = False

    @property
    def decays_in_gradient(self) -> bool:
        return not self.decoupled_weight_decay


@_options
class NAdam(RAdam):
    torch_name = "NAdam"
    momentum_decay: NonNegativeFloat = 4e-3


@_options
class RMSprop(OptimiserOptions):
    torch_name = "RMSprop"
    alpha: Beta = 0.99
    eps: NonNegativeFloat = 1e-8
    momentum: Beta = 0.0
    centered: bool = False


@_options
class Rprop(OptimiserOptions):
    torch_name = "Rprop"
    etas: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=1)]] = (0.5, 1.2)
    step_sizes: tuple[PositiveFloat, PositiveFloat] = (1e-6, 50)

    @property
    def decays_in_gradient(self) -> bool:
        return False  # it has no weight decay


@_options
class Adagrad(OptimiserOptions):
    torch_name = "Adagrad"
    lr_decay: NonNegativeFloat = 0.0
    initial_accumulator_value: NonNegativeFloat = 0.0
    eps: NonNegativeFloat = 1e-10


@_options
class Adadelta(OptimiserOptions):
    torch_name = "Adadelta"
    rho: Annotated[float, Field(ge=0, le=1)] = 0.9
    eps: NonNegativeFloat = 1e-6


@_options
class ASGD(OptimiserOptions):
    torch_name = "ASGD"
    lambd: NonNegativeFloat = 1e-4
    alpha: NonNegativeFloat = 0.75
    t0: NonNegativeFloat = 1e6


OPTIMISERS: Mapping[str, type[OptimiserOptions]] = {
    kind.torch_name.lower(): kind for kind in (SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop, Adagrad, Adadelta, ASGD)
}


class RateSchedule:
    """How the learning rate changes from round to round, or from step to step.

    Attributes:
        torch_name: the class in ``torch.optim.lr_scheduler``.
        length: its option for the number of rounds or steps; where that is null, it is that of all of them.
    """

    torch_name: ClassVar[str]
    length: ClassVar[str] = ""


@_options
class Cosine(RateSchedule):
    torch_name, length = "CosineAnnealingLR", "T_max"
    eta_min: NonNegativeFloat = 0.0
    T_max: PositiveInt | None = None


@_options
class Step(RateSchedule):
    torch_name = "StepLR"
    step_size: PositiveInt
    gamma: Share = 0.1


@_options
class Exponential(RateSchedule):
    torch_name = "ExponentialLR"
    gamma: Share


@_options
class Linear(RateSchedule):
    torch_name, length = "LinearLR", "total_iters"
    start_factor: Share = 1 / 3
    end_factor: Annotated[float, Field(ge=0, le=1)] = 1.0
    total_iters: PositiveInt | None = None


@_options
class Polynomial(RateSchedule):
    torch_name, length = "PolynomialLR", "total_iters"
    power: PositiveFloat = 1.0
    total_iters: PositiveInt | None = None


@_options
class OneCycle(RateSchedule):
    """Its peak is the learning rate; torch's options that change the momentum, too, are left out."""

    torch_name = "OneCycleLR"
    pct_start: Annotated[float, Field(ge=0, le=1)] = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: PositiveFloat = 25.0
    final_div_factor: PositiveFloat = 1e4
    three_phase: bool = False


SCHEDULES: Mapping[str, type[RateSchedule]] = {
    "cosine": Cosine,
    "step": Step,
    "exponential": Exponential,
    "linear": Linear,
    "polynomial": Polynomial,
    "one_cycle": OneCycle,
}

T = TypeVar("T")


def optimiser_options(name: str, options: Mapping[str, Any]) -> OptimiserOptions:
    """The options of an optimiser, checked; :class:`ValueError` names a wrong one, and those that there are."""
    return _checked(OPTIMISERS[name], name, options)


def schedule_options(name: str, options: Mapping[str, Any]) -> RateSchedule:
    """A learning-rate schedule, checked; :class:`ValueError` as above."""
    if name not in SCHEDULES:
        raise ValueError(f"no schedule is called {name!r}; there are {', '.join(SCHEDULES)}")
    return _checked(SCHEDULES[name], name, options)


def read_schedule(value: Any) -> Any:
    """``"cosine:eta_min=1e-4"`` -> ``{"name": "cosine", "eta_min": 1e-4}``; other values as they are.

    Raises:
        ValueError: there is no such schedule, or it has no such option.
    """
    if isinstance(value, str):
        name, _, text = value.partition(":")
        value = {"name": name.strip(), **dict(_assignment(part) for part in text.split(",") if part.strip())}
    if isinstance(value, Mapping):
        named = value.get("name")
        if not isinstance(named, str):
            raise ValueError(f"it has no name; there are {', '.join(SCHEDULES)}")
        schedule_options(named, {str(key): option for key, option in value.items() if key != "name"})
    return value


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    try:
        if equals and key.strip():
            return key.strip(), plain_yaml.load(value)
    except plain_yaml.PlainYamlError:
        pass
    raise ValueError(f"{text.strip()!r} is not option=value, such as cosine:eta_min=1e-4,T_max=20")


def _checked(kind: type[T], name: str, options: Mapping[str, Any]) -> T:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(options.keys() - set(names)):
        raise ValueError(f"{name} has no option {unknown[0]!r}; it takes {', '.join(names) or 'none'}")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})
    except ValidationError as error:
        first = error.errors()[0]
        option, message = first["loc"][0], first["msg"]
        if first["type"] == "missing" and len(first["loc"]) == 1:
            raise ValueError(f"{name} needs {option}, as torch's {kind.torch_name}") from None  # type: ignore[attr-defined]
        raise ValueError(f"{name}: {option} = {options[str(option)]!r}: {message[0].lower()}{message[1:]}") from None
