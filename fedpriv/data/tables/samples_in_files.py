"""Samples that have a file each: images, and beside them texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.tables.files import Typed
from fedpriv.errors import FedprivError, UsageError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


@dataclass(frozen=True)
class SamplesInFiles(Typed):
    """A :class:`fedpriv.data.tables.files.Table` with the columns image, label and, of pairs, text; files are read on access.

    Attributes:
        labels: positions in ``classes``.
        texts: of pairs, the file of each text.
    """

    origin: str
    images: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    texts: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return self.images + self.texts

    def at(self, row: int) -> str:
        return str(self.images[row])

    @cached_property
    def features(self) -> datasets.Features:
        import datasets

        texts = {"text": datasets.Value("string")} if self.texts else {}
        label = datasets.ClassLabel(names=list(self.classes))
        return datasets.Features({"image": datasets.Image(decode=False), **texts, "label": label})

    def column(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        values: dict[str, Any] = {
            "image": ({"bytes": None, "path": str(image)} for image in self.images),
            "text": map(_read, self.texts),
            "label": self.labels,
        }
        return pa.chunked_array([pa.array(values[name], type=self.features.arrow_schema.field(name).type)])


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FedprivError(f"cannot read the text {path}: {error}") from None
    if not text:
        raise UsageError(f"{path} is empty; add the text, or remove it and its image")
    return text
