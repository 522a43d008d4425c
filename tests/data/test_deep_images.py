"""Images with more than 8 bits a channel are refused, whatever their format, their colours and their source."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest

from fedpriv.config import DataConfig
from fedpriv.data.sources import load_data
from fedpriv.data.user_data.objects import name_of
from fedpriv.errors import UsageError

SIDE = 8
WHY = "has more than 8 bits a channel"


def pixels(channels: int, seed: int = 0) -> Any:
    """``(8, 8, channels)`` uint16, of whose lower bytes alone something is left."""
    return np.random.default_rng(seed).integers(0, 200, (SIDE, SIDE, channels), dtype=np.uint16)


def png(channels: int, seed: int = 0) -> bytes:
    """By the standard's own words (ISO 15948): Pillow writes no colours of 16 bits."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels(channels, seed))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    chunks = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(channels: int) -> bytes:
    """Of one strip (TIFF 6.0)."""
    data = pixels(channels).astype("<u2").tobytes()
    bits = 8 + 2 + 12 * 10 + 4  # where the bits per sample are, and then the strip
    tags = [(256, SIDE), (257, SIDE), (258, bits), (259, 1), (262, 2), (273, bits + 2 * channels), (277, channels), (278, SIDE),
            (279, len(data)), (284, 1)]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 3, channels if tag == 258 else 1, value) for tag, value in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + b"\0" * 4 + struct.pack("<H", 16) * channels + data


def ppm(channels: int) -> bytes:
    return f"P{6 if channels == 3 else 5} {SIDE} {SIDE} 1023\n".encode() + pixels(channels).astype(">u2").tobytes()


def sgi(channels: int) -> bytes:
    head = struct.pack(">HBBHHHH", 474, 0, 2, 3, SIDE, SIDE, channels)
    return head.ljust(512, b"\0") + pixels(channels).transpose(2, 0, 1).astype(">u2").tobytes()


def stated(kind: str, mark: bytes, place: int, step: int, bits: int) -> bytes:
    """A file of Pillow whose header says that its channels are deeper, as no library here writes one."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels(3).astype(np.uint8)).save(file, kind)
    content = bytearray(file.getvalue())
    for channel in range(3 if step else 1):
        content[content.find(mark) + place + step * channel] |= bits
    return bytes(content)


def of_pillow(mode: str, kind: str) -> bytes:
    file = io.BytesIO()
    values = pixels(1)[..., 0]
    PIL.Image.fromarray({"I;16": values, "I": values.astype(np.int32), "F": values / np.float32(7)}[mode]).save(file, kind)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    **{f"{n} channels.png": (lambda n=n: png(n)) for n in (1, 2, 3, 4)},
    "rgb.tiff": lambda: tiff(3),
    "rgba.tiff": lambda: tiff(4),
    "grey.pgm": lambda: ppm(1),
    "rgb.ppm": lambda: ppm(3),
    "rgb.sgi": lambda: sgi(3),
    "rgb.jp2": lambda: stated("JPEG2000", b"\xff\x4f\xff\x51", 42, 3, 15),
    **{f"{mode} of pillow.tiff": (lambda mode=mode: of_pillow(mode, "TIFF")) for mode in ("I;16", "I", "F")},
    "of pillow.png": lambda: of_pillow("I;16", "PNG"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name]())
    with PIL.Image.open(file) as image, pytest.raises(UsageError, match=f"the image 1 {WHY}"):
        name_of(([PIL.Image.new("L", (SIDE, SIDE)), image], [0, 1]))


@pytest.mark.parametrize("source", ["folder", "parquet", "paths", "data set", "loaded"])
def test_every_source(source: str, tmp_path: Path) -> None:
    files = [tmp_path / "photos" / "ab"[i % 2] / f"{i}.png" for i in range(10)]
    for seed, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(3, seed))
    labels = [0, 1] * 5
    if source == "loaded":
        images = [PIL.Image.open(file) for file in files]
        [image.load() for image in images]
        with pytest.raises(UsageError, match=f"the image 0 {WHY}"):
            name_of((images, labels))
        return
    rows = datasets.Dataset.from_dict({"image": [str(file) for file in files], "label": labels})
    rows = rows.cast_column("image", datasets.Image())
    if source == "data set":
        name = name_of(rows)
    elif source == "parquet":
        name = tmp_path / "a.parquet"
        kind = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        held = [{"bytes": file.read_bytes(), "path": None} for file in files]
        datasets.Dataset.from_dict({"image": held, "label": labels}, features=kind).to_parquet(name)
    elif source == "paths":
        name = tmp_path / "a.csv"
        name.write_text("image,label\n" + "".join(f"{file.relative_to(tmp_path)},{i % 2}\n" for i, file in enumerate(files)))
    else:
        name = tmp_path / "photos"
    with pytest.raises(UsageError, match=WHY):
        load_data(DataConfig(name=str(name)))


def test_images_of_8_bits_a_channel_are_not_deep(tmp_path: Path) -> None:
    """In any format that Pillow reads, loaded or not, and where a pixel has two bytes for all of its colours."""
    from fedpriv.data.tables.depth import depth_stated, is_deep

    grey = PIL.Image.fromarray(pixels(1)[..., 0].astype(np.uint8))
    kinds = "PNG", "TIFF", "PPM", "SGI", "JPEG2000", "AVIF", "GIF", "WEBP", "BMP", "TGA", "JPEG", "PCX"
    for kind in kinds:
        for mode in ("L", "RGB", "P", "RGBA") if kind in ("PNG", "TIFF") else ("RGB",):
            file = tmp_path / f"a.{kind}"
            grey.convert(mode).save(file, kind)
            with PIL.Image.open(file) as image:
                assert not is_deep(image), (kind, mode)
                image.load()
                assert not is_deep(image), (kind, mode)
    head = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54 + 128, 0, 54, 40, 8, 8, 1, 16, 0, 128, 0, 0, 0, 0)
    (tmp_path / "555.bmp").write_bytes(head + bytes(range(128)))
    with PIL.Image.open(tmp_path / "555.bmp") as image:
        assert image.mode == "RGB" and not is_deep(image)
    assert depth_stated("AVIF", stated("AVIF", b"av1C", 6, 0, 0x40)) == 10  # which no library here reads without its pixels
    assert depth_stated("AVIF", stated("AVIF", b"av1C", 6, 0, 0)) == 8
