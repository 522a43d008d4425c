"""Starting weights that the user gives: read from a file, compared with the net by name and shape, and copied into it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.config import ModelConfig
from fedpriv.errors import UsageError, first_line
from fedpriv.files import checksum
from fedpriv.models.net import ROLES, Net
from fedpriv.parameters import ParameterSpace, constant_buffers

_COUNTER = "num_batches_tracked"
"""The last part of the name of BatchNorm's counters, on which nothing depends."""
_SHOWN = 5


@dataclass(frozen=True)
class Given:
    """Weights that a net starts from.

    Attributes:
        tensors: by name, float32.
        config: the model's section, with the hash of these tensors.
        note: what was taken of the file, and what was not, in a line; ``None``: none are given.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    config: ModelConfig = field(default_factory=ModelConfig)
    note: str | None = None


@torch.no_grad()
def start_from_given(net: Net, space: ParameterSpace, config: ModelConfig) -> Given:
    """Copy the weights that ``model.init`` names into a net.

    Raises:
        UsageError: the file cannot be read, has a tensor that does not fit the net, or none that is wanted; or its weights are
            not those of ``model.init_hash``.
    """
    if config.init is None:
        return Given(config=config)
    file, roles = config.init.absolute(), config.init_roles or ROLES
    read = {name if name in space else net.names_before.get(name, name): tensor for name, tensor in read_weights(file).items()}
    there = {name: tensor for name, tensor in read.items() if _role(name) in roles or _role(name) not in ROLES}
    constants = constant_buffers(net)
    tensors = {name: tensor for name, tensor in there.items() if not _is_known(name, tensor, constants)}
    _check_fit(file, tensors, space)
    if not tensors:
        raise UsageError(f"model.init {file} has no tensor of {', '.join(roles)}")
    tensors = {name: tensors[name].to(torch.float32).contiguous() for name in space.names if name in tensors}
    if name := next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None):
        raise UsageError(f"model.init {file}: {name} is not finite")
    if config.init_hash not in (None, hash := checksum(tensors)):
        raise UsageError(
            f"model.init {file}: its weights are not those of model.init_hash ({hash[:12]}, not {config.init_hash[:12]}); "
            "restore the file, or leave model.init_hash out"
        )
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for name, tensor in tensors.items():
        own[name].copy_(tensor)
    row = space.row_of(net)
    space.renew_spectral_norms(row)
    for norm in space.spectral:
        for vector in (norm.u, norm.v):
            own[vector].copy_(space.view(row, vector))
    return Given(tensors, config.model_copy(update={"init": file, "init_hash": hash}), _note(hash, tensors, space))


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file, or of a state dict that ``torch.save`` wrote, by name.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    import safetensors.torch

    try:
        if file.suffix == ".safetensors":
            return dict(safetensors.torch.load(file.read_bytes()))
        state = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"cannot read model.init {file}: {error.strerror or first_line(error)}") from None
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        why = "it is damaged" if file.suffix == ".safetensors" else "it is no state dict, or holds more than tensors"
        raise UsageError(f"cannot read model.init {file}: {why} ({first_line(error)[:120]})") from None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(
            f"model.init {file} is no state dict: tensors by name, as torch.save(net.state_dict(), file) writes them"
        )
    return {str(name): tensor.detach() for name, tensor in state.items()}


def _role(name: str) -> str:
    return name.partition(".")[0]


def _is_known(name: str, tensor: Tensor, constants: Mapping[str, Tensor]) -> bool:
    """Whether a tensor of the file adds nothing: a counter, or a constant with the value that it has in the net."""
    return name.endswith(_COUNTER) or (name in constants and torch.equal(constants[name], tensor.to(constants[name])))


def _check_fit(file: Path, tensors: Mapping[str, Tensor], space: ParameterSpace) -> None:
    """Check that the net has each of these tensors.

    Raises:
        UsageError: names those that it has not, and what would be right.
    """
    if strange := [name for name in tensors if name not in space]:
        own = [name for name in space.names if name not in tensors] or list(space.names)
        raise UsageError(
            f"model.init {file}: the net has no {_listed(strange)}; it has {_listed(own)}"
            + (" (model.init_roles chooses roles)" if any(_role(name) in ROLES for name in strange) else "")
        )
    misfits = [
        f"{name} is {_shape(tensor)}, in the net {_shape_of(space[name].shape)}"
        for name, tensor in tensors.items()
        if tensor.shape != space[name].shape or not tensor.is_floating_point()
    ]
    if misfits:
        role = _role(misfits[0])
        raise UsageError(
            f"model.init {file}: {_listed(misfits, '; ')}; model.init_roles without {role} leaves {role} as the seed draws it"
        )


def _note(hash: str, tensors: Mapping[str, Tensor], space: ParameterSpace) -> str:
    counts = {role: (sum(name in tensors for name in names), len(names)) for role in ROLES if (names := space.select([role]))}
    taken = ", ".join(f"{role} ({given} of {all_} tensors)" for role, (given, all_) in counts.items() if given)
    rest = [role for role, (given, all_) in counts.items() if given < all_]
    return f"starts from given weights ({hash[:12]}): {taken}" + (f"; the rest of {', '.join(rest)} is drawn" if rest else "")


def _listed(names: list[str], between: str = ", ") -> str:
    return between.join(names[:_SHOWN]) + (f"{between}... ({len(names)} in all)" if len(names) > _SHOWN else "")


def _shape(tensor: Tensor) -> str:
    return _shape_of(tensor.shape) if tensor.is_floating_point() else f"{tensor.dtype} {_shape_of(tensor.shape)}"


def _shape_of(shape: torch.Size) -> str:
    return "x".join(map(str, shape)) or "a number"
