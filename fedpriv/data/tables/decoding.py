"""Decodes images to one uint8 tensor, and caches the result on disk."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.tables.depth import DEEP, is_deep
from fedpriv.data.tables.files import Table
from fedpriv.errors import FedprivError, UsageError, first_line
from fedpriv.untrusted.notes import note

if TYPE_CHECKING:
    from PIL.Image import Image

Mode = Literal["L", "RGB"]
_GREY = {"L", "1"}
_SMOOTH = 2  # PIL.Image.Resampling.BILINEAR, which smooths where it shrinks
LARGEST = 224
"""Pixels a side that images of mixed sizes are brought to at most, the input of nets for photographs."""


def decode(table: Table, column: str, rows: NDArray[np.int64], mode: Mode, side: int | None = None) -> Tensor:
    """Decode the images of ``rows`` to uint8 ``(n, C, H, W)``, C = 1 for mode ``L`` and 3 for ``RGB``.

    What is transparent becomes white, and an image that says how it was held (EXIF) is turned upright.

    Args:
        side: pixels a side to which they are resized, whatever their shape; ``None``: unchanged.

    Raises:
        FedprivError: an image cannot be decoded; the error names it.
        UsageError: an image has more than 8 bits a channel.
        MixedSizes: the images differ in size.
    """
    values = table.column(column).take(rows)
    images: NDArray[np.uint8] | None = None
    for place, value in enumerate(values):
        with _open(value.as_py(), table, column, int(rows[place])) as image:
            try:
                decoded = pixels(image, mode, side)
            except Exception as error:  # Pillow's plugins raise any exception on a broken file
                raise _undecodable(table, value.as_py(), int(rows[place]), error) from None
        if images is None:
            images = np.empty((len(rows), *decoded.shape), dtype=np.uint8)
        if decoded.shape != images.shape[1:]:
            raise MixedSizes
        images[place] = decoded
    if images is None:
        raise UsageError(f"{table.origin} holds no images")
    return torch.from_numpy(images[:, None] if mode == "L" else np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def pixels(image: Image, mode: Mode, side: int | None = None) -> NDArray[np.uint8]:
    """The pixels ``(H, W)`` or ``(H, W, 3)`` of an opened image; arguments as for :func:`decode`."""
    flat = _flat(image).convert(mode)
    return np.asarray(flat if side is None else flat.resize((side, side), _SMOOTH))


class MixedSizes(UsageError):
    """The images differ in size."""

    def __init__(self) -> None:
        super().__init__("the images differ in size; --set data.image_size=64")


def sizes(tables: Sequence[tuple[Table, NDArray[np.int64]]], column: str) -> NDArray[np.int64]:
    """Width and height of all images ``(N, 2)``; reads the headers alone."""
    return np.array([image.size for image in _headers(tables, column)], dtype=np.int64)


def common_side(widths_and_heights: NDArray[np.int64]) -> int:
    """Pixels a side for images of mixed sizes ``(N, 2)``: the median of their shorter sides, at most :data:`LARGEST`."""
    return min(int(np.median(widths_and_heights.min(axis=1))), LARGEST)


def common_mode(tables: Sequence[tuple[Table, NDArray[np.int64]]], column: str) -> Mode:
    """``L`` where all images are grey, else ``RGB``; reads the headers alone."""
    return "L" if {image.mode for image in _headers(tables, column)} <= _GREY else "RGB"


def _headers(tables: Sequence[tuple[Table, NDArray[np.int64]]], column: str) -> Iterator[Image]:
    """Each image, opened, without its pixels."""
    for table, rows in tables:
        for row, value in zip(rows.tolist(), table.column(column).take(rows), strict=True):
            with _open(value.as_py(), table, column, row) as image:
                yield image


def _open(value: object, table: Table, column: str, row: int) -> Image:
    import PIL.Image

    try:
        if isinstance(value, dict):
            value = value["bytes"] if value.get("bytes") is not None else value["path"]
        image = PIL.Image.open(io.BytesIO(value) if isinstance(value, bytes) else str(value))
    except Exception as error:
        if isinstance(value, bytes) and isinstance(error, PIL.UnidentifiedImageError):  # whose message is an address in memory
            what = f"column {column!r} holds bytes that are no image; write texts as strings"
            raise FedprivError(f"{table.at(row)}: {what}") from None
        raise _undecodable(table, value, row, error) from None
    if is_deep(image):
        raise UsageError(f"{_where(table, value, row)} {DEEP}")
    return image


def plain(image: Image) -> NDArray[np.uint8]:
    """The pixels of an opened image of at most 8 bits a channel, as :func:`decode` reads its file.

    Returns:
        ``(H, W)`` where it is grey, else ``(H, W, 3)``.
    """
    return np.asarray(_flat(image).convert("L" if image.mode in _GREY else "RGB"))


def _flat(image: Image) -> Image:
    """An image upright and on white: without that, what is transparent would have the colour that happens to be stored there."""
    import PIL.Image
    import PIL.ImageOps

    upright = PIL.ImageOps.exif_transpose(image)
    if not upright.has_transparency_data:
        return upright
    seen = upright.convert("RGBA")
    return PIL.Image.alpha_composite(PIL.Image.new("RGBA", seen.size, "white"), seen)


def _undecodable(table: Table, value: object, row: int, error: Exception) -> FedprivError:
    return FedprivError(f"cannot decode {_where(table, value, row)}: {type(error).__name__}: {first_line(error)}")


def _where(table: Table, value: object, row: int) -> str:
    if isinstance(value, dict) and value.get("bytes") is None:
        value = value.get("path")
    return value if isinstance(value, str) else f"the image in {table.at(row)}"


def cache_key(tables: Sequence[tuple[Table, NDArray[np.int64]]], column: str, mode: Mode | None, side: int | None = None) -> str:
    """A hash of what the decoded tensors depend on: each file's path, size and modification time, rows, column, mode, side."""
    digest = hashlib.sha256(repr(("2", column, mode, *([side] if side else []))).encode())
    for table, rows in tables:
        for file in table.files:
            status = file.stat()
            digest.update(repr((str(file.resolve()), status.st_size, status.st_mtime_ns)).encode())
        digest.update(np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()[:24]


def read_cache(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a cache file; ``None`` where it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
            stated = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    return tensors if _checksum(tensors) == stated else None


def write_cache(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write decoded tensors to the cache, atomically, so that neither a crash nor a second process leaves a partial file."""
    from safetensors.torch import save_file

    part: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        os.close(handle)
        save_file(tensors, part, {"sha256": _checksum(tensors)})
        os.replace(part, path)
        part = None
    except OSError as error:  # a full or read-only disk must not stop the run
        note(f"decoded images are not cached ({error}); the next run decodes them again")
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(repr((name, tuple(tensors[name].shape))).encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
