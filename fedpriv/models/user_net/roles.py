"""Builds a user net, any ``nn.Module`` that returns logits, and splits it into encoder, projector and head."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.errors import UnknownName, UsageError, in_a_line
from fedpriv.models.net import Net
from fedpriv.models.registry import Shape, predictor_on
from fedpriv.models.user_net.checks import alike, check_apart, check_logits, check_numbers, check_signs, passes
from fedpriv.models.user_net.importing import Build, find_user_net
from fedpriv.untrusted.names import shape_text


def build_user_net(
    name: str, input_shape: Shape, classes: int, roles: Mapping[Any, str] | None, predictor: bool | int = False
) -> Net:
    """Build a user net and split it into encoder, projector and head.

    Args:
        roles: ``head`` and ``projector`` -> module names; by default, modules of these names, and otherwise the last linear layer
            that is called as the head. All that comes before them is the encoder.
        predictor: as for :func:`fedpriv.models.registry.build_model`.

    Raises:
        UsageError: the net cannot be built, does not fit the data, or is not a sequence of its roles.
    """
    whole = _built(name, find_user_net(name), input_shape, classes)
    check_numbers(name, whole)
    for module in whole.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks and torch.func need the values before the activation
    before = whole.state_dict(keep_vars=True)
    net = _in_roles(name, whole.eval(), input_shape, classes, roles or {}, predictor).train()
    names = {id(tensor): own for own, tensor in net.state_dict(keep_vars=True).items()}
    net.names_before = {own: names[id(tensor)] for own, tensor in before.items() if id(tensor) in names}
    check_apart(name, net)
    return net


def _in_roles(
    name: str, whole: nn.Module, input_shape: Shape, classes: int, roles: Mapping[str, str], predictor: bool | int
) -> Net:
    probe = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    logits, last = _logits(name, whole, probe)
    repeats = alike(_logits(name, whole, probe)[0], logits)
    parameters = list(whole.parameters())
    expected = passes(whole, whole, parameters, probe)
    check_logits(name, expected[0], len(probe), " in training mode")
    check_signs(name, whole, parameters, probe)
    if logits.shape[1] != classes:
        raise UsageError(f"model {name} returns {logits.shape[1]} logits, and the data have {classes} classes")
    children = dict(whole.named_children())
    places = {role: roles.get(role, role if role in children else None) for role in ("projector", "head")}
    places["head"] = places["head"] or last
    if places["head"] is None:
        raise UsageError(
            f"model {name} has no linear layer that could be its head; name it, as in roles={{'head': 'classifier'}} "
            "(--set 'model.roles={head: classifier}')"
        )
    parts = {role: _taken(name, whole, role, place) for role, place in places.items() if place is not None}
    head, projector = parts["head"], parts.get("projector", nn.Identity())
    rest = [child for child in whole.children() if next(child.parameters(), None) is not None]
    encoders = [children["encoder"], whole] if rest == [children.get("encoder")] else [whole]
    for encoder in encoders:
        with torch.no_grad():
            try:
                features = encoder(probe.clone())
                projection = projector(features)
                composed = head(projection)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
                continue
        if features.ndim == projection.ndim == 2 and alike(composed, logits):
            modules = nn.ModuleList([whole, projector, head])
            if not all(map(alike, passes(modules, nn.Sequential(encoder, projector, head), parameters, probe), expected)):
                continue
            d, k = features.shape[1], projection.shape[1]
            return Net(
                encoder, projector, predictor_on(k, predictor), head,
                input_shape=input_shape, feature_dim=d, projection_dim=k, classes=classes,
            )  # fmt: skip
    if not repeats:
        raise UsageError(
            f"model {name} gives different logits each time for the same inputs, in evaluation mode; what is drawn at random, "
            "such as noise, belongs into an objective"
        )
    shown = ", ".join(f"{role} {place}" for role, place in places.items() if place is not None)
    raise UsageError(
        f"model {name} is not an encoder to vectors followed by its roles ({shown}): something comes between or after them, such "
        "as a softmax or dropout; let it return logits, or name the modules that are called last, as in roles={'head': 'fc'} "
        "(--set 'model.roles={head: fc}')"
    )


def _built(name: str, build: Build, input_shape: Shape, classes: int) -> nn.Module:
    available = {"input_shape": input_shape, "classes": classes}
    arguments = inspect.signature(build).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [name for name, each in arguments.items() if each.default is each.empty and each.kind not in variadic]
    if missing := [argument for argument in required if argument not in available]:
        raise UsageError(
            f"model {name} needs {', '.join(missing)}: it is called without arguments, or with input_shape and classes where it "
            "takes them; functools.partial sets others, as in Small = partial(Net, width=8)"
        )
    try:
        net = build(**{key: value for key, value in available.items() if key in arguments})
    except Exception as error:
        raise UsageError(f"model {name} cannot be built for inputs of {shape_text(input_shape)}: {in_a_line(error)}") from error
    if not isinstance(net, nn.Module):
        raise UsageError(f"model {name} returns a {type(net).__name__}, not an nn.Module")
    return net


def _logits(name: str, net: nn.Module, probe: Tensor) -> tuple[Tensor, str | None]:
    """The net's logits, and the name of the last linear layer that is called."""
    called: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, where=where: called.append(where))
        for where, module in net.named_modules()
        if isinstance(module, nn.Linear) and where
    ]
    given = probe.clone()
    try:
        with torch.no_grad():
            logits = net(given)
    except Exception as error:
        raise UsageError(
            f"model {name} does not take inputs of {shape_text(tuple(probe.shape[1:]))}: {in_a_line(error)}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not torch.equal(given, probe):  # a batch goes through several nets, such as a teacher's
        raise UsageError(f"model {name} changes its input in place; let it compute a new tensor, as in x = x - 0.5 for x -= 0.5")
    return check_logits(name, logits, len(probe)), called[-1] if called else None


def _taken(name: str, whole: nn.Module, role: str, place: str) -> nn.Module:
    """Replace a module of the net by the identity, and return the module."""
    modules: dict[str, nn.Module] = dict(whole.named_modules())
    if not place or place not in modules:
        raise UnknownName(f"module of {name} (model.roles.{role})", place, list(filter(None, modules)))
    owner, _, attribute = place.rpartition(".")
    setattr(modules[owner], attribute, nn.Identity())
    return modules[place]
