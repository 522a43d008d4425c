"""Atomic writes, and tensor files with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedpriv.errors import FedprivError


class Damaged(FedprivError):
    """A file is missing or damaged."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write so that ``path`` holds either the old content or the new, even after a power cut."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors with a checksum of their bytes in the header."""
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, safetensors.torch.save(stored, {"sha256": _checksum(stored)}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read what :func:`save_tensors` wrote; :class:`Damaged` where it is missing, truncated or altered."""
    try:
        data = path.read_bytes()  # a memory-mapped read takes twice as long for a few small tensors
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        expected = header.get("__metadata__", {}).get("sha256")
    except (OSError, safetensors.SafetensorError, KeyError) as error:
        raise Damaged(f"{path} is damaged or missing: {error}") from None
    if _checksum(tensors) != expected:
        raise Damaged(f"{path} is damaged: its checksum does not match")
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        if tensors[name].numel():  # an empty buffer cannot be viewed
            digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomically(path, json.dumps(value, indent=1).encode())


def load_json(path: Path) -> dict[str, Any]:
    """Read a JSON mapping; :class:`Damaged` where it is missing, truncated or something else."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is damaged or missing: {error}") from None
    except RecursionError:
        values = None
    if not isinstance(values, dict):
        raise Damaged(f"{path} is damaged: not a JSON mapping")
    return values
