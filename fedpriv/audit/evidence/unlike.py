"""What of a run keeps attacks from succeeding that pass their controls, so that their failure on its messages says little."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from fedpriv.config import RunConfig
from fedpriv.wire import Transform

_BUILT_IN = "fedpriv."
"""Of the modules whose transforms say all that they do: in the message (a mask, a rounding), or by their attributes."""


def unlike_controls(
    config: RunConfig, net: nn.Module, transforms: Sequence[Transform], steps: bool, once: bool
) -> tuple[str, ...]:
    """In what messages of a run differ from those of every attack's controls, a clause each.

    Args:
        net: the client's, in the mode in which it computed what is attacked.
        transforms: of an upload.
        steps: whether what is attacked is the change over local steps, and not a gradient that was sent beside it.
        once: whether each sample was in one step, as one view of it.
    """
    found = []
    if config.data.augment not in (None, "none") and net.training and not once:
        altered = f"the client may have trained on several altered copies of each image (data.augment {config.data.augment})"
        found.append(f"{altered}, and attacks look for one image behind all of its steps")
    if steps and config.train.optimizer != "sgd":
        found.append(f"attacks read a change as that of SGD, and the client's steps were {config.train.optimizer}'s")
    drops = [module.p for module in net.modules() if isinstance(module, _DropoutNd) and module.p and module.training]
    if drops:
        # Attacks that also seek the masks succeed where others fail (Scheliga, Maeder & Seeland 2023).
        which = ", ".join(f"{p:g}" for p in dict.fromkeys(drops))
        found.append(f"the client trained with dropout of {which}, whose random masks attacks do not look for")
    if undeclared := [str(transform) for transform in transforms if not _declares(transform)]:
        names = ", ".join(undeclared)
        found.append(f"{names} does not declare what it does to a change (rescales, noise_variance), so attacks do not know it")
    return tuple(found)


def _declares(transform: Transform) -> bool:
    says = hasattr(transform, "rescales") or hasattr(transform, "noise_variance")
    return says or type(transform).__module__.startswith(_BUILT_IN)
