"""Attacks on messages of federated learning. They take tensors and nets, and import nothing of :mod:`fedpriv`.

* :mod:`attacks.core`: the input and the result of an attack, and the registry of attacks.
* :mod:`attacks.gradients`: closed forms on gradients, and distances between them.
* :mod:`attacks.optimise`: minimisers of many independent problems at once.
* :mod:`attacks.image`, :mod:`attacks.text`, :mod:`attacks.inference`: the attacks, by what they recover.
* :mod:`attacks.malicious`: those of a server that alters what it sends.
* :mod:`attacks.scoring`: scores of reconstructions, and of baselines without a message.
* :mod:`attacks.lab`: reference victims, and the controls that are run with every attack.
* :mod:`attacks.api`: the attacks in Python, on the gradient of any net.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.api.inversion import Inversion, invert
    from attacks.core.reconstruction import Inapplicable

__all__ = ["Inapplicable", "Inversion", "invert"]

_WHERE = {
    "Inapplicable": "attacks.core.reconstruction",
    "Inversion": "attacks.api.inversion",
    "invert": "attacks.api.inversion",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_WHERE[name]), name)
    globals()[name] = found
    return found
