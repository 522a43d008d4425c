"""The bits per channel of an image file. Pillow reads some deeper images as 8 bits without saying so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

DEEP = "has more than 8 bits a channel; convert it to 8 bits first"
_MODES = ("I", "F")
"""Pillow's modes of 16 and 32 bits a pixel, whose range an 8-bit copy would have to guess."""
_RAW = re.compile(r"(LA?;16|.+;(12|16|32)F?[BLNS]+)")
"""Pillow's names of pixel formats with more than 8 bits a channel; those of two bytes for all three colours do not match."""
_BITS_PER_SAMPLE = 258  # of TIFF
_STATED = ("JPEG2000", "AVIF")
_HEADERS = 1 << 16  # bytes from the beginning within which the formats below say how deep they are


def is_deep(image: Image) -> bool:
    """Whether an image has more than 8 bits a channel, also where Pillow reads (or has read) 8 bits of these.

    Of an image that was opened from bytes and then loaded or converted, nothing is known but its pixels, which have 8.
    """
    import PIL.Image

    if image.mode.startswith(_MODES):
        return True
    if getattr(image, "tile", None):  # not loaded yet
        return _is_deep_file(image)
    name = getattr(image, "filename", "")
    if not name or not Path(name).is_file():
        return False
    with PIL.Image.open(name) as again:
        return again.mode.startswith(_MODES) or _is_deep_file(again)


def _is_deep_file(image: Image) -> bool:
    """As :func:`is_deep`, of an opened image that is not loaded yet."""
    kind = image.format
    if kind == "TIFF":
        bits: tuple[int, ...] = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))  # type: ignore[attr-defined]
        return max(bits) > 8
    if kind in _STATED:
        return depth_stated(kind, _begin(image)) > 8
    for codec, _, _, given in image.tile:  # type: ignore[attr-defined]
        arguments = given if isinstance(given, tuple) else (given,)
        if kind == "PPM":
            return any(isinstance(argument, int) and argument > 255 for argument in arguments)  # the largest value
        if codec == "SGI16" or any(isinstance(argument, str) and _RAW.fullmatch(argument) for argument in arguments):
            return True
    return False


def _begin(image: Image) -> bytes:
    file = image.fp  # type: ignore[attr-defined]
    place = file.tell()
    file.seek(0)
    begin: bytes = file.read(_HEADERS)
    file.seek(place)
    return begin


def depth_stated(kind: str, begin: bytes) -> int:
    """The bits a channel by the first bytes of a file: of JPEG 2000 its marker SIZ (ISO 15444-1, A.5.1), of AVIF its box av1C
    (AV1-ISOBMFF, 2.3.3)."""
    if kind == "AVIF":
        place = begin.find(b"av1C")
        return 10 if place >= 0 and begin[place + 6] & 0x40 else 8
    place = begin.find(b"\xff\x4f\xff\x51")
    if place < 0:
        return 8
    channels = int.from_bytes(begin[place + 40 : place + 42], "big")
    return max((begin[place + 42 + 3 * channel] & 0x7F) + 1 for channel in range(channels))
