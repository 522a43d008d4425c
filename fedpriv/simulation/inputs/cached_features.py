"""Features of a frozen encoder, computed once and cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fedpriv.data.pools import Pool
from fedpriv.data.tables import decoding
from fedpriv.models.text import TextEncoder, features
from fedpriv.outside.cache import cache_folder

CHUNK = 128
"""Samples per pass."""


def text_features(frozen: TextEncoder, ids: Tensor, device: torch.device) -> Tensor:
    """``(N, d)`` of token ids ``(N, L)``."""
    key = [repr((frozen.pooling, frozen.pad, tuple(ids.shape), ids.dtype)).encode(), ids.numpy().tobytes()]
    return computed_once(frozen, key, device, lambda: features(frozen, ids.to(device), CHUNK))


def image_features(frozen: nn.Module, images: Pool, device: torch.device) -> Tensor:
    """``(N, d)`` of the images of a pool on that device."""

    def parts() -> Iterable[Tensor]:
        for start in range(0, len(images), CHUNK):
            part = images.pick(slice(start, start + CHUNK))
            assert isinstance(part, Tensor)
            yield part

    @torch.no_grad()
    def compute() -> Tensor:
        return torch.cat([frozen(part) for part in parts()])

    return computed_once(frozen, (part.cpu().numpy().tobytes() for part in parts()), device, compute)


def computed_once(frozen: nn.Module, inputs: Iterable[bytes], device: torch.device, compute: Callable[[], Tensor]) -> Tensor:
    """Features ``(N, d)``, from the cache if they were computed before.

    Args:
        frozen: the encoder, which is moved to the device and put into evaluation mode.
        inputs: the bytes of the inputs; with the encoder's class and weights, the type of device and the number of threads they
            determine the file.
    """
    digest = hashlib.sha256(repr((type(frozen).__name__, device.type, torch.get_num_threads())).encode())
    for part in inputs:
        digest.update(part)
    for name, tensor in frozen.state_dict().items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.cpu().numpy().tobytes())
    path = cache_folder() / f"features-{digest.hexdigest()[:24]}.safetensors"
    cached = decoding.read_cache(path)
    if cached is None:
        frozen.to(device).eval()
        cached = {"features": compute().cpu()}
        decoding.write_cache(path, cached)
    return cached["features"]
