"""Defences: transforms of a client's upload before it is sent, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.config import parse
from fedpriv.defenses.cast import Cast
from fedpriv.defenses.clip import Clip
from fedpriv.defenses.gaussian import Gaussian
from fedpriv.defenses.laplace import Laplace
from fedpriv.defenses.mask import Mask
from fedpriv.defenses.prune import Prune
from fedpriv.defenses.quantise import Quantise
from fedpriv.defenses.stage import check_order
from fedpriv.errors import UsageError
from fedpriv.registry import Registry, is_dataclass_of
from fedpriv.wire import Transform

registry: Registry[type[Transform]] = Registry(
    "transform", "fedpriv.transforms", ["fedpriv.defenses"], is_dataclass_of("__call__"), "a frozen dataclass that can be called"
)
register = registry.register

_IN_ORDER = {
    "mask": Mask,
    "clip": Clip,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "prune": Prune,
    "quantise": Quantise,
    "cast": Cast,
}
for _name, _kind in _IN_ORDER.items():
    register(_name)(_kind)


def transforms() -> dict[str, type[Transform]]:
    """All transforms by name: built-in ones in the order in which they can be combined, then plug-ins."""
    known = registry.all()
    return {name: known[name] for name in (*_IN_ORDER, *sorted(known.keys() - _IN_ORDER))}


def build_transforms(configured: Sequence[Mapping[str, Any]]) -> list[Transform]:
    """Build transforms from their options, such as ``[{name: mask, roles: [head]}, ...]``, in that order.

    Raises:
        UsageError: a name or an option is unknown, or the order is not allowed (:func:`check_order`).
    """
    known, built = transforms(), []
    for index, options in enumerate(configured):
        where = f"wire.transforms[{index}]"
        name = options.get("name")
        if not isinstance(name, str):
            raise UsageError(f"{where}: no name; known: {', '.join(sorted(known))}")
        if name not in known:
            raise registry.unknown(name, f"--defense or {where}")
        built.append(parse(known[name], {key: value for key, value in options.items() if key != "name"}, f"{where} ({name})"))
    check_order(built)
    return built


def sent_names(names: Sequence[str], built: Sequence[Transform], linear: Sequence[str]) -> tuple[str, ...]:
    """The names that no mask among the transforms removes.

    Args:
        names: the tensors that a method shares.
        linear: the net's fully connected layers in forward order.

    Raises:
        UsageError: a mask removes all of them, or needs more layers than there are.
    """
    for transform in built:
        if isinstance(transform, Mask):
            names = transform.kept(names, linear)
    return tuple(names)
