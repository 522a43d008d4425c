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
    apart, toward = embedded.detach().cpu().double().clone(), torch.zeros_like(embedded, dtype=torch.float64, device="cpu")
    classes = labels.cpu()
    for label in torch.unique(classes[:candidates]).tolist():
        of_class = classes == label
        mean = apart[of_class].mean(0)
        apart[of_class] -= mean
        if label in centers:
            toward[of_class] = centers[label].detach().cpu().double() - mean
    if not bool(apart.isfinite().all() and toward.isfinite().all()):
        raise ValueError("embeddings are not finite")
    within = apart[torch.isin(classes, classes[:candidates])]
    covariance = within.T @ within / len(within)
    spread = covariance.diagonal().mean().clamp(min=_LEAST_VARIANCE)
    root = torch.linalg.cholesky(covariance + spread * torch.eye(len(covariance), dtype=torch.float64))
    side, other = (torch.linalg.solve_triangular(root, rows[:candidates].T, upper=False) for rows in (apart, toward))
    scores: Array = ((side * other).sum(0) / other.norm(dim=0).clamp(min=_LEAST_VARIANCE)).numpy()
    return scores
