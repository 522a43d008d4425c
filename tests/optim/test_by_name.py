"""Optimisers by name are torch's classes, with torch's options and defaults."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from typing import Any, get_args

import pytest
import torch

from fedpriv.config import TrainConfig, load_config
from fedpriv.config.optimisers import (
    NOT_ELEMENTWISE,
    OPTIMISERS,
    SCHEDULES,
    OptimiserName,
    OptimiserOptions,
    RateSchedule,
)
from fedpriv.errors import UsageError
from fedpriv.optim.by_name import restore, state_of, torch_optimiser

OF_KEYS = {"self", "params", "lr", "weight_decay", "momentum"}
"""Arguments that have keys of their own (momentum: of SGD)."""
HOW_COMPUTED = {"foreach", "fused", "capturable", "differentiable", "maximize"}
"""Arguments that say how a step is computed, or would climb."""
MANY: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"nesterov": True}),
    ("sgd", {"dampening": 0.3}),
    ("adam", {"betas": [0.8, 0.99], "amsgrad": True}),
    ("adamw", {"eps": 1e-6}),
    ("adamax", {}),
    ("nadam", {"momentum_decay": 0.01, "decoupled_weight_decay": True}),
    ("radam", {}),
    ("rmsprop", {"alpha": 0.9, "momentum": 0.5, "centered": True}),
    ("rprop", {"etas": [0.4, 1.3]}),
    ("adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("adadelta", {"rho": 0.8}),
    ("asgd", {"t0": 2, "lambd": 0.01}),
]
"""Every optimiser, some with options."""


def of(kind: type[OptimiserOptions] | type[RateSchedule]) -> dict[str, Any]:
    return {field.name: getattr(kind(), field.name) for field in fields(kind)}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_options_and_defaults_are_torchs(name: str) -> None:
    kind = OPTIMISERS[name]
    arguments = inspect.signature(getattr(torch.optim, kind.torch_name)).parameters
    own = OF_KEYS - ({"momentum"} if name != "sgd" else set())
    theirs = {key: argument.default for key, argument in arguments.items() if key not in own | HOW_COMPUTED}
    if name == "adam":
        theirs.pop("decoupled_weight_decay", None)  # that is adamw
    assert of(kind) == theirs
    assert ("weight_decay" in arguments) == (name != "rprop")


def test_every_optimiser_of_torch_is_known() -> None:
    of_torch = {name.lower() for name, kind in vars(torch.optim).items() if isinstance(kind, type)} - {"optimizer"}
    assert of_torch == OPTIMISERS.keys() | NOT_ELEMENTWISE.keys() and not OPTIMISERS.keys() & NOT_ELEMENTWISE.keys()
    assert tuple(OPTIMISERS) == get_args(OptimiserName)


@pytest.mark.parametrize("name", SCHEDULES)
def test_options_of_schedules_are_torchs(name: str) -> None:
    kind = SCHEDULES[name]
    arguments = inspect.signature(getattr(torch.optim.lr_scheduler, kind.torch_name)).parameters
    assert {field.name for field in fields(kind)} <= arguments.keys()  # type: ignore[arg-type]
    for field in fields(kind):  # type: ignore[arg-type]
        theirs = arguments[field.name].default
        if field.name != kind.length and theirs is not inspect.Parameter.empty:
            with_required = {"step_size": 1} if name == "step" else {}
            assert getattr(kind(**with_required), field.name) == theirs, field.name


def train(name: str, options: dict[str, Any], **more: Any) -> TrainConfig:
    return load_config(None, {"train.optimizer": name, "train.optimizer_options": options, **more}).train


@pytest.mark.parametrize(("name", "options"), MANY, ids=[f"{name} {' '.join(options)}" for name, options in MANY])
def test_steps_on_a_flat_row_are_those_on_its_tensors_and_go_on_from_a_kept_state(name: str, options: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    start, grads = torch.randn(60, generator=draw), torch.randn(8, 60, generator=draw)
    config = train(name, options)
    kind = getattr(torch.optim, OPTIMISERS[name].torch_name)
    matrix, vector = start.split([48, 12])
    shaped = [torch.nn.Parameter(matrix.clone().view(6, 8)), torch.nn.Parameter(vector.clone())]
    decay = {} if name == "rprop" else {"weight_decay": 0.1}
    momentum = {"momentum": config.momentum} if name == "sgd" else {}
    theirs = kind(shaped, lr=0.05, **decay, **momentum, **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
    row = start.clone()

    def new() -> torch.optim.Optimizer:
        return torch_optimiser(config, [{"params": [row], "weight_decay": 0.1}], 0.05, fused=True)

    ours = new()
    for number, grad in enumerate(grads):
        if number == 4:
            kept = {key: value.clone() for key, value in state_of(ours).items()}
            assert kept
            ours = new()
            restore(ours, kept)
            before = {key: value.clone() for key, value in kept.items()}
        row.grad = grad.clone()
        for parameter, part in zip(shaped, grad.split([48, 12]), strict=True):
            parameter.grad = part.clone().view_as(parameter)
        theirs.step()
        ours.step()
    assert all(torch.equal(kept[key], value) for key, value in before.items()), "what is kept can be gone on from again"
    expected = torch.cat([parameter.detach().flatten() for parameter in shaped])
    assert float((expected - start).abs().max()) > 1e-4
    torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
def test_what_is_not_elementwise_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(UsageError, match=rf"train\.optimizer = '{name}': {name} \w+.*use one of sgd, adam, .*asgd$"):
        train(name, {})


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("rmsprop", {"alhpa": 0.9}, "rmsprop has no option 'alhpa'; it takes alpha, eps, momentum, centered"),
        ("rmsprop", {"alpha": "0.9"}, "rmsprop: alpha = '0.9': input should be a valid number"),
        ("adam", {"betas": [0.9, 1.0]}, "adam: betas = .*less than 1"),
        ("adam", {"betas": [0.9]}, "adam: betas = .*field required"),
        ("adamw", {"weight_decay": 0.1}, "adamw has no option 'weight_decay'"),
        ("sgd", {"nesterov": True, "dampening": 0.1}, "nesterov or dampening, not both"),
    ],
)
def test_a_bad_option_is_named_without_torch(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        train(name, options)
    assert "\n" not in str(error.value)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(UsageError, match="with a momentum above 0"):
        train("sgd", {"nesterov": True}, **{"train.momentum": 0.0})


@pytest.mark.slow
def test_names_and_options_are_checked_before_torch_is_imported() -> None:
    code = (
        "import sys\nfrom fedpriv.config import load_config\n"
        "load_config(None, {'train.optimizer_options': {'nesterov': True}, 'train.lr_schedule': 'cosine'})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
