"""Any net as an attacker sees it: cut before its last layer."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.by_name import nearest
from fedpriv.attacks.core.observation import SplitNet, in_clients_mode

TOLERANCE = 1e-4
"""By how much, relative to the largest logit, the parts may differ from the whole."""


@dataclass(frozen=True)
class UserNet:
    """A net cut where its head begins.

    Attributes:
        split: the net's parts, as copies.
        names: of every parameter and buffer, the net's name -> the split's (``fc.weight`` -> ``top.weight``); tied tensors map to
            the split's name of the first.
        head: name of the module that is the head.
        classes: number of logits.
    """

    split: SplitNet
    names: Mapping[str, str]
    head: str
    classes: int

    def in_own_names(self, text: str) -> str:
        """A text about the split, such as a refusal, with the net's own names of layers and tensors."""
        own = {theirs: name for name, theirs in self.names.items()}
        own |= {f"body.{name}": name for name, _ in self.split.body.named_modules() if name}
        own |= {f"top.{name}": f"{self.head}.{name}" for name, _ in self.split.top.named_modules() if name}
        text = text.replace("'top'", repr(self.head))
        known = "|".join(re.escape(name) for name in sorted(own, key=len, reverse=True))
        return re.sub(rf"(?<![\w.])(?:{known})(?!\w)", lambda match: own[match[0]], text)


def cut(net: nn.Module, input_shape: tuple[int, ...], head: str | None = None, probe: Tensor | None = None) -> UserNet:
    """Cut a net into what comes before its head, and the head.

    Args:
        net: maps ``(B, *input_shape)`` to logits ``(B, C)``; it is left as it is. BatchNorm counts in the mode in which it is.
        head: name of the module that is called last; ``None``: the linear layer that is called last.
        probe: two inputs on which the parts are compared with the whole, such as token ids ``(2, L)``; ``None``: random numbers.

    Raises:
        ValueError: there is no such module, the net cannot be copied or does not take such inputs, or something comes after the
            head.
    """
    try:
        whole = in_clients_mode(net).cpu().float()
    except (RuntimeError, TypeError) as error:  # what it keeps cannot be copied, such as a lock or an open file
        raise ValueError(f"the net cannot be copied: {_first_line(error)}") from None
    modules = dict(whole.named_modules())
    if head is not None and (not head or head not in modules):
        raise ValueError(f"the net has no module {head!r} for the head; {nearest(head, [name for name in modules if name])}")
    if probe is None:
        probe = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    expected, called = _logits(whole, probe)
    parameters = list(whole.parameters())
    expected_others = _with_others(whole, parameters, probe)
    if head is None:
        if not called or not called[-1]:
            raise ValueError("the net has no linear layer within it; name the module that is its head, such as head='classifier'")
        head = called[-1]
    owner, _, attribute = head.rpartition(".")
    top = modules[head]
    setattr(whole.get_submodule(owner), attribute, nn.Identity())
    split = SplitNet(whole, top)
    _check_same(split, parameters, probe, expected, expected_others, head)
    names = {name: f"top.{name[len(head) + 1 :]}" if name.startswith(f"{head}.") else f"body.{name}" for name in net.state_dict()}
    state, first = split.state_dict(keep_vars=True), dict[int, str]()
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    names = {name: first[id(state[there])] for name, there in names.items()}
    return UserNet(split, names, head, expected.shape[1])


def _logits(net: nn.Module, probe: Tensor) -> tuple[Tensor, list[str]]:
    """The net's output, and the names of its linear layers as they are called."""
    called: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        with torch.no_grad():
            logits = net(probe.clone())
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        raise ValueError(f"the net does not take inputs of shape {tuple(probe.shape)}: {_first_line(error)}") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise ValueError(f"the net must return logits (B, C), not {_described(logits)}")
    return logits, called


def _check_same(
    split: SplitNet, parameters: list[nn.Parameter], probe: Tensor, expected: Tensor, expected_others: Tensor | None, head: str
) -> None:
    """Check that the parts give the output of the whole net.

    Args:
        expected_others: its output with other weights, by :func:`_with_others`.
    """
    try:
        with torch.no_grad():
            output = split(probe.clone())
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(f"the net cannot be cut before {head!r}: {_first_line(error)}") from None
    others = None if expected_others is None else _with_others(split, parameters, probe)
    others_differ = expected_others is not None and (others is None or not _alike(others, expected_others))
    if not _alike(output, expected) or others_differ:
        raise ValueError(
            f"the net's output is not that of {head!r}: something comes after it, such as a softmax, or it is called again; let "
            "the net return logits, or name the module that is called last with head="
        )


def _alike(output: Tensor, expected: Tensor) -> bool:
    finite = expected[expected.isfinite()]  # other weights than a net's own may give NaN, as of a root or logarithm
    most = TOLERANCE * max(1e-6, float(finite.abs().max()) if finite.numel() else 0.0)
    return output.shape == expected.shape and torch.allclose(output, expected, rtol=0.0, atol=most, equal_nan=True)


@torch.no_grad()
def _with_others(net: nn.Module, parameters: list[nn.Parameter], probe: Tensor) -> Tensor | None:
    """The net's output with other values of the parameters, as initial ones may be zero and hide what comes after them; ``None``:
    it has none. The net is left as it was."""
    before, noise = [parameter.clone() for parameter in parameters], torch.Generator().manual_seed(0)
    try:
        for parameter in parameters:
            if parameter.is_floating_point() and parameter.numel():  # vectors by up to 1, others by the number of their inputs
                most = 1.0 if parameter.ndim < 2 else 3 * (len(parameter) / parameter.numel()) ** 0.5
                parameter.add_(most * (2 * torch.rand(parameter.shape, generator=noise) - 1).to(parameter))
        # Code that is compiled here would serve later passes, whose hooks are others.
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            output = net(probe.clone())
        return output if isinstance(output, Tensor) else None
    except Exception:  # of the net, where it does not take such parameters
        return None
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _described(output: object) -> str:
    return f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
