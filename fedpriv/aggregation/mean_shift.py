"""The server part of FedDUAL (Sahoo et al., arXiv:2412.04416, eqs. 10-13 and alg. 1): the last layers by a kernel-weighted mean.

The first layers are averaged. For each tensor of the last layers (the *dynamic* tensors), with the clients' vectors v_k (changes,
gradients or weights) and base weights lambda_k,

    b <- sum_k lambda_k v_k;    repeat:  w_k ~ lambda_k exp(-W(b, v_k) / eps),  b <- sum_k w_k v_k

and the server subtracts b. The paper calls b a Wasserstein barycentre by Sinkhorn-Knopp, but the equations define a mean shift
whose distance W is the one-dimensional Wasserstein distance between the entries of b and of v_k, whatever their positions.
Wasserstein barycentres are available as alternatives (``barycentre: wb_...``); the one by Sinkhorn-Knopp over the entries'
positions is feasible for small tensors only.

eps has the unit of v. If it is small compared with the distances, one client gets all weight; if it is large, b is the mean.
``eps_mode: relative`` makes it a multiple of the median distance.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.barycentre import (
    combination,
    gaussian_barycenter,
    mean_shift,
    positional,
    quantile_barycenter,
    wasserstein,
)
from fedpriv.aggregation.layers import layers_of, matching, uncounted
from fedpriv.aggregation.mean import client_weights, normalised, weighted_mean
from fedpriv.aggregation.transport import neuron_barycenter, sinkhorn_barycenter
from fedpriv.errors import UsageError
from fedpriv.interfaces import Context, LocalUpdate, params
from fedpriv.wire import Form, statistic

_NAMED = {"none": 0, "last1_layers": -1, "last2_layers": -2, "last3_layers": -3, "first2_layers": 2}


def dynamic_names(layers: Sequence[str], which: str | Sequence[str], uncounted: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The names of the dynamic tensors.

    Args:
        layers: the net's parameter names in forward order.
        which: ``none``, ``all``, ``last2_tensors``, some layers (``last1_layers``, ..., ``first2_layers``; a layer is a weight
            with its bias), or shell patterns.
        uncounted: names that do not count as layers, such as those of BatchNorm; they are averaged.

    Raises:
        UsageError: a pattern matches no tensor.
    """
    if not isinstance(which, str):
        return tuple(matching(layers, which, "dyn_layers"))
    if which == "all":
        return tuple(layers)
    if which == "last2_tensors":
        return tuple(layers[-2:])
    groups, count = layers_of(layers, uncounted), _NAMED[which]
    return tuple(name for group in (groups[count:] if count < 0 else groups[:count]) for name in group)


@params
class MeanShiftParams:
    """Options of the dynamic aggregation."""

    server_object: Literal["delta", "lossgrad_sum", "lossgrad_mean", "weights"] = Field(
        "delta",
        description="v: the client's change; the gradient of its loss after training, summed or averaged over its samples, which "
        "it then uploads, too; or its weights, in place of which the server takes b",
    )
    dyn_layers: (
        Literal["none", "last1_layers", "last2_layers", "last3_layers", "first2_layers", "all", "last2_tensors"] | tuple[str, ...]
    ) = Field(
        "last2_layers", description="the dynamic tensors (paper: the last two layers; code: tensors), or shell patterns of names"
    )
    barycentre: Literal["ms_w1", "ms_w2", "ms_pos", "wb_quantile", "wb_gauss", "wb_neurons", "wb_sinkhorn"] = Field(
        "ms_w1",
        description="mean shift with W1 (eqs. 12-13), W2, or the mean absolute difference by position; or a Wasserstein "
        "barycentre: of the entries' distributions, of normal distributions fitted to them, of neurons as points, or of masses "
        "at the entries' positions (Sinkhorn-Knopp, as in the text; at most 4096 entries)",
    )
    reg: float = Field(
        0.01, ge=0.002, description="wb_sinkhorn: weight of the entropy, in units of the cost from the first position to the last"
    )
    normaliser: Literal["softmax", "additive"] = Field(
        "softmax",
        description="softmax: eq. 13; additive: with 1e-10 added to the denominator (released code), which can freeze a tensor",
    )
    eps: float = Field(
        1.0, gt=0, description="width of the kernel, in the unit of v (paper: 1e-5) or relative to the median distance"
    )
    eps_mode: Literal["relative", "absolute"] = Field(
        "relative", description="the unit of eps: the median distance (not in the paper), or that of v"
    )
    iterations: int = Field(150, ge=1, description="largest number of iterations (paper: 100-150, code: 1000)")
    dyn_lr: float = Field(1.0, ge=0, description="factor of the server's step b (alg. 1: 1)")
    weights: Literal["uniform", "samples"] = Field(
        "uniform", description="lambda, also for the tensors that are averaged (eqs. 1 and 10: uniform)"
    )


@register("mean-shift")
class MeanShift(Aggregation):
    """The mean, and for the last layers a mean weighted by the clients' closeness to it."""

    paper = "Sahoo et al., arXiv:2412.04416 (FedDUAL)"
    Params = MeanShiftParams

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        kernel, kind = ["normaliser", "eps", "eps_mode"], params.barycentre
        if params.dyn_layers == "none":
            dynamic = ["server_object", "barycentre", "reg", *kernel, "iterations", "dyn_lr"]
            return dict.fromkeys(dynamic, "dyn_layers=none")
        unused = [] if kind == "wb_sinkhorn" else ["reg"]
        unused += [] if kind.startswith("ms") else kernel
        unused += ["iterations"] if kind in ("wb_quantile", "wb_gauss") else []
        return dict.fromkeys(unused, f"barycentre={kind}")

    def __init__(self, params: MeanShiftParams, context: Context) -> None:
        super().__init__(params, context)
        self.dynamic = dynamic_names(context.layers, params.dyn_layers, uncounted(context))

    @property
    def _uses_gradients(self) -> bool:
        return self.params.server_object in ("lossgrad_sum", "lossgrad_mean")

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        if not self._uses_gradients:
            return {}
        gradient = update.gradient(self.params.server_object.removeprefix("lossgrad_"))
        return {statistic("gradient", name): t for name, t in self.context.space.unpack(gradient, self.dynamic).items()}

    def forms(self, received: Mapping[str, Tensor], steps: int) -> dict[str, Form]:
        dynamic = self.dynamic if self._uses_gradients else ()
        return {statistic("gradient", name): Form(self.context.space[name].shape) for name in dynamic}

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The base weights lambda ``(K,)``, not normalised."""
        return client_weights(uploads, self.params.weights)

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        weights = self.weigh(uploads)
        base, row = normalised(weights), weighted_mean(uploads.rows, weights)
        report: dict[str, float] = {}
        for name in self.dynamic:
            if name in uploads.space:
                self._merge_tensor(name, uploads, base, row, report)
        return Merged(row, memory, report)

    def _merge_tensor(self, name: str, uploads: Uploads, base: Tensor, row: Tensor, report: dict[str, float]) -> None:
        """Replace one dynamic tensor in ``row``, which is the mean."""
        entry, what = uploads.space[name], self.params.server_object
        part = slice(entry.start, entry.stop)
        previous, sent = uploads.previous[part], uploads.rows[:, part]
        if self._uses_gradients:
            vectors = self._gradients(name, uploads).to(previous)
        else:
            vectors = sent if what == "weights" else previous - sent
        center = self._center(name, vectors, base, uploads.examples, report)
        target = center if what == "weights" else previous.double() - center
        if self.params.dyn_lr != 1:
            target = previous.double() + self.params.dyn_lr * (target - previous.double())
        row[part] = target.to(row)

    def _gradients(self, name: str, uploads: Uploads) -> Tensor:
        """The gradients of a tensor ``(K, d)``, as uploaded.

        Raises:
            UsageError: a client did not send it.
        """
        key = statistic("gradient", name)
        for client, sent in zip(uploads.clients, uploads.statistics, strict=True):
            if key not in sent:
                raise UsageError(
                    f"mean-shift with server_object {self.params.server_object} needs {key}, and client {client} did not send it;"
                    " a mask that hides it must hide the tensor too"
                )
        return torch.stack([sent[key].flatten() for sent in uploads.statistics])

    def _center(self, name: str, vectors: Tensor, base: Tensor, examples: Sequence[int], report: dict[str, float]) -> Tensor:
        """The centre b ``(d,)`` of the clients' vectors ``(K, d)`` for one tensor; adds metrics to ``report``."""
        kind, prefix = self.params.barycentre, f"mean_shift/{name}/"
        if kind == "wb_quantile":
            center = quantile_barycenter(vectors, base)
        elif kind == "wb_gauss":
            center = gaussian_barycenter(vectors, base)
        elif kind == "wb_neurons":
            rows = self.context.space[name].shape[0]
            center = neuron_barycenter(vectors.cpu(), base, rows, self.params.iterations).to(vectors.device)
        elif kind == "wb_sinkhorn":
            center = sinkhorn_barycenter(vectors.cpu(), base, self.params.reg, self.params.iterations).to(vectors.device)
        else:
            distances = positional(vectors) if kind == "ms_pos" else wasserstein(vectors, int(kind[-1]))
            options = self.params
            shift = mean_shift(
                vectors, base, distances, options.eps, options.eps_mode == "relative", options.normaliser, options.iterations
            )
            center, total = shift.center, float(shift.weights.sum())
            if total < 0.5:
                warnings.warn(  # without numbers, so that it is shown once and not in each round
                    f"mean-shift: all distances to the mean (distance_min in the record) exceed eps so far that the additive "
                    f"normaliser leaves {name} unchanged; use a larger eps, or eps_mode relative",
                    stacklevel=2,
                )
            squares = float(shift.weights.square().sum())
            report[prefix + "effective_clients"] = total**2 / squares if squares else 0.0
            report[prefix + "top_examples"] = float(examples[int(shift.weights.argmax())]) if squares else 0.0
            report[prefix + "iterations"] = float(shift.iterations)
            report[prefix + "distance_min"] = float(shift.distances.min())
            report[prefix + "distance_median"] = float(shift.distances.quantile(0.5))
        mean = float(combination(vectors, base).norm())
        report[prefix + "step_ratio"] = float(center.norm()) / mean if mean else 1.0
        return center
