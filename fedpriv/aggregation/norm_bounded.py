"""The mean of updates whose norm is bounded (Sun et al., 2019, arXiv:1911.07963, section 4).

    w <- w + sum_k a_k d_k min(1, M / |d_k|);    d_k = w_k - w, a_k the weights of the mean

Clients with a share b of the weights move the model by at most b M in a round, whatever they send. No share is without effect.
BatchNorm's running statistics are no part of the norms, and are scaled like the rest of their upload. Of a tensor that only some
clients sent, the weights are those of these clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import parameter_groups, squared_distances, weighted_sum
from fedpriv.aggregation.completing import by_senders, completed
from fedpriv.aggregation.mean import client_weights, normalised
from fedpriv.interfaces import params


@params
class NormBoundedParams:
    """Options of the norm-bounded mean."""

    bound: Annotated[float, Field(gt=0)] | Literal["median"] = Field(
        "median", description="largest L2 norm of an update: a number, or the median of the round's norms"
    )
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients: equal, or by number of training samples, which bad clients can overstate"
    )


@register("norm-bounded")
class NormBounded(Aggregation):
    """The mean of the updates, each scaled down to a largest norm; bounds what any client can change in a round."""

    paper = "Sun et al., arXiv:1911.07963"
    Params = NormBoundedParams
    by_columns = True

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' weights ``(K,)``, not normalised."""
        return client_weights(uploads, self.params.weights)

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        start = uploads.previous
        rows = completed(uploads, start)  # what was not sent has not changed
        norms = squared_distances(rows, start, parameter_groups(uploads.space, "model"))[0].sqrt().cpu()
        bound = float(norms.quantile(0.5)) if self.params.bound == "median" else self.params.bound
        scales = (bound / norms).clamp(max=1)  # a norm of zero: infinity, clamped
        shares = normalised(self.weigh(uploads))
        weights = shares * scales.nan_to_num(1.0)
        row = weighted_sum(rows, weights) + (1 - float(weights.sum())) * start
        if uploads.senders is not None:
            for clients, columns in by_senders(uploads):
                if (share := float(shares[clients].sum())) > 0:
                    for part in columns:
                        row[part] = start[part] + (row[part] - start[part]) / share
        return Merged(row, memory, {"norm_bounded/bound": bound, "norm_bounded/scaled": float((scales < 1).sum())})
