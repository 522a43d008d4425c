"""Atomic writes; files of tensors and of JSON with a checksum of what they say."""

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
"""In a file of tensors: a checksum of its name, too. It is the only fact in the header, where the order of several varies."""


class Damaged(FedprivError):
    """A file is missing or damaged."""


def check_place(folder: Path, hint: str) -> None:
    """Check that a folder can be written, or made, before the work whose results it gets.

    Raises:
        UsageError: it cannot; the message ends with the hint.
    """
    try:
        there = next(one for one in (folder, *folder.parents) if one.exists())
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}; {hint}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write so that ``path`` holds either the old content or the new, even after a power cut."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, in whose header is a checksum of them and of the file's name."""
    import safetensors.torch

    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, safetensors.torch.save(stored, {_WITH_NAME: checksum(stored, path.name)}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read what :func:`save_tensors` wrote; :class:`Damaged` where it is missing, truncated, altered or another's."""
    import safetensors.torch

    try:
        data = path.read_bytes()  # a memory-mapped read takes twice as long for a few small tensors
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = header.get("__metadata__") or {}
    # The last three are torch's, of a shape without numbers whose other dimensions are beyond all bounds.
    except (OSError, safetensors.SafetensorError, KeyError, OverflowError, RuntimeError, TypeError) as error:
        raise Damaged(f"{path} is damaged or missing: {str(error).partition(chr(10))[0]}") from None
    name, stated = (path.name, facts[_WITH_NAME]) if _WITH_NAME in facts else ("", facts.get(_CHECKSUM))  # of earlier versions
    if checksum(tensors, name) != stated:
        raise Damaged(f"{path} is damaged: its checksum does not match")
    return tensors


def checksum(tensors: Mapping[str, Tensor], of: str = "") -> str:
    """SHA-256 (hex) of tensors of the processor with their names, and of a text."""
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
    """Read a JSON mapping; :class:`Damaged` where it is missing, truncated, altered or something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged or missing: {error}") from None
    except RecursionError:
        values = None
    if not isinstance(values, dict):
        raise Damaged(f"{path} is damaged: not a JSON mapping")
    return without_checksum(values, path)


def remembered(path: Path, what: str, said: str) -> bool:
    """Whether nothing else was said of it before; this is then in the JSON file."""
    known = load_json(path) if path.exists() else {}
    if known.setdefault(what, said) != said:
        return False
    save_json(path, known)
    return True


def with_checksum(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values, and a checksum of them that does not depend on layout or order."""
    return {**values, _CHECKSUM: _digest(values)}


def without_checksum(values: Mapping[str, Any], where: Path | str) -> dict[str, Any]:
    """The inverse of :func:`with_checksum`; :class:`Damaged` where the checksum is of other values.

    Values without a checksum, as earlier versions wrote them, are taken as they are.
    """
    stated = values.get(_CHECKSUM)
    said = {name: value for name, value in values.items() if name != _CHECKSUM}
    try:
        altered = _CHECKSUM in values and stated != _digest(said)
    except RecursionError:  # they could be read, and lie too deep to be written
        altered = True
    if altered:
        raise Damaged(f"{where} is damaged: its checksum does not match")
    return said


def _digest(values: Mapping[Any, Any]) -> str:
    as_read = json.loads(json.dumps(values))  # the keys become strings, which sort otherwise than numbers: "10" before "2"
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()
