"""Random numbers come from generators that are derived from the run's seed and labels such as round, client and purpose.

So they do not depend on earlier draws: not on the executor, on the order of the clients, or on whether the run was resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *labels: int | str) -> int:
    """A 63-bit seed: a hash of the run's seed and the labels. Torch's CPU generator uses 32 bits of it."""
    text = repr((seed, *labels)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def derive_key(seed: int, *labels: int | str) -> bytes:
    """As :func:`derive`, but 32 bytes."""
    return hashlib.blake2b(repr((seed, *labels)).encode(), digest_size=32).digest()


def derive_secretly(secret: bytes, *labels: int | str) -> bytes:
    """As :func:`derive_key`, but unpredictable without the secret (at most 64 bytes)."""
    return hashlib.blake2b(repr(labels).encode(), digest_size=32, key=secret).digest()


def generator(seed: int, *labels: int | str, device: str = "cpu") -> torch.Generator:
    """A new torch generator for one purpose, such as ``generator(seed, round, client, "shuffle")``."""
    import torch

    return torch.Generator(device=device).manual_seed(derive(seed, *labels))


@contextmanager
def global_rng(seed: int, *labels: int | str) -> Iterator[None]:
    """A block with seeded global generators of torch (for layer initialisation, dropout), which are restored afterwards."""
    import torch

    with kept_rng():
        if _accelerator() is None:
            torch.default_generator.manual_seed(derive(seed, *labels))
        else:
            torch.manual_seed(derive(seed, *labels))
        yield


@contextmanager
def kept_rng() -> Iterator[None]:
    """A block after which torch's global generators are restored: the CPU's, and those of an accelerator in use."""
    import torch

    if (kind := _accelerator()) is not None:
        devices = range(
            torch.get_device_module(kind).device_count()
        )  # as by default, but without a warning about several devices
        with torch.random.fork_rng(devices, device_type=kind):
            yield
        return
    before = torch.get_rng_state()  # as fork_rng, but ten times as fast
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def default_torch() -> Iterator[None]:
    """A block in which torch's default dtype is float32 and gradients are recorded, whatever the caller has set.

    With another dtype other weights would be drawn. Afterwards the caller's settings and number of threads are restored.
    """
    import torch

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def _accelerator() -> str | None:
    """The kind of accelerator in use; CUDA that was not used so far is not initialised."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None
