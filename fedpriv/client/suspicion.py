"""Marks of an attack in what the server sent: a client refuses weights that no training has made.

A malicious server writes weights that make single samples readable in the answer (Fowl et al., ICLR 2022; Wen et al., ICML 2022).
Such weights have a structure that neither an initialisation nor training produces. Each mark is a figure with a limit far above
what honest nets have; ``docs/malicious-server.md`` has the measured margins, and what the marks miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.errors import SuspiciousDownload
from fedpriv.seeding import generator

ROWS = 256
"""Of a layer with more rows or columns, so many are looked at, drawn anew for every download."""
FEWEST = 16
"""Layers with fewer rows or columns are not looked at: few or short vectors are alike by chance."""
MOST = 1e6
"""Ratios beyond are reported as this."""
TRANSFORMER = ".transformer."
"""Part of the names of a text encoder's layers."""
PARALLEL = 0.95
"""From this absolute cosine on, two rows count as parallel."""


@dataclass(frozen=True)
class Mark:
    """A figure of a tensor, and the limit from which on it is a mark of an attack.

    Attributes:
        says: what it is, with ``{}`` for the figure.
    """

    tensor: str
    says: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.tensor}: {self.says.format(f'{self.value:.3g}')} (limit {self.limit:g})"


def secret_draw() -> torch.Generator:
    """Of the machine's entropy: a server cannot know which rows a client will look at."""
    draw = torch.Generator()
    draw.seed()
    return draw


def draw_of_run(agreement: Agreement, round: int) -> torch.Generator:
    """Of the run's seed, for simulations: whether one warns or ends is a function of its config."""
    return generator(agreement.config.seed, round, "check of downloads")


def check_for_marks(agreement: Agreement, round: int, tensors: Mapping[str, Tensor], draw: torch.Generator) -> None:
    """Check a download for marks of an attack.

    Args:
        tensors: what was sent, by name.
        draw: of the rows that are looked at.

    Raises:
        SuspiciousDownload: it has one; the message names the first.
    """
    if (mark := first_of_attack(agreement, tensors, draw)) is not None:
        raise SuspiciousDownload(
            f"what the server sent for round {round} is refused as an attack on the client's data (check_downloads): {mark}"
        )


def first_of_attack(agreement: Agreement, tensors: Mapping[str, Tensor], draw: torch.Generator) -> Mark | None:
    """The first figure of a download that is above its limit; ``None``: no figure is."""
    return next((mark for mark in marks(agreement, tensors, draw) if mark.value > mark.limit), None)


@torch.no_grad()
def marks(agreement: Agreement, tensors: Mapping[str, Tensor], draw: torch.Generator) -> Iterator[Mark]:
    """All figures of a download, layer by layer."""
    space = agreement.space
    # Single samples are read from a linear layer that gets the image. In other nets honest training may make rows alike: in
    # attention (a mean squared cosine of 0.28 was seen), and in projectors whose embeddings collapse.
    by_linear = not any(len(entry.shape) == 4 or TRANSFORMER in entry.name for entry in space.entries)
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if layer in agreement.linear and layer.startswith("head"):
            yield from _of_head(name, tensor)
        elif name.startswith("head") and name.removesuffix(".bias") in agreement.linear:
            yield from _of_bias(name, tensor)
        elif layer in agreement.linear:
            learned = agreement.initial[space[name].start : space[name].stop].any()  # not of layers that begin at zero, as LoRA's
            if TRANSFORMER in name and learned:
                yield from _of_transformer(name, tensor, draw)
            elif by_linear and layer.startswith("encoder.") and learned:
                yield from _of_linear(name, tensor, draw)
        elif tensor.ndim == 4 and name in space:
            yield from _of_convolution(name, tensor)


def _of_linear(name: str, weight: Tensor, draw: torch.Generator) -> Iterator[Mark]:
    if min(weight.shape) < FEWEST:
        return
    for what, vectors in (("rows", weight), ("columns", weight.T)):
        vectors = _drawn(vectors, draw)
        norms = vectors.norm(dim=1)
        unit = (vectors / norms.clamp(min=1e-30)[:, None])[norms > 1e-6 * norms.max()]
        if len(unit) < FEWEST:
            yield Mark(name, f"all but {{}} of its {what} vanish", 1 - len(unit) / len(vectors), 0.9)
            continue
        cosines = unit @ unit.T
        squares = (float(cosines.square().sum()) / len(unit) - 1) / (len(unit) - 1)
        yield Mark(name, f"its {what} have a mean squared cosine of {{}}", squares, 0.25)
        alike = (cosines.abs() > PARALLEL).sum(1) - 1
        yield Mark(name, f"of its {what}, {{}} are parallel to one", float(alike.max()), 3)


def _of_transformer(name: str, weight: Tensor, draw: torch.Generator) -> Iterator[Mark]:
    # Bins need a layer whose outputs are cut off one by one: the first of a feed-forward block, which widens. Training makes rows
    # alike in the square ones of attention (0.45 of the rows of a key layer were seen).
    if min(weight.shape) < FEWEST or weight.shape[0] <= weight.shape[1]:
        return
    unit = _drawn(weight, draw)
    unit = unit / unit.norm(dim=1, keepdim=True).clamp(min=1e-30)
    alike = ((unit @ unit.T).abs() > PARALLEL).sum(1) - 1
    yield Mark(name, "a share of {} of its rows are parallel to one", float(alike.max()) / (len(unit) - 1), 0.25)


def _drawn(vectors: Tensor, draw: torch.Generator) -> Tensor:
    """At most ``ROWS`` of the vectors."""
    if len(vectors) <= ROWS:
        return vectors
    return vectors[torch.rand(len(vectors), generator=draw).argsort()[:ROWS].to(vectors.device)]


def _of_convolution(name: str, weight: Tensor) -> Iterator[Mark]:
    kernels = weight.flatten(1)
    if weight[0, 0].numel() == 1 or kernels.shape[1] < FEWEST // 2:
        return
    norms, largest = kernels.norm(dim=1), torch.maximum(kernels.amax(1), -kernels.amin(1))
    shares = (largest / norms).square()[norms > 1e-3 * norms.max()]
    if len(shares):
        limit = 0.9 if kernels.shape[1] >= FEWEST else 0.999
        yield Mark(name, "a share of {} of a kernel is a single entry, which copies its input", float(shares.max()), limit)


def _of_head(name: str, weight: Tensor) -> Iterator[Mark]:
    # The same vector added to all classes changes no probability, so only what differs between them counts.
    median = weight.sort(dim=0).values[(len(weight) - 1) // 2]  # Tensor.median along a dimension may vary on CUDA
    norms = (weight - median).norm(dim=1)
    if len(norms) > 3 and weight.shape[1] >= FEWEST // 2:
        ratio = float(norms.max() / norms.median().clamp(min=float(norms.max()) / MOST))
        yield Mark(name, "what one class adds to the classes' median weights is {} times that of the median class", ratio, 20)


def _of_bias(name: str, bias: Tensor) -> Iterator[Mark]:
    if len(bias) > 1:
        yield Mark(name, "one class is {} logits away from the median class", float((bias - bias.median()).abs().max()), 10)
