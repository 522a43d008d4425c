"""Values of a column that are names of files, told by their suffixes."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"(?s).*[^\s./\\]\.(?P<suffix>[A-Za-z][A-Za-z0-9]{0,7}|7z)\s*")
_OTHERS = re.compile(
    "npy|npz|dcm|dicom|nii|gz|mha|mhd|nrrd|svs|ndpi|wav|mp3|flac|ogg|opus|m4a|aac|aiff|mp4|avi|mov|mkv|webm|mpg|mpeg|mat|h5|hdf|"
    "hdf5|zarr|pt|pth|pkl|txt|json|jsonl|xml|pdf|heic|heif|raw|dng|cr2|nef|edf|csv|tsv|parquet|feather|zip|tar|7z"
)
"""Suffixes of files of data that are no images."""
FIRST = 100
"""How many values decide whether it is worth while to look at all."""


def is_image_name(name: str) -> bool:
    """Whether a file is an image, by its suffix."""
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    suffix = _suffix(name)
    return suffix == "avif" or (f".{suffix}" in ImageFolder.EXTENSIONS and not _OTHERS.fullmatch(suffix))


def file_names(values: Iterable[object]) -> list[str] | None:
    """The values that name files, by their suffixes; ``None``: at most half of the values do, so that the column has none."""
    there = [str(value) for value in values if value is not None and str(value).strip()]
    for some in (there[:FIRST], there):
        names = [value for value in some if _OTHERS.fullmatch(_suffix(value)) or is_image_name(value)]
        if 2 * len(names) <= len(some):
            return None
    return names


def _suffix(name: str) -> str:
    """In small letters; empty where a text does not end as the name of a file does."""
    match = _NAME.fullmatch(name)
    return match["suffix"].lower() if match else ""
