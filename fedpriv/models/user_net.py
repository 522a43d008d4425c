"""A net of the user's own, by ``package.module:Name``: a class or function that returns any ``nn.Module``, taken apart by role.

A name is stored with the run, and imported again where the run is resumed or audited. What cannot be imported, as it was defined
in a notebook or a script, is kept for this process.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.errors import FedprivError, UnknownName, UsageError, in_a_line
from fedpriv.models.net import Net
from fedpriv.models.registry import Shape, predictor_on
from fedpriv.models.user_net_checks import alike, check_apart, check_logits, check_numbers, check_signs, passes
from fedpriv.untrusted.names import shape_text

Build = Callable[..., nn.Module]
_here: dict[str, Build] = {}
"""Name -> what was defined in this process and cannot be imported."""


def is_own(name: str | None) -> bool:
    """Whether it is the name of a user's own net."""
    return ":" in (name or "")


def name_of(build: Any) -> str:
    """The name under which a config stores a class or function; one that cannot be imported is kept for this process.

    Raises:
        UsageError: it is a net, and not what makes one.
    """
    if isinstance(build, nn.Module):
        kind = type(build).__name__
        raise UsageError(f"model is a net, and every run draws its own from its seed: give the class {kind}, or a function")
    module, name = getattr(build, "__module__", "__main__"), getattr(build, "__qualname__", type(build).__name__)
    found = f"{module}:{name}"
    if module != "__main__" and _attribute(sys.modules.get(module), name) is build:
        return found
    number, kept = 1, found
    while _here.setdefault(kept, build) is not build:  # another of the same name, which an earlier run may have
        number += 1
        kept = f"{found}#{number}"
    return kept


def only_here(name: str | None) -> str | None:
    """A remark on a net that no other process can import; ``None``: any can."""
    if name not in _here:
        return None
    return (
        f"model {name} cannot be imported, as it was defined in a notebook, a script or a function: this process can resume and "
        "audit the run, another one cannot; a module of its own, such as model='my_nets:Net', can be imported"
    )


def find_user_net(name: str) -> Build:
    """The class or function of that name, or a partial of one.

    Raises:
        UsageError: there is none, or it is something else.
        FedprivError: its module fails when it is imported.
    """
    if name in _here:
        return _here[name]
    module, _, attribute = name.partition(":")
    found = _attribute(_imported(module, name), attribute)
    if module == "__main__" and found is None:
        raise UsageError(
            f"model {name} was defined in the notebook or script that trained the run, and cannot be imported here; put it into "
            "a module and train with model='my_nets:Net'"
        )
    maker = _maker(found)
    if not (inspect.isfunction(maker) or (inspect.isclass(maker) and issubclass(maker, nn.Module))):
        what = f"is not in module {module}"
        if found is not None:
            what = "is neither a class derived from nn.Module nor a function, nor functools.partial of one"
        raise UsageError(f"model {name}: {attribute or 'nothing'} {what}")
    return found  # type: ignore[no-any-return]


def _maker(build: Any) -> Any:
    """The class or function of a partial, which has no module of its own; anything else as it is."""
    return build.func if isinstance(build, partial) else build


def contents_of_user_net(name: str | None) -> dict[str, str]:
    """SHA-256 (hex) of the files of an own net's modules, by module: that of its name, and that which defines it.

    Empty for other nets, and for what has no file or only this process has. A file counts as it was when this process first
    asked.
    """
    if not is_own(name) or name in _here:
        return {}
    build = find_user_net(str(name))
    modules = {str(name).partition(":")[0], _maker(build).__module__} - {"__main__"}
    return {module: content for module in sorted(modules) if (content := _content(module, build))}


@cache  # by what is built, too: a module that was loaded again has another class
def _content(module: str, build: Build) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None


def user_net(name: str, input_shape: Shape, classes: int, roles: Mapping[Any, str] | None, predictor: bool | int = False) -> Net:
    """Build the net of that name and take it apart: the head is what is called last, the encoder what comes before.

    Args:
        roles: ``head`` and ``projector`` -> names of modules; by default modules of these names, and otherwise the linear layer
            that is called last as the head.
        predictor: as for :func:`fedpriv.models.registry.build_model`.

    Raises:
        UsageError: it cannot be built, does not fit the data, or is not called as its roles say.
    """
    whole = _built(name, find_user_net(name), input_shape, classes)
    check_numbers(name, whole)
    for module in whole.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks on activations and torch.func need the values
    net = _in_roles(name, whole.eval(), input_shape, classes, roles or {}, predictor).train()
    check_apart(name, net)
    return net


def _in_roles(
    name: str, whole: nn.Module, input_shape: Shape, classes: int, roles: Mapping[str, str], predictor: bool | int
) -> Net:
    probe = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    logits, last = _logits(name, whole, probe)
    repeats = alike(_logits(name, whole, probe)[0], logits)
    parameters = list(whole.parameters())
    told = passes(whole, whole, parameters, probe)
    check_logits(name, told[0], len(probe), " in training mode")
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
    alone = [child for child in whole.children() if next(child.parameters(), None) is not None]
    encoders = [children["encoder"], whole] if alone == [children.get("encoder")] else [whole]
    for encoder in encoders:
        with torch.no_grad():
            try:
                features = encoder(probe.clone())
                projection = projector(features)
                found = head(projection)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
                continue
        if features.ndim == projection.ndim == 2 and alike(found, logits):
            apart = nn.ModuleList([whole, projector, head])
            others = passes(apart, nn.Sequential(encoder, projector, head), parameters, probe)
            if not all(map(alike, others, told)):
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
    given = {"input_shape": input_shape, "classes": classes}
    taken = inspect.signature(build).parameters
    needed = [
        one.name for one in taken.values() if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if missing := [one for one in needed if one not in given]:
        raise UsageError(
            f"model {name} needs {', '.join(missing)}: it is called without arguments, or with input_shape and classes where it "
            "takes them; functools.partial sets others, as in Small = partial(Net, width=8)"
        )
    try:
        net = build(**{key: value for key, value in given.items() if key in taken})
    except Exception as error:
        raise UsageError(f"model {name} cannot be built for inputs of {shape_text(input_shape)}: {in_a_line(error)}") from error
    if not isinstance(net, nn.Module):
        raise UsageError(f"model {name} returns a {type(net).__name__}, not an nn.Module")
    return net


def _logits(name: str, net: nn.Module, probe: Tensor) -> tuple[Tensor, str | None]:
    """The net's output, and the name of the linear layer that is called last."""
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
    """Take a module out of the net, which from then on passes its input through."""
    modules: dict[str, nn.Module] = dict(whole.named_modules())
    if not place or place not in modules:
        raise UnknownName(f"module of {name} (model.roles.{role})", place, [one for one in modules if one])
    owner, _, attribute = place.rpartition(".")
    setattr(modules[owner], attribute, nn.Identity())
    return modules[place]


def _imported(module: str, of: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if os.getcwd() in sys.path or module.partition(".")[0] != error.name:
            is_there = not f"{module}.".startswith(f"{error.name}.")  # and what it imports is not
            kind = FedprivError if is_there else UsageError
            raise kind(f"model {of} cannot be imported: {in_a_line(error)}") from error
        sys.path.append(os.getcwd())  # as plug-ins are found beside each other
        return _imported(module, of)
    except Exception as error:
        raise FedprivError(f"model {of} cannot be imported: {in_a_line(error)}") from error


def _attribute(module: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        module = getattr(module, part, None)
    return module
