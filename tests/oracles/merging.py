"""L-DAWA, SimProx, SimAgg and FedAtt as loops over numpy arrays, tensor by tensor and pair by pair, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = list[Array]
"""A model as a list of arrays."""


def cosine(a: Array, b: Array) -> float:
    length = math.sqrt(float(np.sum(a * a))) * math.sqrt(float(np.sum(b * b)))
    return float(np.sum(a * b)) / length if length > 0 else 1.0


def l_dawa(start: State, uploads: Sequence[State], base: Sequence[float]) -> State:
    merged = []
    for layer, old in enumerate(start):
        total = np.zeros_like(old)
        for weight, upload in zip(base, uploads, strict=True):
            total += weight * cosine(upload[layer], old) * upload[layer]
        merged.append(total)
    return merged


def m_dawa(start: State, uploads: Sequence[State], base: Sequence[float]) -> State:
    flat = np.concatenate([a.ravel() for a in start])
    cosines = [cosine(np.concatenate([a.ravel() for a in upload]), flat) for upload in uploads]
    scaled = [weight * d for weight, d in zip(base, cosines, strict=True)]
    return [sum(c * upload[layer] for c, upload in zip(scaled, uploads, strict=True)) for layer in range(len(start))]


def simprox_alpha(start: Array, uploads: Sequence[Array], lam0: float, tau: float) -> list[float]:
    """Eqs. 7-14 as printed, with exp(-g)."""
    count = len(uploads)
    distance = [[math.sqrt(float(np.sum((a - b) ** 2))) for b in uploads] for a in uploads]
    pairs = [distance[i][j] for i in range(count) for j in range(i + 1, count)]
    sigma = sum(pairs) / len(pairs)
    sbar = sum(cosine(a, start) for a in uploads) / count
    lam = lam0 * sbar / tau if sbar < tau else lam0
    scores = []
    for i, a in enumerate(uploads):
        similar = 0.0
        for j, b in enumerate(uploads):
            if i != j:
                gauss = math.exp(-(distance[i][j] ** 2) / (2 * sigma**2)) if sigma else 1.0
                similar += (lam * cosine(a, b) + (1 - lam) * gauss) / (count - 1)
        scores.append(math.exp(-math.sqrt(float(np.sum((a - start) ** 2)))) * (1 + similar))
    shares = [math.exp(score / sum(scores)) for score in scores]
    return [share / sum(shares) for share in shares]


def simagg(uploads: Sequence[State], samples: Sequence[int], epsilon: float = 1e-5) -> State:
    merged = []
    for layer in range(len(uploads[0])):
        arrays = [upload[layer] for upload in uploads]
        mean = sum(arrays) / len(arrays)
        distances = [float(np.abs(a - mean).sum()) for a in arrays]
        u = [sum(distances) / (epsilon + d) for d in distances]
        mixed = [x / sum(u) + n / sum(samples) for x, n in zip(u, samples, strict=True)]
        merged.append(sum(w / sum(mixed) * a for w, a in zip(mixed, arrays, strict=True)))
    return merged


def fedatt(start: State, uploads: Sequence[State], step: float) -> State:
    merged = []
    for layer, old in enumerate(start):
        shares = [math.exp(float(np.linalg.norm(old - upload[layer]))) for upload in uploads]
        pulled = sum(s / sum(shares) * (old - upload[layer]) for s, upload in zip(shares, uploads, strict=True))
        merged.append(old - step * pulled)
    return merged
