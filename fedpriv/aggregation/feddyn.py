"""The server part of FedDyn (Acar et al., ICLR 2021, alg. 1): the mean of the models, plus the clients' accumulated drift.

    h <- h - (alpha / K) sum_S (x_k - x_g),      x_g <- mean_S x_k - h / alpha        for K clients with training data

The server stores the drift ``u = -h / alpha`` and adds it, so it needs no alpha. ``u`` is the mean over all clients of the
displacements that they keep (:mod:`fedpriv.objectives.feddyn`). If alpha differs between clients, this is what the authors' code
does. For a tensor that some clients have no data for, the mean is over the others (:mod:`fedpriv.aggregation.completing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Memory, Merged, Uploads, register
from fedpriv.aggregation.mean import Mean, MeanParams, weighted_mean, with_plain_buffers
from fedpriv.errors import UsageError
from fedpriv.interfaces import params
from fedpriv.objectives.feddyn import DISPLACEMENT

_DRIFT = "feddyn.drift"


@params
class FedDynServerParams(MeanParams):
    """Options of FedDyn's server."""

    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients: by number of samples, or equal (paper)"
    )
    test_mean: bool = Field(
        False, description="also test the plain mean of the round's models (global_accuracy_mean), as the authors' code does"
    )
    h_decay: float = Field(1.0, ge=0, le=1, description="factor of h in each round; 1: the paper; less: h stays bounded")


@register("feddyn")
class FedDyn(Mean):
    """The mean of the models, plus the accumulated drift of all clients."""

    paper = "Acar et al., ICLR 2021"
    Params = FedDynServerParams
    linear = True
    reads = frozenset({DISPLACEMENT})

    def start(self, row: Tensor) -> dict[str, Tensor]:
        return {_DRIFT: torch.zeros_like(row)}

    def extra_models(self, row: Tensor, memory: Memory) -> dict[str, Tensor]:
        return {"mean": row - memory[_DRIFT]} if self.params.test_mean else {}

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """As for the mean, but only with equal weights, because the drift is an unweighted sum."""
        if self.params.weights != "uniform":
            raise UsageError(
                "aggregation feddyn: a sum over the clients gives models and drift only with equal weights; use weights=uniform"
            )
        return super().addend(upload, received, weight)

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        space, drift_of_net = uploads.space, memory[_DRIFT]
        mean = weighted_mean(uploads.rows, self.weigh(uploads))
        drift = self.params.h_decay * uploads.restrict(drift_of_net)
        for row in uploads.rows:
            drift += (row - uploads.previous) / uploads.registered
        merged = with_plain_buffers(mean + drift, mean, space)
        drift = with_plain_buffers(drift, torch.zeros_like(drift), space)
        report = {"feddyn/drift_norm": float(torch.linalg.vector_norm(drift, dtype=torch.float64))}
        return Merged(merged, {_DRIFT: uploads.expand(drift, drift_of_net)}, report)
