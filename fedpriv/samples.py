"""The inputs of a net: a tensor with a row for each sample, or a pair of such tensors for images and texts.

Images are ``(n, C, H, W)``, float32 and normalised, texts are token ids ``(n, L)``, int64, and features of a frozen encoder are
``(n, d)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """Image-text pairs; ``None`` for a modality that the client does not have."""

    image: Tensor | None
    text: Tensor | None


Inputs: TypeAlias = Tensor | Pairs
Modality = Literal["image", "text"]


def each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply ``change`` to each tensor."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return Pairs(*(None if part is None else change(part) for part in inputs))


def laid_out(images: Tensor) -> Tensor:
    """Images ``(n, C, H, W)`` in the memory order in which convolutions are fastest.

    On a CPU this is channels last. On a GPU, channels last is slower in float32, and cuDNN fails with it on some grouped
    convolutions ("misaligned address").
    """
    return images.contiguous(memory_format=torch.channels_last if images.device.type == "cpu" else torch.contiguous_format)


def tensors(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors by name, without missing modalities, for ``torch.func``; :func:`from_tensors` is the inverse."""
    if isinstance(inputs, Tensor):
        return {"": inputs}
    return {name: part for name, part in inputs._asdict().items() if part is not None}


def from_tensors(parts: Mapping[str, Tensor]) -> Inputs:
    """The inverse of :func:`tensors`."""
    return parts[""] if "" in parts else Pairs(parts.get("image"), parts.get("text"))


def missing_modality(inputs: Inputs) -> Modality | None:
    """The modality that pairs do not have, or ``None``."""
    if isinstance(inputs, Tensor):
        return None
    return "image" if inputs.image is None else "text" if inputs.text is None else None


def without(inputs: Inputs, modality: Modality | None) -> Inputs:
    """Pairs without a modality; ``None``, or inputs that are no pairs: unchanged."""
    return inputs if modality is None or isinstance(inputs, Tensor) else inputs._replace(**{modality: None})


def size(inputs: Inputs) -> int:
    """Number of samples n."""
    return len(_any(inputs))


def take(inputs: Inputs, index: Tensor) -> Inputs:
    """The samples at positions ``(m,)``, by ``index_select``, which is faster than indexing."""
    return each(inputs, lambda part: part.index_select(0, index))


def split(inputs: Inputs, sizes: int | Sequence[int]) -> list[Inputs]:
    """Split into consecutive parts of a size or of several sizes, like ``torch.split``."""
    if isinstance(inputs, Tensor):
        return list(torch.split(inputs, cast(int, sizes)))
    count = size(inputs)
    parts = [None if part is None else torch.split(part, cast(int, sizes)) for part in inputs]
    number = len(sizes) if isinstance(sizes, Sequence) else max(1, -(-count // sizes))
    return [Pairs(*(None if part is None else part[i] for part in parts)) for i in range(number)]


def in_chunks(inputs: Inputs, size: int, encode: Callable[[Inputs], Tensor], lengths: Tensor | None = None) -> Tensor:
    """The outputs ``(n, d)`` of ``encode`` for n samples, computed for ``size`` samples at a time.

    Args:
        lengths: lengths of texts ``(n,)``; texts of similar length are then batched together, to reduce padding.
    """
    if lengths is None:
        return torch.cat([encode(chunk) for chunk in split(inputs, size)])
    order = lengths.argsort(stable=True)
    outputs = torch.cat([encode(chunk) for chunk in split(take(inputs, order), size)])
    return torch.empty_like(outputs).index_copy_(0, order, outputs)


def join(parts: Sequence[Inputs]) -> Inputs:
    """Concatenate parts with the same modalities."""
    if isinstance(parts[0], Tensor):
        return torch.cat(cast(list[Tensor], list(parts)))
    columns = zip(*cast(Sequence[Pairs], parts), strict=True)
    return Pairs(*(None if column[0] is None else torch.cat(column) for column in columns))


def _any(inputs: Inputs) -> Tensor:
    part = inputs if isinstance(inputs, Tensor) else next((part for part in inputs if part is not None), None)
    if part is None:
        raise ValueError("samples have neither images nor texts")
    return part
