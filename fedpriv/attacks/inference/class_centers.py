"""Membership by class centres: the mean of a few embeddings is nearer to these embeddings than to others.

This is the tracing attack on published means (Homer et al., PLoS Genetics 2008; Dwork et al., "Robust Traceability from Trace
Amounts", FOCS 2015). A sample is 1/n of a mean of n. Its inner product with the mean shows this, if n is small compared with the
number of directions in which embeddings vary. Nets collapse most directions, so each direction is scaled by its variance.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.attacks.inference.membership import Array

_LEAST_VARIANCE = 1e-30  # embeddings may all be equal


def trace(embedded: Tensor, labels: Tensor, candidates: int, centers: Mapping[int, Tensor]) -> Array:
    """Project each candidate on the direction of its class's centre, in standard deviations; higher for likelier members.

    With mean ``m`` of the class among the given samples, candidate ``z`` and centre ``c``: ``(z - m)' V (c - m)``, divided by the
    root of ``(c - m)' V (c - m)``. ``V`` is the inverse of the covariance within classes plus its mean variance times the
    identity, as there are about as many samples as directions. The mean ``m`` is over all given samples, the candidates
    included, so that members and others are treated alike.

    Args:
        embedded: samples ``(n, k)``, the candidates first, by the net that made the centres.
        labels: their classes ``(n,)``.
        candidates: their number.
        centers: by class ``(k,)``; a candidate of a class without one scores 0.

    Returns:
        ``(candidates,)``.

    Raises:
        ValueError: embeddings or centres are not finite.
    """
    classes, embedded = labels.cpu(), embedded.detach().cpu().double()
    asked = torch.unique(classes[:candidates])
    used = torch.isin(classes, asked)
    place = torch.searchsorted(asked, classes[used])
    means = torch.stack([embedded[classes == label].mean(0) for label in asked])
    apart = embedded[used] - means[place]
    toward = torch.zeros_like(means)
    for row, label in enumerate(asked.tolist()):
        if label in centers:
            toward[row] = centers[label].detach().cpu().double() - means[row]
    if not bool(apart.isfinite().all() and toward.isfinite().all()):
        raise ValueError("embeddings are not finite")
    covariance = apart.T @ apart / len(apart)
    spread = covariance.diagonal().mean().clamp(min=_LEAST_VARIANCE)
    root = torch.linalg.cholesky(covariance + spread * torch.eye(len(covariance), dtype=torch.float64))
    solved = torch.linalg.solve_triangular(root, toward.T, upper=False)
    along = torch.linalg.solve_triangular(root.T, solved / solved.norm(dim=0).clamp(min=_LEAST_VARIANCE), upper=True)
    scores: Array = (apart[:candidates] * along.T[place[:candidates]]).sum(1).numpy()
    return scores
