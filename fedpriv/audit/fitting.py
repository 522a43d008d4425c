"""Which attacks are for what, said where one does not fit."""

from __future__ import annotations

from typing import Literal

from fedpriv.errors import UsageError

Holds = Literal["images", "texts"]


def unfit(what: str, holds: Holds) -> UsageError:
    """``what`` (a data set, a run) holds the one and was to be attacked as if it held the other."""
    from attacks.core.registry import image_attacks
    from attacks.core.text_registry import text_attacks

    known = image_attacks() if holds == "images" else text_attacks()
    other = "texts" if holds == "images" else "images"
    return UsageError(f"{what} holds {holds}, and this attack is on {other}; on {holds}: {', '.join(known)}")
