"""In what the messages of a run differ from those of attacks' controls, so that an attack's failure says little."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedpriv.attacks.core.observation import in_clients_mode
from fedpriv.config import RunConfig
from fedpriv.models.net import Outputs
from fedpriv.wire import Transform

_BUILT_IN = "fedpriv."
"""Prefix of the modules whose transforms show all that they do: in the message (a mask, a rounding), or by attributes."""


def control_differences(
    config: RunConfig, net: nn.Module, transforms: Sequence[Transform], steps: bool, once: bool, otherwise: bool = False
) -> tuple[str, ...]:
    """Clauses on how messages of a run differ from those of every attack's controls.

    Args:
        net: the client's, in the mode in which it computed what is attacked.
        transforms: of an upload.
        steps: whether what is attacked is the change over local steps, and not a gradient that was sent beside it.
        once: whether each sample was in one step, as one view of it.
        otherwise: whether the net in training is random, or computes what attacks do not model (:func:`trains_otherwise`).
    """
    clauses = []
    if config.data.augment not in (None, "none") and net.training and not once:
        altered = f"the client may have trained on several altered copies of each image (data.augment {config.data.augment})"
        clauses.append(f"{altered}, and attacks look for one image behind all of its steps")
    if steps and not (train := config.train).heavy_ball:
        whose = f"{train.optimizer}'s" if train.optimizer != "sgd" else f"those of SGD with {', '.join(train.optimizer_options)}"
        clauses.append(f"attacks read a change as that of SGD, and the client's steps were {whose}")
    if config.train.precision != "float32":
        clauses.append(f"the client computed in {config.train.precision} (train.precision), and attacks compute in float32")
    clauses += in_training(net, otherwise)
    if undeclared := [str(transform) for transform in transforms if not _declares(transform)]:
        names = ", ".join(undeclared)
        clauses.append(f"{names} does not declare what it does to a change (rescales, noise_variance), so attacks do not know it")
    return tuple(clauses)


def in_training(net: nn.Module, otherwise: bool) -> list[str]:
    """Clauses on how a net in the client's mode differs from those of controls; see :func:`control_differences`."""
    drops = [module.p for module in net.modules() if isinstance(module, _DropoutNd) and module.p and module.training]
    if drops:
        # Attacks that also seek the masks succeed where others fail (Scheliga, Maeder & Seeland 2023).
        which = ", ".join(f"{p:g}" for p in dict.fromkeys(drops))
        return [f"the client trained with dropout of {which}, whose random masks attacks do not look for"]
    if otherwise and net.training:
        return ["in training the client's net draws at random (dropout or the like) or computes what attacks do not model"]
    return []


def trains_otherwise(net: nn.Module, x: Tensor) -> bool:
    """Whether the net, in its mode, is random, or gives other logits for ``x`` than the net as attacks model it.

    This finds dropout that is no layer of its own, and layers that attacks do not know.

    Args:
        net: to logits, or to :class:`fedpriv.models.net.Outputs`; on the processor. It is left as it is.
    """
    trained = copy.deepcopy(net)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        modelled = _logits(in_clients_mode(trained)(x))
        before = torch.get_rng_state()
        logits = _logits(trained(x))
        drew = not torch.equal(before, torch.get_rng_state())
    return drew or not torch.allclose(logits, modelled, rtol=1e-3, atol=1e-4)


def made_up(shape: Sequence[int]) -> Tensor:
    """Two different fixed inputs of a net, ``(2, *shape)``."""
    return torch.linspace(-1, 1, 2 * prod(shape)).reshape(2, *shape)


def _logits(outputs: Tensor | Outputs) -> Tensor:
    return outputs if isinstance(outputs, Tensor) else outputs.logits


def _declares(transform: Transform) -> bool:
    does = hasattr(transform, "rescales") or hasattr(transform, "noise_variance")
    return does or type(transform).__module__.startswith(_BUILT_IN)
