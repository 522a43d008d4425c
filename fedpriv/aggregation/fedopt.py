"""The server part of FedOpt (Reddi et al., ICLR 2021, alg. 2): FedAdam, FedYogi and FedAdagrad.

The server's optimiser uses the mean change of a round, ``D = mean_S x_k - x``, in place of a (negative) gradient:

    m <- b1 m + (1 - b1) D
    v <- v + D^2                           Adagrad
    v <- v - (1 - b2) D^2 sign(v - D^2)    Yogi
    v <- b2 v + (1 - b2) D^2               Adam
    x <- x + lr m / (sqrt(v) + tau)        initially m = 0, v = tau^2

The mean is weighted by numbers of samples, as in FedAvg, or with ``weights: uniform`` as in the paper.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Memory, Merged, Uploads, register
from fedpriv.aggregation.mean import Mean, MeanParams, weighted_mean, with_plain_buffers
from fedpriv.interfaces import params

_MOMENTUM, _VARIANCE = "fedopt.momentum", "fedopt.variance"


@params
class FedOptParams(MeanParams):
    """Options of the server's optimiser."""

    rule: Literal["adam", "yogi", "adagrad"] = Field("adam", description="FedAdam, FedYogi or FedAdagrad")
    server_lr: float = Field(0.01, gt=0, description="learning rate of the server's step (the paper tunes it, 1e-3 to 10)")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the momentum m (paper: 0.9; 0 for Adagrad)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of v (paper: 0.99); Adagrad has none")
    tau: float = Field(1e-3, gt=0, description="added to sqrt(v); the smaller, the more equal the entries' steps (paper: 1e-3)")


@register("fedopt")
class FedOpt(Mean):
    """FedAdam, FedYogi or FedAdagrad at the server, with the mean change of the round in place of a gradient."""

    paper = "Reddi et al., ICLR 2021"
    Params = FedOptParams
    linear = True

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        return {
            **super().unused_options(params),
            **({"beta2": "rule=adagrad, which has none"} if params.rule == "adagrad" else {}),
        }

    def start(self, row: Tensor) -> dict[str, Tensor]:
        return {_MOMENTUM: torch.zeros_like(row), _VARIANCE: torch.full_like(row, self.params.tau**2)}

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        options = self.params
        mean = weighted_mean(uploads.rows, self.weigh(uploads))
        change = mean - uploads.previous
        square = change.square()
        momentum = options.beta1 * uploads.restrict(memory[_MOMENTUM]) + (1 - options.beta1) * change
        variance = uploads.restrict(memory[_VARIANCE])
        if options.rule == "adagrad":
            variance = variance + square
        elif options.rule == "yogi":
            variance = variance - (1 - options.beta2) * square * (variance - square).sign()
        else:
            variance = options.beta2 * variance + (1 - options.beta2) * square
        row = uploads.previous + options.server_lr * momentum / (variance.sqrt() + options.tau)
        state = {_MOMENTUM: momentum, _VARIANCE: variance}
        memory = {name: uploads.expand(tensor, memory[name]) for name, tensor in state.items()}
        return Merged(with_plain_buffers(row, mean, uploads.space), memory)
