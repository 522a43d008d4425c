"""Marks of an attack in what the server sent: a client refuses weights that training would not produce.

A malicious server writes weights that make single samples readable in the answer (Fowl et al., ICLR 2022; Wen et al., ICML 2022).
Such weights have a structure that neither initialisation nor training produces. Each mark is a figure of the weights, with a
limit far above the figures of honest nets; ``docs/malicious-server.md`` has the measured margins, and what the marks miss.
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
"""Most rows (or columns) of a layer that are compared; a larger layer is sampled at random, anew for every download."""
FEWEST = 16
"""Layers with fewer rows or columns are not checked, as few or short vectors are similar by chance."""
MAX_RATIO = 1e6
"""Larger ratios are reported as this value."""
TRANSFORMER = ".transformer."
"""Part of the names of a text encoder's layers."""
PARALLEL = 0.95
"""The absolute cosine from which on two rows count as parallel."""


@dataclass(frozen=True)
class Mark:
    """A figure of a tensor; above its limit it is a mark of an attack.

    Attributes:
        text: what the figure is, with ``{}`` for its value.
    """

    tensor: str
    text: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.tensor}: {self.text.format(f'{self.value:.3g}')} (limit {self.limit:g})"


def secret_generator() -> torch.Generator:
    """A generator seeded by the operating system, so that a server cannot know which rows a client compares."""
    rng = torch.Generator()
    rng.seed()
    return rng


def generator_of_run(agreement: Agreement, round: int) -> torch.Generator:
    """A generator of the run's seed, for simulations, so that their warnings depend only on the config."""
    return generator(agreement.config.seed, round, "check of downloads")


def check_for_marks(agreement: Agreement, round: int, tensors: Mapping[str, Tensor], rng: torch.Generator) -> None:
    """Check a download for marks of an attack.

    Args:
        tensors: what was sent, by name.
        rng: draws the rows that are compared.

    Raises:
        SuspiciousDownload: the download has a mark; the message names the first.
    """
    if (mark := first_of_attack(agreement, tensors, rng)) is not None:
        raise SuspiciousDownload(
            f"what the server sent for round {round} is refused as an attack on the client's data (check_downloads): {mark}"
        )


def first_of_attack(agreement: Agreement, tensors: Mapping[str, Tensor], rng: torch.Generator) -> Mark | None:
    """The first figure of a download that is above its limit; ``None``: there is none."""
    return next((mark for mark in marks(agreement, tensors, rng) if mark.value > mark.limit), None)


@torch.no_grad()
def marks(agreement: Agreement, tensors: Mapping[str, Tensor], rng: torch.Generator) -> Iterator[Mark]:
    """All figures of a download, layer by layer."""
    space = agreement.space
    # Attacks read single samples from a linear layer whose input is the image. In other nets honest training may make rows
    # similar: in attention (a mean squared cosine of 0.28 was seen), and in projectors whose embeddings collapse.
    by_linear = not any(len(entry.shape) == 4 or TRANSFORMER in entry.name for entry in space.entries)
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if layer in agreement.linear and layer.startswith("head"):
            yield from _of_head(name, tensor)
        elif name.startswith("head") and name.removesuffix(".bias") in agreement.linear:
            yield from _of_bias(name, tensor)
        elif layer in agreement.linear:
            # Layers that begin at zero, as LoRA's, are not checked.
            learned = agreement.initial[space[name].start : space[name].stop].any()
            if TRANSFORMER in name and learned:
                yield from _of_transformer(name, tensor, rng)
            elif by_linear and layer.startswith("encoder.") and learned:
                yield from _of_linear(name, tensor, rng)
        elif tensor.ndim == 4 and name in space:
            yield from _of_convolution(name, tensor)


def _of_linear(name: str, weight: Tensor, rng: torch.Generator) -> Iterator[Mark]:
    if min(weight.shape) < FEWEST:
        return
    for what, vectors in (("rows", weight), ("columns", weight.T)):
        vectors = _sample(vectors, rng)
        norms = vectors.norm(dim=1)
        unit = (vectors / norms.clamp(min=1e-30)[:, None])[norms > 1e-6 * norms.max()]
        if len(unit) < FEWEST:
            yield Mark(name, f"a share of {{}} of its {what} vanish", 1 - len(unit) / len(vectors), 0.9)
            continue
        cosines = unit @ unit.T
        squares = (float(cosines.square().sum()) / len(unit) - 1) / (len(unit) - 1)
        yield Mark(name, f"its {what} have a mean squared cosine of {{}}", squares, 0.25)
        alike = (cosines.abs() > PARALLEL).sum(1) - 1
        yield Mark(name, f"{{}} of its {what} are parallel to the same other", float(alike.max()), 3)


def _of_transformer(name: str, weight: Tensor, rng: torch.Generator) -> Iterator[Mark]:
    # An attack by bins needs the first layer of a feed-forward block, which has more outputs than inputs. In the square layers of
    # attention training makes rows similar (0.45 of the rows of a key layer were seen).
    if min(weight.shape) < FEWEST or weight.shape[0] <= weight.shape[1]:
        return
    unit = _sample(weight, rng)
    unit = unit / unit.norm(dim=1, keepdim=True).clamp(min=1e-30)
    alike = ((unit @ unit.T).abs() > PARALLEL).sum(1) - 1
    yield Mark(name, "a share of {} of its rows are parallel to the same other", float(alike.max()) / (len(unit) - 1), 0.25)


def _sample(vectors: Tensor, rng: torch.Generator) -> Tensor:
    """A random sample of at most ``ROWS`` vectors."""
    if len(vectors) <= ROWS:
        return vectors
    return vectors[torch.rand(len(vectors), generator=rng).argsort()[:ROWS].to(vectors.device)]


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
    # Adding the same vector to all classes changes no probability, so only differences between classes matter.
    median = weight.sort(dim=0).values[(len(weight) - 1) // 2]  # Tensor.median along a dimension may vary on CUDA
    norms = (weight - median).norm(dim=1)
    if len(norms) > 3 and weight.shape[1] >= FEWEST // 2:
        ratio = float(norms.max() / norms.median().clamp(min=float(norms.max()) / MAX_RATIO))
        yield Mark(name, "one class's weights are {} times as far from the median weights as a typical class's", ratio, 20)


def _of_bias(name: str, bias: Tensor) -> Iterator[Mark]:
    if len(bias) > 1:
        yield Mark(name, "one class is {} logits away from the median class", float((bias - bias.median()).abs().max()), 10)
