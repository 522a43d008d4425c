"""The tensors of a client's message in the forms of training loops, matched to a net's parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.by_name import nearest

Gradient = Mapping[str, Any] | Sequence[Any]

_NEW_WEIGHTS = 0.5
"""Of the weights' norm: a message this close to the model's own weights is no gradient or change, but new weights."""


@dataclass(frozen=True)
class Message:
    """What a client sent, by the net's names, on the processor.

    Attributes:
        parameters: float32; of parameters that share their tensor, the first.
        buffers: as they were sent, such as running statistics, which are no gradient of the loss.
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def read_message(model: nn.Module, given: Gradient) -> Message:
    """The tensors or arrays of a message by the net's names, parameters apart from buffers.

    Args:
        given: by name, or a list in the order of the net's parameters, of those that are trained, or of its ``state_dict``, with
            or without whole numbers (BatchNorm's counts of batches); ``None`` for what was not sent. All sent names
            may have one prefix that the net's names lack, such as ``module.`` of ``DistributedDataParallel`` or ``model.`` of
            Lightning, or lack one that the net's names have.

    Raises:
        ValueError: names, number or shapes are not those of the net's tensors, a parameter is not finite, or none was sent.
    """
    state = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}
    known = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False)) | state
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters, buffers = dict[str, Tensor](), dict[str, Tensor]()
    for name, value in _by_names(model, given, known, state):
        tensor = _tensor(name, value)
        if tensor.shape != known[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, and the net's {tuple(known[name].shape)}")
        if (own := first.get(id(known[name]))) is None:
            buffers[name] = tensor
            continue
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite")
        if own in parameters and not torch.equal(parameters[own], tensor):
            raise ValueError(f"{name} is the same tensor as {own} in the net, and they differ in what was sent")
        parameters[own] = tensor
    if not parameters:
        raise ValueError("the gradient holds no tensor" + (" but buffers" if buffers else ""))
    return Message(parameters, buffers)


def by_name(model: nn.Module, gradient: Gradient) -> dict[str, Tensor]:
    """The parameters of :func:`read_message`."""
    return dict(read_message(model, gradient).parameters)


def check_no_weights(model: nn.Module, sent: Mapping[str, Tensor]) -> None:
    """Refuse new weights where a gradient or a change is wanted: attacks would read the weights themselves as one.

    Raises:
        ValueError: the tensors are nearly the model's own.
    """
    own = dict(model.named_parameters())
    before = torch.cat([own[name].detach().cpu().float().flatten() for name in sent])
    off, norm = float((torch.cat([tensor.flatten() for tensor in sent.values()]) - before).norm()), float(before.norm())
    if off < _NEW_WEIGHTS * norm:
        raise ValueError(
            f"these are new weights, {off / norm:.1%} of their norm from the model's own; give their change (after minus before)"
        )


def _by_names(
    model: nn.Module, given: Gradient, known: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Any]]:
    """(the net's name, tensor) of what was sent."""
    if isinstance(given, Mapping):
        sent = {name: value for name, value in given.items() if value is not None}
        prefix, ours = _prefix(list(sent), known)
        for name, value in sent.items():
            own = prefix + name if ours else name.removeprefix(prefix)
            if own not in known:
                raise ValueError(f"the net has no parameter {name!r}; {nearest(name, known)}")
            yield own, value
        return
    if isinstance(given, Tensor) or not hasattr(given, "__len__") or not hasattr(given, "__iter__") or isinstance(given, str):
        raise ValueError(f"the gradient is a {type(given).__name__}; give tensors by the parameters' names, or a list of them")
    names = _in_order(model, list(given), known, state)
    yield from ((name, value) for name, value in zip(names, given, strict=True) if value is not None)


def _prefix(sent: Sequence[str], known: Mapping[str, Tensor]) -> tuple[str, bool]:
    """The prefix that sent names have and the net's lack; with ``True``, the one that the net's names have and the sent lack.

    Empty if there is none, or if several are possible.
    """
    if not sent or all(name in known for name in sent):
        return "", False
    ends = [name for name in known if sent[0].endswith(f".{name}")]
    theirs = {sent[0][: -len(name)] for name in ends}
    theirs = {prefix for prefix in theirs if all(name.startswith(prefix) and name[len(prefix) :] in known for name in sent)}
    ours = {name[: -len(sent[0])] for name in known if name.endswith(f".{sent[0]}")}
    ours = {prefix for prefix in ours if all(prefix + name in known for name in sent)}
    if len(theirs) + len(ours) != 1:
        return "", False
    return (*theirs, *ours)[0], bool(ours)


def _in_order(model: nn.Module, given: list[Any], known: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """The names of a list, by the first order that fits.

    Raises:
        ValueError: it has another length than all of them.
    """
    parameters = dict(model.named_parameters())
    orders = {
        "parameters": list(parameters),
        "tensors in its state_dict": list(state),
        "of them that are no whole numbers": [name for name, tensor in state.items() if tensor.is_floating_point()],
        "parameters that are trained": [name for name, parameter in parameters.items() if parameter.requires_grad],
    }
    fitting = [names for names in orders.values() if len(names) == len(given)]
    if not fitting:
        counts = dict[int, str]()
        for what, names in orders.items():
            counts.setdefault(len(names), what)
        have = ", ".join(f"{count} {what}" for count, what in counts.items())
        raise ValueError(f"the gradient is a list of {len(given)}, and the net has {have}")

    def suits(names: list[str]) -> bool:
        shapes = (getattr(value, "shape", None) for value in given)
        return all(shape is None or tuple(shape) == known[name].shape for name, shape in zip(names, shapes, strict=True))

    return next(filter(suits, fitting), fitting[0])


def _tensor(name: str, value: Any) -> Tensor:
    try:
        if not isinstance(value, Tensor) and callable(getattr(value, "numpy", None)):  # Flower's arrays, and others
            value = value.numpy()
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} is a {type(value).__name__}, and no tensor or array") from None
