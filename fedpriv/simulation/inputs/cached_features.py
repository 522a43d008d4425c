"""Features of a frozen encoder, computed once and cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fedpriv.data.pools import Pool
from fedpriv.data.tables import decoding
from fedpriv.models.text.transformer import TextEncoder, features
from fedpriv.untrusted.cache import cache_folder

CHUNK = 128
"""Samples per pass."""
FEW = 2
"""Samples whose features are always computed, to notice a changed encoder."""


def text_features(frozen: TextEncoder, ids: Tensor, device: torch.device) -> Tensor:
    """``(N, d)`` of token ids ``(N, L)``."""
    options = (frozen.pooling, frozen.pad, tuple(ids.shape), ids.dtype, frozen.transformer.config.to_json_string())
    key = [repr(options).encode(), ids.numpy().tobytes()]
    return computed_once(frozen, key, device, lambda count: features(frozen, ids[:count].to(device), CHUNK))


def image_features(frozen: nn.Module, images: Pool, device: torch.device) -> Tensor:
    """``(N, d)`` of the images of a pool on that device."""

    def parts(count: int | None = None) -> Iterable[Tensor]:
        first = range(len(images))[:count]
        for start in first[::CHUNK]:
            part = images.pick(slice(start, min(start + CHUNK, len(first))))
            assert isinstance(part, Tensor)
            yield part

    @torch.no_grad()
    def compute(count: int | None) -> Tensor:
        return torch.cat([frozen(part) for part in parts(count)])

    return computed_once(frozen, (part.cpu().numpy().tobytes() for part in parts()), device, compute)


def computed_once(
    frozen: nn.Module, inputs: Iterable[bytes], device: torch.device, compute: Callable[[int | None], Tensor]
) -> Tensor:
    """Features ``(N, d)``, from the cache if they are there.

    Args:
        frozen: the encoder, which is moved to the device and put into evaluation mode.
        inputs: the bytes of the inputs. The file's name is a hash of them, of the encoder's layers and weights, of its features
            of a few inputs, of the type of device and of the number of threads.
        compute: returns the features of the first ``n`` inputs; ``None``: of all.
    """
    frozen.to(device).eval()
    digest = hashlib.sha256(repr((frozen, device.type, torch.get_num_threads())).encode())
    digest.update(compute(FEW).cpu().numpy().tobytes())  # the encoder's code may have changed
    for part in inputs:
        digest.update(part)
    for name, tensor in frozen.state_dict().items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.cpu().numpy().tobytes())
    path = cache_folder() / f"features-{digest.hexdigest()[:24]}.safetensors"
    cached = decoding.read_cache(path)
    if cached is None:
        cached = {"features": compute(None).cpu()}
        decoding.write_cache(path, cached)
    return cached["features"]
