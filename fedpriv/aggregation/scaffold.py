"""The server part of SCAFFOLD (Karimireddy et al., ICML 2020, alg. 1), for all layers or only the last ones (FedPVR).

    x <- x + eta_g mean_S (y_k - x),      c <- c + (1 / K) sum_S (change of c_k)        for K clients with training data

So ``c`` remains the mean of all clients' control variates ``c_k``; initially all are zero. For a tensor that some clients have no
data for, the sums are those of the other clients, rescaled to the number of all (:mod:`fedpriv.aggregation.completing`).

FedPVR (Li et al., CVPR 2023) corrects the last layers only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from fedpriv.aggregation import Memory, Merged, Uploads, register
from fedpriv.aggregation.layers import layers_of, matching, uncounted
from fedpriv.aggregation.mean import Mean, MeanParams, weighted_mean, with_plain_buffers
from fedpriv.errors import UsageError
from fedpriv.interfaces import params
from fedpriv.objectives.scaffold import VARIATE
from fedpriv.wire import statistic, tensor_of


def chosen_layers(
    parameters: Sequence[str], layers: int | tuple[str, ...] | None, uncounted: frozenset[str] = frozenset()
) -> list[str]:
    """The names of the parameters that belong to ``layers``.

    Args:
        parameters: the net's parameter names in forward order.
        layers: a number of last layers (a layer is a weight with its bias), shell patterns of names, or ``None`` for all.
        uncounted: names that do not count as layers, such as those of BatchNorm.

    Raises:
        UsageError: there are fewer layers, or a pattern matches no name.
    """
    if layers is None:
        return list(parameters)
    if not isinstance(layers, int):
        return matching(parameters, layers, "layers")
    groups = layers_of(parameters, uncounted)
    if layers > len(groups):
        names = ", ".join(group[0].rpartition(".")[0] for group in groups)
        raise UsageError(f"layers = {layers}: the net has {len(groups)} ({names})")
    return [name for group in groups[len(groups) - layers :] for name in group]


@params
class ScaffoldServerParams(MeanParams):
    """Options of SCAFFOLD's server part."""

    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients: by number of samples, or equal (paper)"
    )
    server_lr: float = Field(1.0, gt=0, description="eta_g, the server's step size (paper: 1)")
    layers: NonNegativeInt | tuple[str, ...] | None = Field(
        None,
        description="what is corrected: a number of last layers (BatchNorm does not count), shell patterns such as head.*, or "
        "all (null)",
    )


@register("scaffold")
class Scaffold(Mean):
    """The mean of the models, and the mean of all clients' control variates."""

    paper = "Karimireddy et al., ICML 2020"
    Params = ScaffoldServerParams
    linear = True
    reads = writes = frozenset({VARIATE})
    sends = "down, the mean of all clients' control variates: as many floats as corrected parameters"

    def start(self, row: Tensor) -> dict[str, Tensor]:
        space = self.context.space
        names = chosen_layers(self.context.layers, self.params.layers, uncounted(self.context))
        return {statistic(VARIATE, name): torch.zeros_like(space.view(row, name)) for name in names}

    def server_statistics(self, memory: Memory) -> dict[str, Tensor]:
        return dict(memory)

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        row = mean = weighted_mean(uploads.rows, self.weigh(uploads))
        if self.params.server_lr != 1:
            moved = uploads.previous + self.params.server_lr * (mean - uploads.previous)
            row = with_plain_buffers(moved, mean, uploads.space)
        # Private and masked parameters have no variate at the server. A branch of the net for which no client of this round has
        # data keeps its variates.
        variates = {name: c for name, c in memory.items() if tensor_of(name) in uploads.space}
        for name in variates:
            if not any(name in sent for sent in uploads.statistics):
                raise UsageError(f"aggregation scaffold needs {name} of every client; a mask removes it")
        changed = {name: c for name, c in memory.items() if name in variates or tensor_of(name) in uploads.unsent}
        for name, c in variates.items():
            if changes := [sent[name].to(c) for sent in uploads.statistics if name in sent]:
                changed[name] = c + torch.stack(changes).sum(0) * (len(uploads) / len(changes)) / uploads.registered
        # fsum, because a resumed run has the tensors in another order.
        report = {"scaffold/variate_norm": math.sqrt(math.fsum(float(c.double().square().sum()) for c in changed.values()))}
        return Merged(row, changed, report if changed else {})
