"""What is checked of a net of the user's own before it is trained: outputs, numbers, and tensors that its parts share."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.errors import UsageError, in_a_line
from fedpriv.models.net import Net
from fedpriv.models.state import State, drawn_alike, perturb
from fedpriv.parameters import changing_buffers

_PASSES = ((False, True), (True, False), (True, True))
"""Whether with other weights than the initial ones, and whether in training mode: where roles are compared with the whole net.
Of a head that is zero at first, the initial logits are zero whatever comes after it."""
_OTHER_WEIGHTS = 8
"""With as many other weights, two samples each, some logit is negative unless none can be."""
TOLERANCE = 1e-4
"""By how much, relative to the largest logit, the roles may differ from the whole net."""


def check_logits(name: str, found: Any, size: int, when: str = "") -> Tensor:
    if isinstance(found, Exception):
        raise UsageError(f"model {name} fails on its inputs{when}: {in_a_line(found)}") from found
    if not isinstance(found, Tensor) or found.ndim != 2:
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UsageError(
            f"model {name} returns {what} for a batch of {size}{when}; it should be logits, a tensor ({size}, classes)"
        )
    return found


def check_signs(name: str, whole: nn.Module, parameters: list[nn.Parameter], probe: Tensor) -> None:
    """Check that some outputs are negative under other weights: the cross-entropy takes logits, and applies a softmax itself.

    Raises:
        UsageError: none is, so the net ends in a softmax, a sigmoid, a ReLU or the like.
    """
    state, outputs = State(whole), list[Tensor]()
    for seed in range(_OTHER_WEIGHTS):
        with drawn_alike(), suppress(Exception):  # other weights may be impossible
            perturb(parameters, seed)
            outputs.append(whole(20 * probe - 10))
        state.restore()
        if not outputs or not bool((outputs[-1] >= 0).all()):  # NaN is not
            return
    sums = torch.cat(outputs).sum(1)
    what = "probabilities (each row sums to 1)" if torch.allclose(sums, torch.ones_like(sums), atol=1e-3) else "outputs"
    raise UsageError(
        f"model {name} returns {what} that are never negative, whatever its weights, as after a softmax, sigmoid or ReLU; the "
        "cross-entropy takes logits, and trained on these it would be wrong: let it return logits, or a log-softmax of them"
    )


def passes(net: nn.Module, path: nn.Module, parameters: list[nn.Parameter], probe: Tensor) -> list[Any]:
    """What ``path`` through a net makes of a batch in the ``_PASSES``: outputs, or exceptions. The net, all of whose parameters
    are given, is left as it was."""
    state, found = State(net), list[Any]()
    for moved, training in _PASSES:
        with drawn_alike():
            if moved:
                perturb(parameters)
            net.train(training)
            try:
                found.append(path(probe.clone()))
            except Exception as error:
                found.append(error)
        state.restore()
    net.eval()
    return found


def check_numbers(name: str, whole: nn.Module) -> None:
    """Check that what is trained can be one row of numbers.

    Raises:
        UsageError: it cannot, or nothing is trained.
    """
    learnt = _learnt(whole)
    if other := next((where for where, tensor in learnt.items() if tensor.dtype != torch.float32), None):
        raise UsageError(f"model {name}: {other} is of {learnt[other].dtype}; what is trained must be of torch.float32")
    if not any(isinstance(tensor, nn.Parameter) for tensor in learnt.values()):
        raise UsageError(f"model {name} has no parameters to train; at least one must have requires_grad=True")


def check_apart(name: str, net: Net) -> None:
    """Check that no two roles have a tensor in common: a method may send the one and keep the other.

    Raises:
        UsageError: two have.
    """
    first: dict[int, str] = {}
    for where, tensor in _learnt(net).items():
        other = first.setdefault(tensor.untyped_storage().data_ptr(), where) if tensor.numel() else where
        if other.partition(".")[0] != where.partition(".")[0]:
            raise UsageError(
                f"model {name}: {other} and {where} are one tensor, and a method may send the one and keep the other; "
                "tie tensors within a role only"
            )


def _learnt(net: nn.Module) -> dict[str, Tensor]:
    """The tensors that a run changes, by each of their names; see :class:`fedpriv.parameters.ParameterSpace`."""
    stored = {name: tensor for name, tensor in net.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}
    buffers = changing_buffers(net)
    return {
        name: tensor
        for name, tensor in stored.items()
        if (tensor.requires_grad if isinstance(tensor, nn.Parameter) else name in buffers)
    }


def alike(found: Any, logits: Any) -> bool:
    """Whether both are the same logits, or no logits."""
    if not isinstance(found, Tensor) or not isinstance(logits, Tensor):
        return type(found) is type(logits)
    finite = logits[logits.isfinite()]  # other weights than a net's own may give NaN, as of a root or logarithm
    most = TOLERANCE * max(1e-6, float(finite.abs().max()) if finite.numel() else 0.0)
    return found.shape == logits.shape and torch.allclose(found, logits, rtol=0.0, atol=most, equal_nan=True)
