"""The weighted mean, FedAvg's aggregation (McMahan et al., AISTATS 2017).

w = sum_k n_k w_k / sum_k n_k        with n_k the numbers of samples, or all equal
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import weighted_sum
from fedpriv.aggregation.rows import Rows
from fedpriv.interfaces import params
from fedpriv.parameters import ParameterSpace


def normalised(weights: Sequence[float]) -> Tensor:
    """Normalise weights ``(K,)`` to a sum of one, in float64.

    Raises:
        ValueError: a weight is negative, or all are zero.
    """
    values = torch.tensor(weights, dtype=torch.float64)
    if not len(values) or values.min() < 0 or values.sum() <= 0:
        raise ValueError(f"aggregation weights must be non-negative and not all zero, got {list(weights)}")
    return values / values.sum()


def weighted_mean(rows: Rows, weights: Sequence[float]) -> Tensor:
    """The weighted mean ``(p,)`` of the uploads ``(K, p)``."""
    return weighted_sum(rows, normalised(weights))


def client_weights(uploads: Uploads, by: Literal["samples", "uniform"]) -> Sequence[float]:
    """The clients' weights ``(K,)``, not normalised: their numbers of training samples, or ones."""
    return uploads.examples if by == "samples" else [1.0] * len(uploads)


def with_plain_buffers(row: Tensor, mean: Tensor, space: ParameterSpace) -> Tensor:
    """Copy the buffers (BatchNorm's running statistics) of ``mean`` ``(p,)`` into ``row`` ``(p,)``, in place, and return it."""
    for part in space.spans(entry.name for entry in space.entries if entry.kind == "buffer"):
        row[part] = mean[part]
    return row


@params
class MeanParams:
    """Options of the mean."""

    weights: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the clients: by number of training samples (paper), or equal"
    )


@register("mean", "fedavg")
class Mean(Aggregation):
    """The mean of the uploads, weighted by numbers of samples, or unweighted."""

    paper = "McMahan et al., AISTATS 2017"
    Params = MeanParams
    linear = by_columns = True

    @property
    def notes(self) -> Sequence[str]:
        if self.context.config.privacy.level != "client" or self.params.weights == "uniform":
            return ()
        return ("privacy.level client: weights=samples has no effect, as all clients have the same weight",)

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' weights ``(K,)``, not normalised."""
        return client_weights(uploads, self.params.weights)

    def weight_in_sum(self, examples: int) -> float:
        return float(examples or 1) if self.params.weights == "samples" else 1.0

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        return Merged(weighted_mean(uploads.by_columns, self.weigh(uploads)), memory)
