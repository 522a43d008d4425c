"""SCAFFOLD's server (Karimireddy et al. 2020), for all parameters or only the last layers' (FedPVR, Li et al. 2023).

    x <- x + eta_g mean_S (y_k - x),      c <- c + (1 / K) sum_S (change of c_k)

so that c stays the mean of all K clients' c_k; a client that holds no data has none. Both start at zero. For a tensor that some
clients have no data for, their change is replaced by the mean change of the others, as for the models
(:mod:`fedpriv.aggregation.completing`); c is the others' mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from fedpriv.aggregation import Memory, Merged, Uploads, register
from fedpriv.aggregation.layers import fitting, layers_of, uncounted
from fedpriv.aggregation.mean import Mean, MeanParams, weighted_mean, with_plain_buffers
from fedpriv.errors import UsageError
from fedpriv.interfaces import params
from fedpriv.objectives.scaffold import VARIATE
from fedpriv.wire import statistic, tensor_of


def chosen_layers(
    parameters: Sequence[str], layers: int | tuple[str, ...] | None, uncounted: frozenset[str] = frozenset()
) -> list[str]:
    """The net's parameter names, in forward order, that belong to ``layers``.

    Args:
        layers: so many of the last layers (a layer is a weight with its bias), shell patterns of names, or ``None`` for all.
        uncounted: names of tensors that a number of layers leaves out, such as those of BatchNorm.

    Raises:
        UsageError: more layers than there are, or a pattern that fits nothing.
    """
    if layers is None:
        return list(parameters)
    if not isinstance(layers, int):
        return fitting(parameters, layers, "layers")
    groups = layers_of(parameters, uncounted)
    if layers > len(groups):
        names = ", ".join(group[0].rpartition(".")[0] for group in groups)
        raise UsageError(f"layers = {layers}: the net has {len(groups)} ({names})")
    return [name for group in groups[len(groups) - layers :] for name in group]


@params
class ScaffoldServerParams(MeanParams):
    """Options of SCAFFOLD's server."""

    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="a client weighs its number of samples, or the same as all (paper)"
    )
    server_lr: float = Field(1.0, gt=0, description="eta_g, the server's step (paper: 1)")
    layers: NonNegativeInt | tuple[str, ...] | None = Field(
        None,
        description="what is corrected: so many of the last layers, BatchNorm not counted, shell patterns such as head.*, or "
        "null: all",
    )


@register("scaffold")
class Scaffold(Mean):
    """The mean of the models, and the control variate of all clients."""

    paper = "Karimireddy et al., ICML 2020"
    Params = ScaffoldServerParams
    linear = True
    reads = writes = frozenset({VARIATE})
    sends = "down, the control variate of all clients: as many floats as corrected parameters"

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
        # Private or masked parameters have no variate at the server, and are not corrected; a branch of the net for which no
        # client of this round has data keeps its own.
        variates = {name: c for name, c in memory.items() if tensor_of(name) in uploads.space}
        for name in variates:
            if not any(name in sent for sent in uploads.statistics):
                raise UsageError(f"aggregation scaffold needs {name} of every client; a mask removes it")
        changed = {name: c for name, c in memory.items() if name in variates or tensor_of(name) in uploads.unsent}
        for name, c in variates.items():
            if changes := [sent[name].to(c) for sent in uploads.statistics if name in sent]:
                changed[name] = c + torch.stack(changes).sum(0) * (len(uploads) / len(changes)) / uploads.registered
        # fsum, as a resumed run has the tensors in another order.
        report = {"scaffold/variate_norm": math.sqrt(math.fsum(float(c.double().square().sum()) for c in changed.values()))}
        return Merged(row, changed, report if changed else {})
