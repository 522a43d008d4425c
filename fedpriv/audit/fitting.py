"""The error for an attack on the wrong kind of samples."""

from __future__ import annotations

from typing import Literal

from fedpriv.errors import UsageError

Holds = Literal["images", "texts", "rows of a table"]


def unfit(what: str, holds: Holds) -> UsageError:
    """The error for a data set or a run, ``what``, that holds other samples than the attack is for."""
    from fedpriv.attacks.attack import image_attacks, text_attacks

    if holds == "rows of a table":
        return UsageError(f"{what} holds {holds}, and attacks are on images or on texts")
    known = image_attacks() if holds == "images" else text_attacks()
    other = "texts" if holds == "images" else "images"
    return UsageError(f"{what} holds {holds}, but this attack is on {other}; attacks on {holds}: {', '.join(known)}")
