"""A net as an attacker sees it: split into the layers before the hidden ones, and the hidden layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from fedpriv.attacks.core.observation import SplitNet, blank
from fedpriv.models.net import Net


@dataclass(frozen=True)
class Victim:
    """A net split where sharing ends.

    Attributes:
        net: ``body`` and ``top`` (:class:`fedpriv.attacks.core.observation.SplitNet`) in training mode, with NaN for every
            parameter (:func:`fedpriv.attacks.core.observation.blank`).
        names: of every parameter and buffer on the path to the logits, the net's name -> the split's
            (``encoder.conv1.weight`` -> ``body.encoder_conv1.weight``).
    """

    net: SplitNet
    names: Mapping[str, str]


def cut(net: Net, sent: Collection[str]) -> Victim:
    """Split the net so that ``top`` holds the hidden layers at its end; where the last layer is sent, ``top`` is that layer.

    Sequential roles are split between their layers, other roles are not split. Hidden layers further in belong to ``body``. What
    is not on the path to the logits, as the predictor, belongs to neither.

    Args:
        sent: names of the tensors that were sent.
    """
    steps = [step for role in net.path for step in _steps(role, getattr(net, role))]
    owned = [{f"{prefix}.{name}" for name, _ in module.named_parameters()} for prefix, module in steps]
    has_parameters = [i for i, names in enumerate(owned) if names]
    seen = [i for i in has_parameters if owned[i] & set(sent)]
    after = [i for i in has_parameters if i > (seen[-1] if seen else -1)]
    at = after[0] if after else has_parameters[-1]
    names = {}
    for i, (prefix, module) in enumerate(steps):
        part = f"{'body' if i < at else 'top'}.{prefix.replace('.', '_')}"
        for name in (*dict(module.named_parameters()), *dict(module.named_buffers())):
            names[f"{prefix}.{name}"] = f"{part}.{name}"
    return Victim(blank(SplitNet(_chain(steps[:at]), _chain(steps[at:]))).train(), names)


def _steps(role: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(module, nn.Identity):
        return []
    if type(module) is nn.Sequential:
        return [(f"{role}.{name}", layer) for name, layer in module.named_children()]
    return [(role, module)]


def _chain(steps: list[tuple[str, nn.Module]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((prefix.replace(".", "_"), module) for prefix, module in steps))
