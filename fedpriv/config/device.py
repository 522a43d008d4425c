"""The devices on which nets are trained, and which of them cannot be here, as far as is seen without PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

from fedpriv.errors import UsageError

DEVICES = ("cpu", "cuda", "mps")
"""Kinds of devices on which a net can compute with views of a row. On XLA it cannot: training there changes nothing."""
_DRIVERS = ("nvidia*", "nvhost*", "nvgpu*", "kfd", "dxg")
"""Files in ``/dev`` that the drivers of GPUs make on Linux: NVIDIA's, those of its boards, AMD's, and Windows' below it."""


def check_device(name: str) -> None:
    """Check that a device is of a kind that is supported, and that the machine may have one.

    Raises:
        UsageError: it is not, or has none.
    """
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        raise UsageError(f"device {name!r} is not supported, only {', '.join(DEVICES)}; try --device cpu")
    no_driver = sys.platform == "linux" and not any(any(Path("/dev").glob(pattern)) for pattern in _DRIVERS)
    if (kind == "cuda" and no_driver) or (kind == "mps" and sys.platform != "darwin"):
        why = "this machine has no driver of a GPU" if kind == "cuda" else "it is for macOS"
        raise UsageError(f"device {name!r} is not available here: {why}; try --device cpu")
