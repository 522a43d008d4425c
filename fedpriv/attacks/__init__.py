"""Attacks on messages of federated learning. They take tensors and nets, and import nothing else of :mod:`fedpriv`.

At the root of the repository, ``attacks`` is a link to this folder, for those who look for it there. It is imported as
``fedpriv.attacks`` alone, so that a user's own folder ``attacks`` does not hide it.

* :mod:`fedpriv.attacks.core`: the input and the result of an attack, and the registry of attacks.
* :mod:`fedpriv.attacks.gradients`: closed forms on gradients, and distances between them.
* :mod:`fedpriv.attacks.optimise`: minimisers of many independent problems at once.
* :mod:`fedpriv.attacks.image`, :mod:`fedpriv.attacks.text`, :mod:`fedpriv.attacks.rows`, :mod:`fedpriv.attacks.inference`: the
  attacks, by what they recover.
* :mod:`fedpriv.attacks.malicious`: those of a server that alters what it sends.
* :mod:`fedpriv.attacks.scoring`: scores of reconstructions, and of baselines without a message.
* :mod:`fedpriv.attacks.lab`: reference victims, and the controls that are run with every attack.
* :mod:`fedpriv.attacks.api`: the attacks in Python, on the gradient of any net.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "fedpriv.attacks":
    raise ImportError(f"{__name__} is a link to fedpriv.attacks: import that")

if TYPE_CHECKING:
    from fedpriv.attacks.api.inversion import Inversion, invert
    from fedpriv.attacks.core.reconstruction import Inapplicable

__all__ = ["Inapplicable", "Inversion", "invert"]

_WHERE = {
    "Inapplicable": "fedpriv.attacks.core.reconstruction",
    "Inversion": "fedpriv.attacks.api.inversion",
    "invert": "fedpriv.attacks.api.inversion",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
