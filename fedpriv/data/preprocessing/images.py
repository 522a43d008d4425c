"""New images as a run's inputs: decoded, brought to its mode and size, and scaled as in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.data.pools import Images
from fedpriv.data.preprocessing.stored import ScaledForm
from fedpriv.data.tables import decoding
from fedpriv.errors import FedprivError, UsageError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class NewImages:
    """Images as bytes.

    Attributes:
        pixels: ``(N, C, H, W)`` uint8.
        names: of the files that they were read from, below the folder that was named; ``None``: they were not.
        resized: how many had another size than those of training.
    """

    pixels: Tensor
    names: tuple[str, ...] | None
    resized: int


def scaled(pixels: Tensor, form: ScaledForm) -> Tensor:
    """Images ``(N, C, H, W)`` uint8 as the net's inputs."""
    return Images(pixels, form.mean, form.std, pixels.device).pick(slice(None))


def read_images(data: Any, form: ScaledForm) -> NewImages:
    """Images that are given as an array or tensor ``(N, H, W)``, ``(N, C, H, W)`` or ``(N, H, W, C)``, uint8 or floats in [0,
    1]; as a list of such arrays, PIL images or paths; as a path of an image, of a folder of images, or of a table that has or
    names them.

    Those of another size than in training are resized, as images of several sizes are for training.

    Raises:
        UsageError: they are none of these, or cannot be resized, as training had no squares.
        FedprivError: one cannot be decoded.
    """
    from fedpriv.data.tables.folders import below, is_image

    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if path.is_dir():
            files = [file for file in below(path) if file.is_file() and is_image(file)]
            if not files:
                raise UsageError(f"{path} holds no images")
            return _of_files(files, form, tuple(str(file.relative_to(path)) for file in files))
        if not path.is_file():
            raise UsageError(f"there is no file or folder {path}")
        if path.suffix.lower() in (".csv", ".parquet"):
            return _of_table(path, form)
        return _of_files([path], form, (path.name,))
    if isinstance(data, list | tuple) and data and all(isinstance(item, str | Path) for item in data):
        return _of_files([Path(item).expanduser() for item in data], form, tuple(map(str, data)))
    return _brought([*_opened(data)], form)


def _opened(data: Any) -> list[Image]:
    """Arrays or PIL images as PIL images."""
    import PIL.Image

    from fedpriv.data.user_data.objects import as_array, pixels

    if isinstance(data, PIL.Image.Image):
        data = [data]
    if isinstance(data, list | tuple) and not data:
        raise UsageError("no images")
    items = list(data) if isinstance(data, list | tuple) else None
    if items is not None:
        arrays = [as_array(item, number) for number, item in enumerate(items)]
        return [PIL.Image.fromarray(pixels(array[None])[0]) for array in arrays]
    array = as_array(data)
    if array.ndim == 3 and array.shape[2] == 3:  # no image is that narrow: a single one, in colour
        array = array[None]
    if array.ndim not in (3, 4):
        raise UsageError(
            f"images of type {type(data).__name__} and shape {array.shape}; expected (N, H, W), (N, C, H, W) or (N, H, W, C), a "
            "list of images, or a path"
        )
    return [PIL.Image.fromarray(image) for image in pixels(array)]


def _of_files(files: Sequence[Path], form: ScaledForm, names: tuple[str, ...]) -> NewImages:
    import PIL.Image

    from fedpriv.data.tables.depth import DEEP, is_deep

    images = []
    for file in files:
        try:
            with PIL.Image.open(file) as image:
                deep = is_deep(image)
                image.load()
        except Exception as error:  # Pillow's plugins raise any exception on a broken file
            raise FedprivError(f"cannot decode {file}: {type(error).__name__}: {first_line(error)}") from None
        if deep:
            raise UsageError(f"{file} {DEEP}")
        images.append(image)
    return _brought(images, form, names)


def _brought(images: Sequence[Image], form: ScaledForm, names: tuple[str, ...] | None = None) -> NewImages:
    """Images in the mode and size of training."""
    channels, height, width = form.shape
    array: NDArray[np.uint8] = np.empty((len(images), height, width, *([] if channels == 1 else [channels])), np.uint8)
    others = 0
    for place, image in enumerate(images):
        upright = decoding.pixels(image, _mode(form))
        if upright.shape[:2] != (height, width):
            upright, others = decoding.pixels(image, _mode(form), _side(form, upright.shape[:2])), others + 1
        array[place] = upright
    tensor = torch.from_numpy(array[:, None] if channels == 1 else np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
    return NewImages(tensor, names, others)


def _of_table(path: Path, form: ScaledForm) -> NewImages:
    """The images of a table that has them, or names them."""
    from fedpriv.data.tables.columns import image_column
    from fedpriv.data.tables.files import open_file
    from fedpriv.data.tables.paths import with_images

    (table,) = with_images([open_file(path)], ())
    image = image_column(table.features)
    if image is None:
        raise UsageError(f"{path} has no column of images; its columns are: {', '.join(table.features)}")
    rows = np.arange(len(table.column(image)))
    sizes = decoding.sizes([(table, rows)], image)
    _, height, width = form.shape
    others = int((sizes != (width, height)).any(1).sum())
    side = _side(form, sizes[(sizes != (width, height)).any(1)][0][::-1]) if others else None
    return NewImages(decoding.decode(table, image, rows, _mode(form), side), None, others)


def _mode(form: ScaledForm) -> decoding.Mode:
    return "L" if form.shape[0] == 1 else "RGB"


def _side(form: ScaledForm, size: Sequence[int]) -> int:
    """Pixels a side to which an image of another size ``(H, W)`` is brought.

    Raises:
        UsageError: the images of training were no squares.
    """
    _, height, width = form.shape
    if height != width:
        raise UsageError(
            f"an image is {size[1]} x {size[0]} pixels, and those of training were {width} x {height}; resize it first"
        )
    return height
