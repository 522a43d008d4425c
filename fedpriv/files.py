"""Atomic writes, and files of tensors and JSON with checksums."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import FedprivError, UsageError

if TYPE_CHECKING:  # torch takes seconds to import, and JSON is read without it
    from torch import Tensor

_CHECKSUM = "sha256"
_WITH_NAME = "sha256_with_name"
"""The checksum of a file of tensors, which covers its name too."""


class Damaged(FedprivError):
    """A file is missing or damaged."""


def check_place(folder: Path, hint: str) -> None:
    """Check that a folder can be written or created, before the work whose results it is for.

    Raises:
        UsageError: it cannot; the message ends with the hint.
    """
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}; {hint}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it has either the old content or the new, even after a power failure."""
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write files, each as :func:`write_atomically` does. If one of them cannot be written, all keep what they have."""
    parts = {path: path.with_name(path.name + ".part") for path in files}
    try:
        for path, data in files.items():
            with parts[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            part.replace(path)
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise
    for place in {path.parent for path in files}:
        folder = os.open(place, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, with a checksum of them and of the file's name in the header."""
    import safetensors.torch

    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, safetensors.torch.save(stored, {_WITH_NAME: checksum(stored, path.name)}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of :func:`save_tensors`; raises :class:`Damaged` if it is missing, truncated, altered or renamed."""
    import safetensors.torch

    try:
        data = path.read_bytes()  # a memory-mapped read takes twice as long for a few small tensors
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = header.get("__metadata__") or {}
    # The last three are torch's, of a shape with a zero and huge other dimensions.
    except (OSError, safetensors.SafetensorError, KeyError, OverflowError, RuntimeError, TypeError) as error:
        raise Damaged(f"{path} is damaged or missing: {str(error).partition(chr(10))[0]}") from None
    if checksum(tensors, path.name) != facts.get(_WITH_NAME):
        raise Damaged(f"{path} is damaged: its checksum does not match")
    return tensors


def checksum(tensors: Mapping[str, Tensor], of: str = "") -> str:
    """SHA-256 (hex) of CPU tensors with their names, and of a text."""
    import torch

    digest = hashlib.sha256(of.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        if tensors[name].numel():  # an empty buffer cannot be viewed
            digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_json(path: Path, values: Mapping[Any, Any]) -> None:
    """Write a JSON mapping atomically, with a checksum of its values."""
    write_atomically(path, json.dumps(with_checksum(values), indent=1).encode())


def load_json(path: Path) -> dict[str, Any]:
    """Read a JSON mapping; raises :class:`Damaged` if it is missing, truncated, altered or something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged or missing: {error}") from None
    except RecursionError:
        values = None
    if not isinstance(values, dict):
        raise Damaged(f"{path} is damaged: not a JSON mapping")
    return without_checksum(values, path)


def remembered(path: Path, key: str, value: str) -> bool:
    """Store a value in a JSON file; ``False``: the file has another value of that key, and is not changed."""
    values = load_json(path) if path.exists() else {}
    if values.setdefault(key, value) != value:
        return False
    save_json(path, values)
    return True


def with_checksum(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values, with a checksum that does not depend on layout or order."""
    return {**values, _CHECKSUM: _digest(values)}


def without_checksum(values: Mapping[str, Any], where: Path | str) -> dict[str, Any]:
    """The inverse of :func:`with_checksum`; raises :class:`Damaged` if the checksum does not match.

    Values without a checksum, as of files that were written by hand, are returned as they are.
    """
    stated = values.get(_CHECKSUM)
    rest = {name: value for name, value in values.items() if name != _CHECKSUM}
    try:
        altered = _CHECKSUM in values and stated != _digest(rest)
    except RecursionError:  # nested too deeply to be written
        altered = True
    if altered:
        raise Damaged(f"{where} is damaged: its checksum does not match")
    return rest


def _digest(values: Mapping[Any, Any]) -> str:
    as_read = json.loads(json.dumps(values))  # keys become strings, which sort differently: "10" before "2"
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()
