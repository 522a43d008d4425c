"""Checks of a user net before training: its outputs, the dtypes of its parameters, and tensors that its roles share."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.errors import UsageError, in_a_line
from fedpriv.models.net import Net
from fedpriv.models.snapshot import State
from fedpriv.models.state import fixed_randomness, perturb
from fedpriv.parameters import changing_buffers

_PASSES = ((False, True), (True, False), (True, True))
"""(weights perturbed?, training mode?) of the passes that compare the composed roles with the whole net. Weights are perturbed
because a head that is initially zero gives zero logits whatever comes after it."""
_OTHER_WEIGHTS = 8
"""Number of random weights, with two samples each, for which some logit must be negative."""
TOLERANCE = 1e-4
"""Allowed difference of the composed roles from the whole net, relative to the largest logit."""


def check_logits(name: str, output: Any, size: int, when: str = "") -> Tensor:
    """Return the net's output for a batch of ``size``; raise :class:`UsageError` if it is an exception, or no logits."""
    if isinstance(output, Exception):
        raise UsageError(f"model {name} fails on its inputs{when}: {in_a_line(output)}") from output
    if not isinstance(output, Tensor) or output.ndim != 2:
        what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise UsageError(
            f"model {name} returns {what} for a batch of {size}{when}; it should be logits, a tensor ({size}, classes)"
        )
    return output


def check_signs(name: str, whole: nn.Module, parameters: list[nn.Parameter], probe: Tensor) -> None:
    """Check that some outputs are negative for some weights, as logits are.

    Raises:
        UsageError: none is, so the net ends in a softmax, sigmoid, ReLU or the like.
    """
    state, outputs = State(whole), list[Tensor]()
    for seed in range(_OTHER_WEIGHTS):
        with fixed_randomness(), suppress(Exception):  # the net may not allow other weights
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
    """The outputs (or exceptions) of ``path``, a module of parts of the net, in the ``_PASSES``; the net does not change."""
    state, outputs = State(net), list[Any]()
    for perturbed, training in _PASSES:
        with fixed_randomness():
            if perturbed:
                perturb(parameters)
            net.train(training)
            try:
                outputs.append(path(probe.clone()))
            except Exception as error:
                outputs.append(error)
        state.restore()
    net.eval()
    return outputs


def check_numbers(name: str, whole: nn.Module) -> None:
    """Check that the net has parameters to train, and that its state is of dtype float32.

    Raises:
        UsageError: it has not.
    """
    state = _state(whole)
    if other := next((where for where, tensor in state.items() if tensor.dtype != torch.float32), None):
        raise UsageError(f"model {name}: {other} is of {state[other].dtype}; what is trained must be of torch.float32")
    if not any(isinstance(tensor, nn.Parameter) for tensor in state.values()):
        raise UsageError(f"model {name} has no parameters to train; at least one must have requires_grad=True")


def check_apart(name: str, net: Net) -> None:
    """Check that no two roles share a tensor, since a method may send one role and keep the other private.

    Raises:
        UsageError: two roles share a tensor.
    """
    first: dict[int, str] = {}
    for where, tensor in _state(net).items():
        other = first.setdefault(tensor.untyped_storage().data_ptr(), where) if tensor.numel() else where
        if other.partition(".")[0] != where.partition(".")[0]:
            raise UsageError(
                f"model {name}: {other} and {where} are one tensor, and a method may send the one and keep the other; "
                "tie tensors within a role only"
            )


def _state(net: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes, under all their names; see :class:`fedpriv.parameters.ParameterSpace`."""
    stored = {name: tensor for name, tensor in net.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}
    buffers = changing_buffers(net)
    return {
        name: tensor
        for name, tensor in stored.items()
        if (tensor.requires_grad if isinstance(tensor, nn.Parameter) else name in buffers)
    }


def alike(output: Any, logits: Any) -> bool:
    """Whether two outputs are equal up to the tolerance; of exceptions, whether they have the same type."""
    if not isinstance(output, Tensor) or not isinstance(logits, Tensor):
        return type(output) is type(logits)
    finite = logits[logits.isfinite()]  # perturbed weights may give NaN, as from a root or logarithm
    most = TOLERANCE * max(1e-6, float(finite.abs().max()) if finite.numel() else 0.0)
    return output.shape == logits.shape and torch.allclose(output, logits, rtol=0.0, atol=most, equal_nan=True)
